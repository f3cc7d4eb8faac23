"""The study of the wider bus: a product that is limited by the bus gains, and stored results are not measured again."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from compiler.bench.single_layer import gemm_case
from hw.config import load_target
from scripts.study_wide_bus import study

ROOT = Path(__file__).parents[2]


def test_product_of_a_vector_and_a_matrix() -> None:
    """Its weights take n bytes per cycle of the narrow bus, and of the slow memory; they dominate its cycles."""
    model = gemm_case("1x512x512").prepare(np.random.default_rng(0)).model
    row = study(model, load_target("n16"))
    cycles, bound = row["cycles"], 512 * 512
    assert (
        cycles["narrow"] > bound / 16 and cycles["slow memory"] > bound / 16 and cycles["wide"] > bound / 32
    )
    assert cycles["narrow"] / cycles["wide"] > 1.8
    assert cycles["slow memory"] == pytest.approx(cycles["narrow"], rel=0.05)
    assert row["predicted"] == pytest.approx(cycles, rel=0.05)


def test_stored_results_are_printed(tmp_path: Path) -> None:
    file, names = tmp_path / "results.jsonl", ("narrow", "wide", "slow memory")
    rows = [
        {
            "target": "n16",
            "network": network,
            "cycles": dict(zip(names, cycles, strict=True)),
            "predicted": dict(zip(names, (8000.0, 4000.0, 8000.0), strict=True)),
        }
        for network, cycles in (("one", (8000, 5000, 10000)), ("two", (8000, 8000, 8000)))
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        sys.executable,
        "-m",
        "scripts.study_wide_bus",
        "--networks",
        "one",
        "two",
        "--file",
        str(file),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0 and not done.stderr
    assert done.stdout.splitlines()[2:] == [
        "| one | 8,000 | 5,000 | 60.0% | 100.0% | -20.0% |",
        "| two | 8,000 | 8,000 | 0.0% | 100.0% | 0.0% |",
        "| geometric mean | | | 26.5% | 100.0% | -10.6% |",
    ]
