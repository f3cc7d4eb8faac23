"""The study of design options: bounds agree with calculations by hand, and stored results are not measured again."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from compiler.bench.single_layer import gemm_case
from hw.config import load_target
from scripts.study_design_options import MEMORIES, parts, study, wide_bus_bound

ROOT = Path(__file__).parents[2]
SPLITS = ("outputs", "inputs", "quarters")


@pytest.mark.parametrize(
    ("k", "c", "wanted"),
    [(16, 16, (1, 1, 1)), (9, 8, (2, 1, 2)), (8, 9, (1, 2, 2)), (8, 8, (2, 2, 4)), (1, 16, (1, 2, 2))],
)
def test_parts_that_work_at_the_same_time(k: int, c: int, wanted: tuple[int, ...]) -> None:
    assert tuple(parts(name, k, c, 16) for name in SPLITS) == wanted


# The array of n4 needs two tiles for 6 or 8 rows or columns, each for 40 cycles. A tile of 2 columns takes half of them
# if the array is split by outputs, one of 2 rows if it is split by inputs, one of 2 x 2 a quarter if by both.
@pytest.mark.parametrize(
    ("case", "shares"),
    [
        ("40x6x8", (3 / 4, 1, 3 / 4)),
        ("40x8x6", (1, 3 / 4, 3 / 4)),
        ("40x6x6", (3 / 4, 3 / 4, 9 / 16)),
        ("40x8x8", (1, 1, 1)),
    ],
)
def test_bounds_of_a_product_of_matrices(case: str, shares: tuple[float, ...]) -> None:
    row = study(gemm_case(case).prepare(np.random.default_rng(0)).model, load_target("n4"))
    cycles, (rows, columns, depth) = row["cycles"], map(int, case.split("x"))
    assert (
        set(cycles) == set(MEMORIES) and cycles["ideal"] < cycles["full"] < cycles["half"] < cycles["quarter"]
    )
    assert row["useful"] == rows * 4
    for name, share in zip(SPLITS, shares, strict=True):
        assert row["split"][name]["bound"] == pytest.approx(share * cycles["full"])
        assert row["split"][name]["bound"] <= row["split"][name]["estimate"] <= cycles["full"]
    # Operands and results are transferred once, four bytes per beat, and half of the beats' cycles may be saved.
    beats = (rows * depth + depth * columns + rows * columns) / 4
    assert beats <= row["beats"] <= beats + 80
    saved = min((cycles["half"] - cycles["full"]) // 2, row["beats"] // 2)
    assert row["bus"]["bound"] == cycles["full"] - saved
    assert row["bus"]["bound"] <= row["bus"]["estimate"] < cycles["full"]
    assert row["ports"]["bound"] == cycles["full"] - sum(row["conflicts"].values())
    assert not row["second_reads"]  # FUSE reads sums only


@pytest.mark.parametrize("seed", range(20))
def test_bound_of_a_wide_bus_holds_for_random_tasks(seed: int) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    kinds, lengths = rng.integers(0, 3, 60), rng.integers(1, 40, 60)
    needs = [rng.choice(number, min(number, 2), replace=False) for number in range(60)]

    def finish(beat: float) -> float:
        """Return the cycles of all tasks; those of a kind run in order, and those of kind 0 are transfers."""
        ends, last = np.zeros(60), np.zeros(3)
        for number, (kind, length) in enumerate(zip(kinds, lengths, strict=True)):
            begin = max(last[kind], *ends[needs[number]], 0)
            ends[number] = last[kind] = begin + length * (1 if kind else beat)
        return ends.max()

    beats = int(lengths[kinds == 0].sum())
    units = max(int(lengths[kinds == kind].sum()) for kind in (1, 2))
    bound = wide_bus_bound(int(finish(1)), int(finish(2)), beats, units)
    assert units <= bound <= finish(0.5) + 1


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.study_design_options", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)


def test_stored_results_are_printed(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    gains = {"one": 1000, "two": 4000}
    rows = [
        {
            "target": "n16",
            "network": name,
            "cycles": dict.fromkeys(MEMORIES, 4000),
            "predicted": {"full": 4000, "half": 4000},
            **dict.fromkeys(("useful", "wait_bus", "beats"), 1000),
            "conflicts": dict.fromkeys(("matrix", "fuse", "store", "accumulator"), 10),
            "bus": {"bound": after, "estimate": 4000},
            "second_reads": 100,
            "ports": {"bound": 3200},
            "split": {key: {"bound": after, "estimate": 4000} for key in SPLITS},
        }
        for name, after in gains.items()
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("--networks", *gains, "--file", file)
    assert done.returncode == 0 and not done.stderr
    memories, bus, ports, split = (text.splitlines() for text in done.stdout.strip().split("\n\n"))
    assert memories[0].startswith("| network | cycles | 8 B, latency 100 | 4 B, latency 100 |")
    assert bus[2:] == [
        "| one | 25.0% | 25.0% | 300.0% | 0.0% |",
        "| two | 25.0% | 25.0% | 0.0% | 0.0% |",
        "| geometric mean |  |  | 100.0% | 0.0% |",
    ]
    assert ports[2] == "| one | 0.25% | 0.25% | 0.25% | 0.25% | 2.5% | 25.0% |"
    assert all(half in split[0] for half in ("two 16x8", "two 8x16", "four 8x8"))


def test_unknown_model(tmp_path: Path) -> None:
    done = run("--networks", tmp_path / "absent.onnx", "--file", tmp_path / "results.jsonl")
    assert done.returncode == 2 and "absent.onnx" in done.stderr.splitlines()[-1] and not done.stdout
