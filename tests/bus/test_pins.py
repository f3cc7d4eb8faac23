"""LOAD and STORE at the pins, against cocotbext-axi as the slave."""

from pathlib import Path

import pytest
from cocotb_tools.check_results import get_results

from hw.emit import convert
from tests.bus.dma_top import CONFIG, DmaTop
from tests.bus.pins_runner import PinRunner


@pytest.mark.parametrize("case", ["transactions", "errors"])
def test_pins(tmp_path: Path, case: str) -> None:
    runner = PinRunner()
    folder = runner.build_model(convert(DmaTop(CONFIG), "dma_top"), "dma_top")
    results = runner.test(
        test_module="tests.bus.pins_bench",
        hdl_toplevel="dma_top",
        hdl_toplevel_lang="verilog",
        testcase=case,
        build_dir=folder,
        test_dir=tmp_path,
        results_xml=str(tmp_path / "results.xml"),
        extra_env={"COCOTB_LOG_LEVEL": "WARNING"},
    )
    tests, failures = get_results(results)
    assert (tests, failures) == (1, 0)
