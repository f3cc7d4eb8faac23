"""Tests of `make sim` without a build of the chip: invalid input, signals, broken pipes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Replaces the build of the simulator by an endless wait.
SLOW_BUILD = """
import sys, time
from pathlib import Path
from cosim.rtl import cache, verilog_cache

def build(parts, write, watch):
    def make(folder, lock):
        print("ready", flush=True)
        time.sleep(60)
    cache.cached("verilog", "key", make, watch)

verilog_cache.cached_verilog = build
sys.argv[1:] = ["--images", "2"]
from scripts import sim
sys.exit(sim.main())
"""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the script to its end."""
    command = [sys.executable, "-m", "scripts.sim", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)


def complains(text: str, *arguments: object) -> None:
    """Assert status 2, and that standard error is one line that contains a string."""
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert text in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("images", [-3, 0, 1, 361])
def test_number_of_images(images):
    complains(f"sim: --images must be in 2..360, not {images}", "--device", "golden", "--images", images)


def test_unwritable_outputs_are_rejected_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "absent" / "x.json", tmp_path):
        complains(f"{path} cannot be written", "--device", "golden", "--json", path)
    for path in (tmp_path / "file" / "x.fst", tmp_path, Path("/proc/x/y.fst")):
        complains(f"{path} cannot be written", "--waves", path)
    complains("the golden model has no signals", "--device", "golden", "--waves", tmp_path / "x.fst")
    complains("the golden model has no clock", "--device", "golden", "--picture", tmp_path / "x.svg")
    complains(f"{tmp_path} cannot be written", "--picture", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_broken_pipe_is_quiet():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "scripts.sim", "--device", "golden", "--images", "2"]
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals_clean_up(tmp_path, signum, status):
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_BUILD],
        cwd=ROOT,
        env=os.environ | {"MLA_CACHE": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "ready\n" in iter(process.stdout.readline, "")
        assert (tmp_path / "verilog" / "key.part").exists()
        process.send_signal(signum)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == status
    assert "Traceback" not in errors
    assert [path.name for path in (tmp_path / "verilog").iterdir()] == ["key.lock"]
