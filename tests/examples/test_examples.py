"""Each script in examples/ runs with the command that its first lines state."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from compiler.bench.tiny import model_path
from scripts.networks.digits import MODEL, load_digits_split

EXAMPLES = Path(__file__).parents[2] / "examples"


def output(folder: Path, name: str, *arguments: object) -> str:
    """Run an example in an empty folder and return its output."""
    command = [sys.executable, EXAMPLES / name, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_examples_are_listed_and_start_with_their_command():
    listed = set(re.findall(r"`(\w+\.py)`", (EXAMPLES / "README.md").read_text()))
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    assert listed == scripts and len(scripts) == 6
    for name in scripts:
        assert f"    python examples/{name}" in (EXAMPLES / name).read_text()


def test_run_tflite(tmp_path):
    lines = output(tmp_path, "run_tflite.py", model_path("kws_ref_model")).splitlines()
    assert "12 layers" in lines[0] and "0 nodes on the host" in lines[0]
    assert re.fullmatch(r"Identity: int8\[1, 12\], maximum at \d+", lines[-2])
    cycles, roofline = (int(text.replace(",", "")) for text in re.findall(r"[\d,]{4,}", lines[-1]))
    assert cycles > roofline


@pytest.mark.parametrize("kind", ["golden", "rtl"])
def test_micro_program(tmp_path, kind):
    text = output(tmp_path, "micro_program.py", kind)
    assert text.startswith("copy: 7 words\nsafe: ") and "equal: True\n" in text
    assert (" cycles" in text) == (kind == "rtl")


def test_annealing(tmp_path):
    lines = output(tmp_path, "annealing.py", MODEL, 4).splitlines()
    assert re.fullmatch(r"[\d,]+ -> [\d,]+ cycles in 4 trials", lines[0])


def test_annealing_on_the_command_line(tmp_path):
    command = [sys.executable, "-m", "compiler.cli.main", "tune", MODEL, "--target", "n4", "--trials", "2"]
    options = ["--devices", "1", "--no-cache", "--method", "annealing:Annealing"]
    environment = os.environ | {"PYTHONPATH": f"{EXAMPLES.parent}{os.pathsep}{EXAMPLES}"}
    done = subprocess.run(
        [*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2 trials (annealing:Annealing)" in done.stdout


def test_serve_adapt(tmp_path):
    images, _ = load_digits_split()
    np.save(tmp_path / "images.npy", images.images[:8])
    lines = output(tmp_path, "serve_adapt.py", MODEL, "images.npy", 12).splitlines()
    assert re.fullmatch(r"12 requests: [\d,]+ cycles for the first, [\d,]+ for the last", lines[-1])


def test_compare_targets(tmp_path):
    lines = output(tmp_path, "compare_targets.py", MODEL, "n4", "n8").splitlines()
    assert [line[:4] for line in lines[:2]] == ["n4: ", "n8: "]
    assert lines[-1] == "outputs are equal"


def test_cocotb_testbench(tmp_path):
    assert output(tmp_path, "cocotb_testbench.py").endswith("copies: passed\n")
