"""Tests of `make sim` without a build of the chip: invalid input, signals, broken pipes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import sim

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


@pytest.fixture
def complains(monkeypatch, capsys):
    """Return a function that asserts status 2, and that standard error is one line that contains a string.

    The script runs in this process, since its imports take most of the time of a process that rejects its arguments.
    """

    def run(text: str, *arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["sim", *map(str, arguments)])
        status = sim.main()
        done = capsys.readouterr()
        assert (status, done.out) == (2, ""), done.err
        assert text in done.err
        assert done.err.count("\n") == 1

    return run


@pytest.mark.parametrize("images", [-3, 0, 1, 361])
def test_number_of_images(complains, images):
    complains(f"sim: --images must be in 2..360, not {images}", "--device", "golden", "--images", images)


def test_unwritable_outputs_are_rejected_before_any_work(complains, monkeypatch, tmp_path):
    monkeypatch.setattr(sim, "load_digits_split", lambda: pytest.fail("the images are read"))
    monkeypatch.setattr(sim, "plan", lambda *_args, **_named: pytest.fail("the network is compiled"))
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
