"""Tests of failures during the build of a simulator, and of the variants with waveforms and coverage."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import cocotb_tools
import pytest
from cocotb_tools import config

from cosim.rtl import build, toolchain
from cosim.rtl.build import PLAIN, Variant, build_simulator, simulator_key
from cosim.rtl.errors import BuildError, DiskFullError, ToolMissingError
from cosim.rtl.runner import TOP
from cosim.rtl.sim_speed_baseline import bare_array_khz
from hw.errors import InputError
from tests.support.sim_chip import Reg
from tests.support.sim_device import GO_READ, N, is_running, open_sim, traffic, verilog

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fake_compiler(folder: Path, action: str) -> Path:
    """Write a C++ compiler that prints its version and otherwise executes `action`."""
    path = folder / "fake-c++"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo fake 1.0 && exit 0\n{action}\n')
    path.chmod(0o755)
    return path


def leftovers(cache: Path) -> list[str]:
    """Return the files that a failed build left behind, except locks."""
    return [str(path) for path in cache.rglob("*") if path.is_dir() and path.name != "sim"]


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        ("echo sorry: no C++ today >&2; exit 3", BuildError, "(?s)make failed.*sorry: no C\\+\\+ today"),
        ("cat /dev/zero > /dev/full; exit 1", DiskFullError, "no room left on the disk while make"),
    ],
)
def test_failing_compiler(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, error: type, message: str
):
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, action)))
    with pytest.raises(error, match=message):
        build_simulator(verilog(), N)
    assert leftovers(cache) == []


def test_missing_tools(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolMissingError, match=r"the C\+\+ compiler 'no-such-compiler' is not on the PATH"):
        build_simulator(verilog(), N)
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, "exit 0")))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolMissingError, match=r"'make' is not on the PATH; install the package make"):
        build_simulator(verilog(), N)
    assert leftovers(cache) == []


def test_bad_verilog_shows_verilator_error(cache: Path):
    with pytest.raises(BuildError, match=r"(?s)verilator_bin failed.*syntax error"):
        build_simulator("module mla_chip(; endmodule", N)
    assert leftovers(cache) == []


@pytest.fixture
def builder(cache: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Yield a process that builds a simulator, and the ids of its running compilers."""
    mark = tmp_path / "compiling"
    compiler = fake_compiler(tmp_path, f"echo $$ >> {mark}; exec sleep 1000")
    process = subprocess.Popen(
        [sys.executable, "-c", "from tests.support.sim_device import open_sim; open_sim()"],
        cwd=ROOT,
        env=os.environ | {"CXX": str(compiler)},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: mark.exists() and mark.read_text().endswith("\n"))
    with process:
        yield process, [int(pid) for pid in mark.read_text().split()]


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_interrupted_build_leaves_nothing(
    cache: Path, builder: tuple[subprocess.Popen[str], list[int]]
) -> None:
    process, compilers = builder
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert leftovers(cache) == []
    assert not any(is_running(pid) for pid in compilers)


def test_killed_build_ends_its_compilers(
    cache: Path, builder: tuple[subprocess.Popen[str], list[int]]
) -> None:
    """If the build is killed with SIGKILL, its compilers end and the lock that they inherited is released."""
    process, compilers = builder
    (lock,) = cache.rglob("*.lock")
    assert any(is_running(pid) for pid in compilers)
    process.kill()
    process.wait()
    wait_for(lambda: not any(is_running(pid) for pid in compilers))
    with lock.open() as file:
        wait_for(lambda: is_free(file))


def is_free(file: TextIO) -> bool:
    """Return True if no process holds a lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def installation(folder: Path) -> dict[str, str]:
    """Return the environment of a copy of the checkout whose cocotb package has only an empty library folder."""
    for package in ("cosim", "hw"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(Path(cocotb_tools.__file__).parent, folder / "packages" / "cocotb_tools")
    (folder / "packages" / "cocotb" / "libs").mkdir(parents=True)
    return os.environ | {"PYTHONPATH": f"{folder}:{folder / 'packages'}"}


@pytest.mark.parametrize("variant", ["Variant()", "Variant(waves=True, coverage=True, probe=True)"])
def test_installations_share_simulators(tmp_path: Path, variant: str) -> None:
    """Installations in different folders have equal keys, so they share simulators."""
    show = f"""
from cocotb_tools.config import libs_dir
from cosim.rtl.build import Variant, simulator_key
print(libs_dir)
print(simulator_key("module mla_chip; endmodule", 4, {variant}))
"""
    seen = []
    for name in ("first", "the second"):
        done = subprocess.run(
            [sys.executable, "-c", show],
            cwd=tmp_path,
            env=installation(tmp_path / name),
            capture_output=True,
            text=True,
            check=True,
        )
        seen.append(done.stdout.splitlines())
    (first, key), (second, other_key) = seen
    assert [first, second] == [f"{tmp_path / name}/packages/cocotb/libs" for name in ("first", "the second")]
    assert key == other_key


def test_key_depends_on_all_build_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        simulator_key("module a; endmodule", 4, PLAIN),
        simulator_key("module b; endmodule", 4, PLAIN),
        simulator_key("module a; endmodule", 8, PLAIN),
        *(simulator_key("module a; endmodule", 4, Variant(**{name: True})) for name in vars(PLAIN)),
    ]
    monkeypatch.setenv("CXXFLAGS", "-O0")
    keys.append(simulator_key("module a; endmodule", 4, PLAIN))
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, "exit 0")))
    keys.append(simulator_key("module a; endmodule", 4, PLAIN))
    assert len(set(keys)) == len(keys) == 8


def test_simulator_contains_no_installation_paths() -> None:
    """A simulator also runs if its packages are installed elsewhere or were moved after the build."""
    contents = build_simulator(verilog(), N).read_bytes()
    assert TOP.encode() in contents
    for path in (config.libs_dir, Path(sys.prefix), ROOT):
        assert str(path).encode() not in contents


def test_paths_with_special_characters(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Special characters in the paths of checkout, packages and tools do not reach make and the compilers."""
    folder = tmp_path / "a b$c'd"
    folder.mkdir()
    log = tmp_path / "log"
    compiler = fake_compiler(folder, f'echo "$@" >> {log}; exit 3')
    monkeypatch.setenv("CXX", str(compiler))
    there = {name: folder / name for name in ("libs", "share", "verilator")}
    there["libs"].symlink_to(config.libs_dir)
    there["share"].symlink_to(config.share_dir)
    there["verilator"].symlink_to(toolchain.verilator_root())
    monkeypatch.setattr(config, "libs_dir", there["libs"])
    monkeypatch.setattr(config, "share_dir", there["share"])
    monkeypatch.setattr(toolchain, "verilator_root", lambda: there["verilator"])
    model = folder / "rtl"
    shutil.copytree(build.HERE, model)
    monkeypatch.setattr(build, "HERE", model)
    with pytest.raises(BuildError, match=r"make failed"):
        build_simulator(verilog(), N)
    assert log.read_text() and "a b" not in log.read_text()


def test_waves_and_coverage(tmp_path: Path):
    with open_sim(variant=Variant(waves=True, coverage=True)) as device:
        device.start_waves(tmp_path / "some.fst")
        traffic(device, GO_READ, 20)
        device.stop_waves()
        size = (tmp_path / "some.fst").stat().st_size
        assert size > 1000
        traffic(device, GO_READ, 2000)
        assert (tmp_path / "some.fst").stat().st_size == size
        device.write_coverage(tmp_path / "lines.dat")
        assert "mla_chip" in (tmp_path / "lines.dat").read_text()


def test_plain_build_has_no_waves_or_coverage(tmp_path: Path):
    with open_sim(variant=PLAIN) as device:
        with pytest.raises(InputError, match="waves need a device opened with"):
            device.start_waves(tmp_path / "some.fst")
        with pytest.raises(InputError, match="coverage needs a device opened with"):
            device.write_coverage(tmp_path / "lines.dat")


def test_seed_fills_memories_without_reset():
    def contents(seed: int) -> bytes:
        with open_sim(seed=seed) as device:
            assert device.read_reg(Reg.IDENTITY)
            return device.read_sp(0, 2048).tobytes()

    assert contents(0) == bytes(2048)
    assert contents(5) == contents(5) != contents(6)


def test_bare_array_benchmark_runs():
    assert bare_array_khz(0.1) > 10
