"""The top of a bitstream: clock, reset and pins around the scan harness."""

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, Elaboratable, Instance, Module, Signal, Value
from amaranth.lib import cdc, wiring
from amaranth.lib.wiring import In, Out

from hw.boards.board import Pll
from hw.boards.harness import ScanHarness


class BoardTop(wiring.Component):
    """Runs a component at the frequency a board's PLL makes, with its ports on a scan chain.

    Reset follows the button and the PLL's lock two cycles later. It travels on the FPGA's own network for it (GSR),
    which takes every register to its initial value: by wires it would have to reach 17,000 registers of the chip.

    Parameters
    ----------
    inner : wiring.Component
        Component under the harness, see `ScanHarness`.
    pll : Pll
        Dividers of the clock.

    Members
    -------
    clk_in, rst_in : In
        Oscillator and button (high: reset).
    scan_in, shift : In, scan_out : Out
        The scan chain, through a register at each pin.
    """

    clk_in: In(1)
    rst_in: In(1)
    scan_in: In(1)
    shift: In(1)
    scan_out: Out(1)

    def __init__(self, inner: wiring.Component, pll: Pll):
        self.inner = inner
        self.pll = pll
        super().__init__()

    def _pll(self, locked: Signal) -> Instance:
        """The PLL from `clk_in` to the sync clock."""
        # As Lattice's own tools set them for clocks of this order.
        analog = {
            "ICP_CURRENT": "12",
            "LPF_RESISTOR": "8",
            "MFG_ENABLE_FILTEROPAMP": "1",
            "MFG_GMCREF_SEL": "2",
        }
        return Instance(
            "EHXPLLL",
            *[("a", name, value) for name, value in analog.items()],
            p_FEEDBK_PATH="CLKOP",
            p_CLKI_DIV=self.pll.reference,
            p_CLKFB_DIV=self.pll.feedback,
            p_CLKOP_DIV=self.pll.output,
            p_CLKOP_ENABLE="ENABLED",
            p_CLKOP_CPHASE=self.pll.output // 2 - 1,
            p_CLKOP_FPHASE=0,
            i_CLKI=self.clk_in,
            i_CLKFB=ClockSignal(),
            i_RST=0,
            i_STDBY=0,
            i_PHASESEL0=0,
            i_PHASESEL1=0,
            i_PHASEDIR=0,
            i_PHASESTEP=0,
            i_PHASELOADREG=0,
            i_PLLWAKESYNC=0,
            i_ENCLKOP=0,
            o_CLKOP=ClockSignal(),
            o_LOCK=locked,
        )

    def _reset(self, m: Module, run: Value) -> None:
        """Global reset while `run` is low; the registers that make it are not subject to it."""
        for stage in range(2):
            released = Signal(name=f"released_{stage}")
            m.submodules[f"reset_{stage}"] = Instance(
                "FD1S3AX", p_GSR="DISABLED", i_CK=ClockSignal(), i_D=run, o_Q=released
            )
            run = released
        m.submodules.reset = Instance("SGSR", i_CLK=ClockSignal(), i_GSR=run)

    def elaborate(self, platform: Any) -> Elaboratable:
        """Clock and reset, then the harness."""
        m = Module()
        m.domains.sync = ClockDomain(reset_less=True)
        locked = Signal()
        m.submodules.pll = self._pll(locked)
        self._reset(m, locked & ~self.rst_in)
        m.submodules.harness = harness = ScanHarness(self.inner)
        shift, scan_in = Signal(), Signal()
        m.submodules.shift_sync = cdc.FFSynchronizer(self.shift, shift)
        m.submodules.scan_in_sync = cdc.FFSynchronizer(self.scan_in, scan_in)
        m.d.comb += [harness.shift.eq(shift), harness.scan_in.eq(scan_in)]
        m.d.sync += self.scan_out.eq(harness.scan_out)
        return m
