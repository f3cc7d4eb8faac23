"""A scan chain around a component, so that a component with any number of ports needs only a few pins."""

from typing import Any

from amaranth.hdl import Cat, Elaboratable, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out


class ScanHarness(wiring.Component):
    """Connects every port of a component to a register, and chains these registers to one shift register.

    The chip's buses have hundreds of wires, and a board without a link to a host provides only a few pins. Here a
    register drives each input and a register captures each output. Therefore five pins are enough, synthesis cannot
    remove any logic, and every timing path through a port begins and ends at a register. The harness is for synthesis
    and timing analysis. It is not a link to a host, because the inputs of `inner` change and its clock runs while bits
    are shifted.

    Cost: one flip-flop for each port bit and one LUT for each output bit. Throughput: one bit per cycle.

    Parameters
    ----------
    inner : wiring.Component
        Component in the sync domain; becomes submodule `inner`.

    Members
    -------
    shift : In
        If high, the chain moves by one bit; if low, inputs are held and outputs are captured.
    scan_in : In
        Bit that is shifted into the first input.
    scan_out : Out
        Bit that is shifted out of the last output.
    """

    shift: In(1)
    scan_in: In(1)
    scan_out: Out(1)

    def __init__(self, inner: wiring.Component):
        self.inner = inner
        super().__init__()

    def _ports(self, flow: wiring.Flow) -> list[Value]:
        """Return the ports with the given direction as values, in the order of the signature."""
        members = self.inner.signature.flatten(self.inner)
        return [Value.cast(value) for _, member, value in members if member.flow == flow]

    def elaborate(self, platform: Any) -> Elaboratable:
        """Build one shift register from the inputs of the component, followed by its captured outputs."""
        m = Module()
        m.submodules.inner = self.inner
        inputs, outputs = Cat(*self._ports(In)), Cat(*self._ports(Out))
        # The registers have no reset, because the scan chain is loaded before it is used, and resets would cost
        # routing.
        drive = Signal(len(inputs), reset_less=True)
        seen = Signal(len(outputs), reset_less=True)
        m.d.comb += [inputs.eq(drive), self.scan_out.eq(seen[-1])]
        m.d.sync += seen.eq(outputs)
        with m.If(self.shift):
            m.d.sync += Cat(drive, seen).eq(Cat(self.scan_in, drive, seen))
        return m
