"""The chip's buses comply with AXI at the pins, as checked with cocotbext-axi."""

from dataclasses import replace
from pathlib import Path

import pytest

from cosim.rtl.pin_runner import run_bench
from hw.verilog.writer import convert
from tests.bus.dma_top import BUS, CONFIG, DmaTop
from tests.bus.lite_top import LiteTop


@pytest.mark.parametrize("bus", [8, 16])
@pytest.mark.parametrize("case", ["transactions", "errors"])
def test_load_and_store_are_axi4_masters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, bus: int
) -> None:
    """LOAD and STORE comply with AXI4 as masters, with beats of one row and of two rows."""
    monkeypatch.setenv(BUS, str(bus))
    if bus != CONFIG.n:
        monkeypatch.setenv("PIN_TRANSACTIONS", "1500")
    verilog = convert(DmaTop(replace(CONFIG, bus_bytes=bus)), "dma_top")
    run_bench(tmp_path, verilog=verilog, top="dma_top", module="tests.bus.pins_bench", case=case)


def test_registers_are_an_axi4_lite_slave(tmp_path: Path) -> None:
    """The register interface complies with AXI4-Lite as a slave."""
    verilog = convert(LiteTop(), "lite_top")
    run_bench(tmp_path, verilog=verilog, top="lite_top", module="tests.bus.lite_bench", case="accesses")
