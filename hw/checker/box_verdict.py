"""Last stage of both checkers, which compares bounding boxes with their address spaces."""

from abc import ABC, abstractmethod

from amaranth.hdl import Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Member, Out

from hw.checker.values import AddressSpace, address_bits
from hw.config import MlaConfig

#: Width of an end of a box in bits.
SUM_BITS = 52


class BoxVerdict(wiring.Component, ABC):
    """Records the first box, in the order of checks, that is outside its address space; each checker has a subclass.

    Latency: 1 cycle. Throughput: one box per cycle, unless the subclass states otherwise.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    access : dict of str to Member
        Ports of the subclass for the permissions of DRAM accesses.

    Members
    -------
    start : In
        Discard the results of the previous command.
    valid : In
        High if the box at the inputs is valid.
    kind, order : In
        Address space of the box, and index of its stream among the streams of this space.
    low, high : In
        Ends of the bounding box.
    fail, fail_kind, fail_address : Out
        High if a box is outside its space; the space and the offending address of the first of these boxes.
    """

    def __init__(self, config: MlaConfig, access: dict[str, Member]):
        self.config = config
        super().__init__(
            {
                "start": In(1),
                "valid": In(1),
                "kind": In(AddressSpace.BITS),
                "order": In(2),
                "low": In(signed(SUM_BITS)),
                "high": In(signed(SUM_BITS)),
                **access,
                "fail": Out(1),
                "fail_kind": Out(AddressSpace.BITS),
                "fail_address": Out(32),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        beyond, outside, below = Signal(SUM_BITS), Signal(), Signal()
        fail_order = Signal(2)
        earlier = Signal()
        m.d.comb += below.eq(self.low[-1])
        with m.Switch(self.kind):
            for kind, bits in address_bits(self.config).items():
                with m.Case(kind):
                    m.d.comb += beyond.eq(self.high >> bits)
        reaches, permitted = self._judge(m, beyond.any())
        dram = self.kind[2:] == AddressSpace.DRAM_READ >> 2
        m.d.comb += [
            outside.eq(Mux(dram, below | ~permitted, below | reaches)),
            earlier.eq(
                (self.kind[2:] < self.fail_kind[2:])
                | ((self.kind[2:] == self.fail_kind[2:]) & (self.order < fail_order))
            ),
        ]
        with m.If(self.start):
            m.d.sync += self.fail.eq(0)
        with m.Elif(self.valid & outside & (~self.fail | earlier)):
            m.d.sync += [
                self.fail.eq(1),
                self.fail_kind.eq(self.kind),
                fail_order.eq(self.order),
                self.fail_address.eq(Mux(below | dram, self.low, self.high)),
            ]
        return m

    @abstractmethod
    def _judge(self, m: Module, reaches: Value) -> tuple[Value, Value]:
        """Return two values: `reaches`, and a value that is high if a window permits the DRAM access.

        `reaches` is high if the box exceeds its on-chip space.
        """
