"""The database of hardware profiles loses no committed entry when writers are killed a hundred times."""

import pytest

from tests.tuning_db.killed_writer import check_killed_writers

KILLS = 100


@pytest.mark.parametrize("seed", [11])
def test_killed_writers_lose_nothing(tmp_path, seed):
    check_killed_writers(tmp_path, seed, KILLS)
