"""`--vcd` leaves waveforms of a test's runs."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEST = """
import pytest
from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

@pytest.mark.parametrize("text", ["a b"])
def test_counts(text):
    for _ in range(2):
        m, count = Module(), Signal(4, name="count")
        m.d.sync += count.eq(count + 1)
        simulator = Simulator(m)
        simulator.add_clock(1e-6)
        simulator.run_until(1e-5)
"""


def test_waveforms(tmp_path):
    (tmp_path / "test_it.py").write_text(TEST)
    options = [
        "-c",
        ROOT / "pyproject.toml",
        "--rootdir",
        tmp_path,
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        *options,
        "--vcd",
        tmp_path / "waves",
        tmp_path / "test_it.py",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    files = {path.name for path in (tmp_path / "waves").iterdir()}
    assert files == {f"test_counts_a_b{run}.{kind}" for run in ("", "-2") for kind in ("vcd", "gtkw")}
    assert "count" in (tmp_path / "waves" / "test_counts_a_b.vcd").read_text()
