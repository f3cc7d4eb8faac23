"""Product registers are packed into the multipliers only where this does not change the function."""

import json
from pathlib import Path

import pytest
from amaranth.hdl import Module, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.array.systolic import SystolicArray
from hw.boards.board import BOARDS
from hw.boards.ecp5.dsp_packing import register_products
from hw.boards.flow import build_component
from hw.boards.toolchain import YOSYS, Job, run_all
from hw.config import MlaConfig
from hw.verilog.writer import convert


class Product(wiring.Component):
    """Component with a registered product; `how` names the obstacle to packing the register, if there is one."""

    a: In(signed(9))
    b: In(signed(9))
    en: In(1)
    bypass: Out(signed(18))
    result: Out(signed(18))

    def __init__(self, how: str):
        self.how = how
        super().__init__()

    def elaborate(self, platform):
        """Multiply the operands; with "bypass", the unregistered product is an additional output."""
        m = Module()
        product = self.a * self.b
        with m.If(self.en if self.how == "enable" else 1):
            m.d.sync += self.result.eq(product)
        if self.how == "bypass":
            m.d.comb += self.bypass.eq(product)
        return m


def synthesize(folder: Path, top: wiring.Component) -> Path:
    """Synthesize a component and return its netlist."""
    (folder / "top.v").write_text(convert(top, "top"))
    script = "read_verilog -sv top.v; synth_ecp5 -top top -json top.json"
    run_all([Job(tool=YOSYS, arguments=["-p", script], folder=folder, log="yosys.log", title="synthesis")])
    return folder / "top.json"


def cells(netlist: Path, kind: str) -> list[dict]:
    modules = json.loads(netlist.read_text())["modules"].values()
    top = next(m for m in modules if int(m["attributes"].get("top", "0"), 2))
    return [cell for cell in top["cells"].values() if cell["type"] == kind]


def test_product_registers_of_array_are_packed(tmp_path):
    """The product register of each element is packed, and no other register is."""
    path = synthesize(tmp_path, SystolicArray(MlaConfig(n=4, wide=0, sparse=0)))
    before = len(cells(path, "TRELLIS_FF"))
    outputs = {
        bit for cell in cells(path, "MULT18X18D") for i in range(18) for bit in cell["connections"][f"P{i}"]
    }
    behind = {
        cell["connections"]["DI"][0]: cell["connections"]["Q"][0]
        for cell in cells(path, "TRELLIS_FF")
        if cell["connections"]["DI"][0] in outputs
    }
    assert register_products(path) == 16
    assert before - len(cells(path, "TRELLIS_FF")) == len(behind) == 16 * 18
    for cell in cells(path, "MULT18X18D"):
        assert cell["parameters"]["REG_OUTPUT_CLK"] == "CLK0"
        assert {cell["connections"][f"P{i}"][0] for i in range(18)} <= set(behind.values())
        assert (cell["connections"]["CE0"], cell["connections"]["RST0"]) == (["1"], ["0"])
    assert register_products(path) == 0


@pytest.mark.parametrize("how", ["enable", "bypass"])
def test_products_that_cannot_be_packed_are_left_unchanged(tmp_path, how: str):
    path = synthesize(tmp_path, Product(how))
    before = path.read_text()
    assert register_products(path) == 0
    assert path.read_text() == before


def test_packed_register_needs_no_flip_flops(tmp_path):
    """The placed multiplier contains its register: the only remaining flip-flops are those of the scan chain."""
    used = {}
    for how in ("plain", "enable"):
        report = build_component(
            BOARDS["ulx3s-85f"], lambda how=how: Product(how), seeds=1, folder=tmp_path / how
        )
        used[how] = {name: count["used"] for name, count in report.worst.resources.items()}
        assert used[how]["dsp"] == 1
    assert used["enable"]["ff"] - used["plain"]["ff"] == 18
