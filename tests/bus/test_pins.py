"""The chip's buses comply with AXI at the pins, as checked with cocotbext-axi."""

from pathlib import Path

import pytest

from cosim.rtl.pin_runner import run_bench
from hw.verilog.writer import convert
from tests.bus.dma_top import CONFIG, DmaTop
from tests.bus.lite_top import LiteTop


@pytest.mark.parametrize("case", ["transactions", "errors"])
def test_load_and_store_are_axi4_masters(tmp_path: Path, case: str) -> None:
    """LOAD and STORE comply with AXI4 as masters."""
    verilog = convert(DmaTop(CONFIG), "dma_top")
    run_bench(tmp_path, verilog=verilog, top="dma_top", module="tests.bus.pins_bench", case=case)


def test_registers_are_an_axi4_lite_slave(tmp_path: Path) -> None:
    """The register interface complies with AXI4-Lite as a slave."""
    verilog = convert(LiteTop(), "lite_top")
    run_bench(tmp_path, verilog=verilog, top="lite_top", module="tests.bus.lite_bench", case="accesses")
