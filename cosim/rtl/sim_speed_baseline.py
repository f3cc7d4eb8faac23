"""Baseline of simulation speed: a bare systolic array driven from C++, without cocotb or VPI."""

import os
import shutil
import subprocess
from pathlib import Path

from cosim.rtl import cache, toolchain
from cosim.rtl.runner import run_tool

HERE = Path(__file__).parent
VERILATOR_FLAGS = ("--cc", "--exe", "-O3", "--no-timing", "-Wno-fatal", "--quiet", "--prefix", "Vbare")
MAKE_FLAGS = ("OPT_FAST=-O3", "OPT_GLOBAL=-O3")  # frozen like the Verilog; the chip's flags may be tuned


def bare_array_khz(seconds: float = 2.0) -> float:
    """Return the simulation speed of the bare array in cycles per millisecond, measured for about `seconds` of wall
    time.

    The simulator of the array is built on first use. The result is meaningful only relative to another measurement on
    the same computer at the same time.
    """
    done = subprocess.run([_binary(), str(seconds)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def _binary() -> Path:
    sources = [HERE / "bare_array.v", HERE / "bare_array.cpp"]
    texts = [path.read_text() for path in sources]
    key = cache.cache_key([*texts, *VERILATOR_FLAGS, *MAKE_FLAGS, *toolchain.versions()])

    def make(folder: Path, lock: int) -> None:
        work = folder / "work"
        work.mkdir()
        for path, text in zip(sources, texts, strict=True):
            (work / path.name).write_text(text)
        env = os.environ | toolchain.verilator_variables(work)
        verilate = [str(toolchain.verilator()), *VERILATOR_FLAGS, "--top-module", "bare_array"]
        names = [path.name for path in sources]
        run_tool([*verilate, "-Mdir", str(work), *names], cwd=work, env=env, lock=lock)
        make_it = [toolchain.make(), "-s", "-j2", "-f", "Vbare.mk"]
        run_tool([*make_it, *toolchain.make_variables(), *MAKE_FLAGS], cwd=work, env=env, lock=lock)
        (work / "Vbare").rename(folder / "bare_array")
        shutil.rmtree(work)

    return cache.cached("sim_speed_baseline", key, make) / "bare_array"
