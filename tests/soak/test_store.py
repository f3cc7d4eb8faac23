"""The database of hardware profiles: writers killed a hundred times."""

import pytest

from tests.loop.store.writer import kill_again_and_again

KILLS = 100


@pytest.mark.parametrize("seed", [11])
def test_killed_writers_lose_nothing(tmp_path, seed):
    print(f"seed {seed}")
    told, found = kill_again_and_again(tmp_path, seed, KILLS)
    print(f"{KILLS} writers killed: {told} measurements told of, {found} found")
