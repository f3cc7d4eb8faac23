"""The testbench reports contract violations and stuck streams, and names the waveforms of failing tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import Out

from tests.support.testbench import Testbench

ROOT = Path(__file__).parents[2]


class FaultySource(wiring.Component):
    """Stream source that violates the stream contract in one of several ways.

    Parameters
    ----------
    fault : str
        "drop" withdraws the payload, "change" replaces it, "silent" never offers one, "" is correct.
    """

    o: Out(stream.Signature(8))

    def __init__(self, fault: str):
        self._fault = fault
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        count = Signal(8)
        m.d.sync += count.eq(count + 1)
        m.d.comb += self.o.valid.eq(
            0 if self._fault == "silent" else (count != 3) if self._fault == "drop" else 1
        )
        m.d.comb += self.o.payload.eq(count if self._fault == "change" else 7)
        return m


async def wait(ctx) -> None:
    """Wait a few cycles without accepting a payload."""
    for _ in range(8):
        await ctx.tick()


@pytest.mark.parametrize(
    ("fault", "message"),
    [("drop", "stream o: valid dropped before the transfer"), ("change", "stream o: payload changed")],
)
def test_contract_violations_fail(fault: str, message: str) -> None:
    testbench = Testbench(FaultySource(fault))
    testbench.check_contract(testbench.dut.o)
    with pytest.raises(AssertionError, match=message):
        testbench.simulate(wait)


@pytest.mark.parametrize(("fault", "void"), [("", 0), ("drop", 1), ("change", 1)])
def test_kept_or_void_contract_passes(fault: str, void: int) -> None:
    testbench = Testbench(FaultySource(fault))
    testbench.check_contract(testbench.dut.o, void=void)
    testbench.simulate(wait)


def test_stuck_stream_is_named() -> None:
    testbench = Testbench(FaultySource("silent"), patience=5)

    async def receive(ctx) -> None:
        await testbench.get(ctx, testbench.dut.o)

    with pytest.raises(AssertionError, match="stream o is stuck: not valid for 5 cycles"):
        testbench.simulate(receive)


def test_endless_simulation_names_waiting_streams() -> None:
    async def forever(ctx) -> None:
        while True:
            await ctx.tick()

    with pytest.raises(AssertionError, match=r"no end after 50 cycles; waiting streams: o: valid 1, ready 0"):
        Testbench(FaultySource(""), limit=50).simulate(forever)


@pytest.mark.parametrize("keep_all", [False, True])
def test_names_of_waveforms(tmp_path: Path, keep_all: bool) -> None:
    (tmp_path / "test_waves.py").write_text(
        "from tests.block.test_testbench import FaultySource, wait\n"
        "from tests.support.testbench import Testbench\n"
        "def test_good():\n    Testbench(FaultySource('')).simulate(wait)\n"
        "def test_bad():\n    Testbench(FaultySource('')).simulate(wait)\n    assert False\n"
    )
    options = ["--waveforms", str(tmp_path / "waves"), *["--waveforms-all"] * keep_all]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        *options,
        "test_waves.py",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    out = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    ).stdout
    bad, good = (tmp_path / "waves" / f"test_waves.py-test_{name}.vcd" for name in ("bad", "good"))
    assert bad.read_text().startswith("$") and str(bad) in out and "1 failed, 1 passed" in out
    assert good.exists() == keep_all
