"""The option `--random-cases` draws a share of the cases of random tests, and no others."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", [["a"], ["b"]], ids=str)
@pytest.mark.parametrize("of", [len, min])
def test_marked(kind, seed, of): ...

@pytest.mark.random_cases("seed")
@pytest.mark.parametrize(("size", "seed"), [(1, 0), (1, 1), (2, 0), (3, 0)])
def test_groups(size, seed): ...

@pytest.mark.parametrize("seed", range(8))
def test_others(seed): ...

def test_loop(drawn):
    print("loop", drawn(range(8)))
"""


def run(folder: Path, seed: int, *arguments: str) -> set[str]:
    """Run the tests above in another process; return their names, and the seeds of the loop."""
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    (folder / "test_a.py").write_text(TESTS)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-s", "-p", "no:cacheprovider", *arguments, str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MLA_SEED": str(seed)},
    )
    if result.returncode:
        return {(result.stdout + result.stderr).strip()}
    lines = [line.partition("::")[2] for line in result.stdout.splitlines() if "::" in line]
    return {line.removesuffix("PASSED").strip() for line in lines}


def test_share_is_drawn_from_each_group(tmp_path: Path) -> None:
    every = run(tmp_path, 1)
    assert len([name for name in every if name.startswith("test_marked")]) == 32
    drawn = [run(tmp_path, seed, "--random-cases", "0.5") for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    for found in drawn:
        for of, kind in product(("len", "min"), "ab"):
            assert len([name for name in found if name.startswith(f"test_marked[{of}-['{kind}']-")]) == 4
        assert len([name for name in found if name.startswith("test_groups[1")]) == 1
        assert {"test_groups[2-0]", "test_groups[3-0]", *(f"test_others[{i}]" for i in range(8))} <= found
        (loop,) = [name for name in found if name.startswith("test_loop")]
        assert loop.count(",") == 3


@pytest.mark.parametrize("share", ["0", "nan"])
def test_shares_are_checked(tmp_path: Path, share: str) -> None:
    (message,) = run(tmp_path, 1, f"--random-cases={share}")
    assert f"--random-cases must be above 0 and at most 1, not {float(share)}" in message
    assert "Traceback" not in message
