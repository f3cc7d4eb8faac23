"""Passes that speed up the simulation of emitted Verilog move logic only where this does not change the function."""

import pytest
from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.verilog.sim_clocked import clocked_registers
from hw.verilog.sim_gated import gated_logic
from hw.verilog.writer import convert


class GatedAccumulator(wiring.Component):
    """Multiply-accumulate unit with an enable; with `shared`, the product is also an output."""

    def __init__(self, *, shared: bool):
        self._shared = shared
        super().__init__({"on": In(1), "a": In(8), "b": In(8), "held": Out(16), "product": Out(16)})

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        product = Signal(16)
        m.d.comb += product.eq(self.a * self.b)
        with m.If(self.on):
            m.d.sync += self.held.eq(self.held + product)
        if self._shared:
            m.d.comb += self.product.eq(product)
        return m


class TwoRegisters(wiring.Component):
    """Two registers in series."""

    on: In(1)
    value: In(4)
    first: Out(4)
    second: Out(4, init=3)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.d.sync += [self.first.eq(Mux(self.on, self.value, 0)), self.second.eq(self.first)]
        return m


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def test_register_keeps_its_conditions_and_reset() -> None:
    text = convert(GatedAccumulator(shared=False), "top", fast=True)
    assert "always @*" not in text
    found = lines(text)
    start = found.index("if (rst) begin")
    assert found[start + 1] == "held <= 16'h0000;"
    assert found[start + 2 : start + 4] == ["end else", "if (on) begin"]


def test_plain_verilog_is_unchanged() -> None:
    text = convert(GatedAccumulator(shared=False), "top")
    assert "always @*" in text
    assert text.count("endmodule") == 1


def test_logic_used_under_one_condition_moves_into_it() -> None:
    text = """module top(clk, on, a, y);
  wire [7:0] \\$1 ;
  reg [7:0] \\$2 ;
  wire [7:0] unread;
  input [7:0] a;
  wire [7:0] a;
  input clk;
  wire clk;
  input on;
  wire on;
  output [7:0] y;
  reg [7:0] y = 8'h00;
  reg [7:0] z = 8'h00;
  assign \\$1  = a + z;
  assign unread = a - z;
  always @* begin
    \\$2  = y;
    if (on) begin
      \\$2  = \\$1 ;
    end
  end
  always @(posedge clk)
    y <= \\$2 ;
endmodule
"""
    text = text.replace("  always @* begin\n", "  always @* begin\n    if (\\$auto$1 ) begin end\n")
    found = lines(gated_logic(clocked_registers(text)))
    guard = found.index("if (on) begin")
    assert found[guard - 1] == "always @(posedge clk) begin"
    assert found[guard + 1 : guard + 3] == ["\\$1  = a + z;", "y <= \\$1 ;"]
    assert "reg [7:0] \\$1 ;" in found
    assert not any(line.startswith("assign") for line in found)


@pytest.mark.parametrize("shared", [False, True])
def test_logic_used_elsewhere_stays(shared: bool) -> None:
    text = convert(GatedAccumulator(shared=shared), "top", fast=True)
    products = [line for line in lines(text) if " * " in line]
    assert len(products) == 1
    assert products[0].startswith("assign") or not shared


def test_all_registers_are_kept() -> None:
    text = convert(TwoRegisters(), "top", fast=True)
    for name in ("first", "second"):
        assert any(line.startswith(f"{name} <= ") for line in lines(text))
    assert "second <= 4'h3;" in lines(text)
