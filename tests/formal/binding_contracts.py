"""Contracts of atomic binding: no dispatch combines parts of two tables."""

from amaranth.hdl import Assert, Assume, Module, Signal

from hw.config import MlaConfig
from hw.control.dispatch import Dispatch
from hw.control.dispatch_table import DispatchTable
from hw.control.layouts import ENTRY_LAYOUT
from tests.formal.axi_contracts import Contract

_ENTRIES = 2
CONFIG = MlaConfig(n=4, opcodes=8, candidates=2)


class TableContract(Contract):
    """Contract of the binding table.

    For any writes and commits of the host, each look-up returns the entry as of the last commit, and no commit takes
    effect during a dispatch. The shadow table retains every write. One arbitrary entry represents all entries.
    """

    def __init__(self):
        super().__init__(DispatchTable(entries=_ENTRIES))

    def claim(self, m: Module, block: DispatchTable) -> None:
        """Track one entry of both tables, based only on the host's operations."""
        op = block.op
        later, pick = Signal(), Signal(1)
        in_force, shadow = Signal(ENTRY_LAYOUT), Signal(ENTRY_LAYOUT)
        looked, expected, held = Signal(), Signal(ENTRY_LAYOUT), Signal()
        commit = Signal()
        # The address in the first cycle is unconstrained, so the entry is arbitrary.
        m.d.sync += later.eq(1)
        with m.If(~later):
            m.d.sync += pick.eq(block.addr)
        m.d.comb += [commit.eq(op.valid & op.ready & op.p.commit)]
        with m.If(commit):
            m.d.sync += in_force.eq(shadow)
        with m.Elif(op.valid & op.ready & (op.p.index == pick)):
            m.d.sync += shadow.eq(op.p.entry)
        m.d.sync += [
            looked.eq(later & block.ready & block.en & (block.addr == pick)),
            expected.eq(in_force),
            held.eq(block.hold),
        ]
        m.d.comb += [
            Assume(~block.en | (block.hold & block.ready)),
            Assume(later | ~op.valid),
            Assert(~looked | (block.entry.as_value() == expected.as_value())),
            Assert(~(commit & block.hold)),
        ]


class DispatchContract(Contract):
    """Contract of dispatch: `hold` is high from the first look-up to the last.

    A later candidate is looked up only if `hold` has been high since the look-up of the first candidate.
    """

    def __init__(self):
        super().__init__(Dispatch(CONFIG))

    def claim(self, m: Module, block: Dispatch) -> None:
        """Track the period in which `hold` is high."""
        run, first = Signal(), Signal()
        m.d.comb += [
            first.eq(block.table_addr[0] == 0),
            Assert(~block.table_en | block.table_hold),
            Assert(~block.table_en | first | run),
        ]
        m.d.sync += run.eq(block.table_hold & (run | block.table_en & first))


CONTRACTS = {"table": TableContract, "dispatch": DispatchContract}
