"""Top level of an FPGA design: clock, reset and pins around the scan harness."""

from typing import Any

from amaranth.hdl import ClockDomain, Elaboratable, Module, Signal
from amaranth.lib import cdc, wiring
from amaranth.lib.wiring import In, Out

from hw.boards.fpga_device import FpgaDevice
from hw.boards.harness import ScanHarness


class BoardTop(wiring.Component):
    """Runs a component with the clock that the board's FPGA generates, and connects its ports to a scan chain.

    Parameters
    ----------
    inner : wiring.Component
        Component inside the harness, see `ScanHarness`.
    device : FpgaDevice
        Device of the board, which generates clock and reset.

    Members
    -------
    clk_in, rst_in : In
        Pins of the oscillator and of the button (high: reset).
    scan_in, shift : In, scan_out : Out
        Pins of the scan chain, each registered.
    """

    clk_in: In(1)
    rst_in: In(1)
    scan_in: In(1)
    shift: In(1)
    scan_out: Out(1)

    def __init__(self, inner: wiring.Component, device: FpgaDevice):
        self.inner = inner
        self.device = device
        super().__init__()

    def elaborate(self, platform: Any) -> Elaboratable:
        """Add the clock, the reset and the harness."""
        m = Module()
        m.domains.sync = ClockDomain(reset_less=True)
        self.device.clock_and_reset(m, self.clk_in, self.rst_in)
        m.submodules.harness = harness = ScanHarness(self.inner)
        shift, scan_in = Signal(), Signal()
        m.submodules.shift_sync = cdc.FFSynchronizer(self.shift, shift)
        m.submodules.scan_in_sync = cdc.FFSynchronizer(self.scan_in, scan_in)
        m.d.comb += [harness.shift.eq(shift), harness.scan_in.eq(scan_in)]
        m.d.sync += self.scan_out.eq(harness.scan_out)
        return m
