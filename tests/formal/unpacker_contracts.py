"""Contracts of the expansion of packed weights as circuits with assertions."""

from abc import abstractmethod
from types import ModuleType

from amaranth.hdl import Array, Assert, Assume, Cat, Const, Module, Mux, Signal, Value

from hw.config import MlaConfig
from hw.units.load import unpacker, writer
from tests.formal.axi_contracts import Contract, constant, stable

CONFIG = MlaConfig(n=4)
#: The same machine with beats of two rows.
WIDE = MlaConfig(n=4, bus_bytes=8)
#: Largest number of beats of a line in a contract.
BEATS = 2
_LANES = range(CONFIG.n)
#: Cycles within which a group follows the one before it, or the last beat, if groups are accepted.
_WAIT = 5


class LineContract(Contract):
    """Contract of a single line of at most BEATS beats, whose fields are any that the receiver may send.

    Parameters
    ----------
    source : module
        `hw.units.load.unpacker`, or a mutant of it.
    config : MlaConfig
        Machine, with four lanes.
    """

    def __init__(self, source: ModuleType = unpacker, config: MlaConfig = CONFIG):
        self._width = config.beat_bytes
        self._bytes = BEATS * self._width  # of the longest line
        super().__init__(source.Unpacker(config))

    def claim(self, m: Module, block: unpacker.Unpacker) -> None:
        beat = block.beat.payload
        accepted = block.beat.valid & block.beat.ready
        sent, ended = Signal(range(BEATS + 1)), Signal()
        about = Cat(beat.start, beat.rest, beat.groups, beat.dst, beat.step, beat.tag, beat.last)
        first = Signal.like(about)
        line = Signal.like(about)
        m.d.comb += [
            line.eq(Mux(sent == 0, about, first)),
            Assume(~block.clear),
            Assume(~block.beat.valid | ~ended),
            Assume(~block.beat.valid | (about == line)),
            Assume(beat.rest < self._bytes),
            # The last byte is in the last beat, and no other beat is the last one.
            Assume(~block.beat.valid | (beat.end == (beat.start + beat.rest < self._width * (sent + 1)))),
            Assume(
                ~(block.beat.valid & beat.end) | (beat.stop == (beat.start + beat.rest)[: len(beat.stop)])
            ),
            Assume(~block.beat.valid | (sent < BEATS)),
        ]
        stable(m, "beat", block.beat, Assume)
        data = Signal(8 * self._bytes)
        with m.If(accepted):
            m.d.sync += [
                first.eq(about),
                sent.eq(sent + 1),
                ended.eq(beat.end),
                data.word_select(sent, 8 * self._width).eq(beat.data),
            ]
        self.check(m, block, data, ended)

    @abstractmethod
    def check(self, m: Module, block: unpacker.Unpacker, data: Signal, ended: Signal) -> None:
        """Add the assertions; `data` holds the beats so far, `ended` is set after the last one."""


class CountContract(LineContract):
    """A line ends with its number of groups and its number of bytes, neither more nor fewer."""

    def check(self, m: Module, block: unpacker.Unpacker, data: Signal, ended: Signal) -> None:
        group, beat = block.group.payload, block.beat.payload
        accepted = block.group.valid & block.group.ready
        groups, kept, waits = Signal(17), Signal(8), Signal(range(_WAIT + 1))
        wanted, rest = Signal(17), Signal(8)
        with m.If(block.beat.valid & block.beat.ready):
            m.d.sync += [wanted.eq(beat.groups + 1), rest.eq(beat.rest + 1)]
        with m.If(accepted):
            m.d.sync += [groups.eq(groups + ~group.drops), kept.eq(kept + group.kept)]
        with m.If(accepted | ~ended):
            m.d.sync += waits.eq(0)
        with m.Elif(block.group.ready & (waits != _WAIT)):
            m.d.sync += waits.eq(waits + 1)
        m.d.comb += [
            Assert(groups <= wanted),
            Assert(kept <= rest),
            Assert(~(ended & ~block.active) | ((groups == wanted) & (kept == rest))),
            # The line goes on while groups are accepted.
            Assert(~block.active | (waits < _WAIT)),
        ]


class ValueContract(LineContract):
    """Each group has the address and the bytes that the definition in docs/machine.md (LOAD) gives."""

    def check(self, m: Module, block: unpacker.Unpacker, data: Signal, ended: Signal) -> None:
        group, beat = block.group.payload, block.beat.payload
        place, address, step, end = Signal(8), Signal(32), Signal.like(beat.step), Signal(8)
        begun = Signal()
        with m.If(block.beat.valid & block.beat.ready & ~begun):
            m.d.sync += [
                begun.eq(1),
                place.eq(beat.start),
                address.eq(beat.dst),
                step.eq(beat.step),
                end.eq(beat.start + beat.rest + 1),
            ]
        inside = Cat(Mux(end > byte, data.word_select(byte, 8), 0) for byte in range(self._bytes))
        left = Signal(8 * self._bytes)
        m.d.comb += left.eq(inside >> (place[: self._bytes.bit_length()] << 3))
        header, left = left[:8], left[8:]
        sizes, rows = [], []
        for half in (header[:4], header[4:]):
            width = Mux(half[3], 8, half[:3])
            size = Signal(3, name=f"size_{len(rows)}")
            m.d.comb += size.eq((width * CONFIG.n + 7) >> 3)
            rows.append(Cat(_lane(left, width, lane) for lane in _LANES))
            sizes.append(size)
            left = left >> (size << 3)
        with m.If(block.group.valid & block.group.ready & ~group.drops):
            m.d.sync += [place.eq(place + 1 + sizes[0] + sizes[1]), address.eq(address + step)]
        checked = block.group.valid & ~group.drops
        m.d.comb += [
            Assert(~checked | (group.addr == address[: len(group.addr)])),
            Assert(~checked | (Cat(*group.rows) == Cat(*rows))),
        ]


class HeldContract(LineContract):
    """A group that is not accepted remains, unchanged."""

    def check(self, m: Module, block: unpacker.Unpacker, data: Signal, ended: Signal) -> None:
        stable(m, "group", block.group, Assert)


class WriteContract(Contract):
    """Items for the scratchpad are written once each, in order and unchanged, however long the scratchpad refuses
    writes. A command is done once, after the write of its last item has been granted. `expanded` and `kept` count
    exactly the accepted writes, in the cycle after them.

    Parameters
    ----------
    source : module
        `hw.units.load.writer`, or a mutant of it.
    config : MlaConfig
        Machine.
    """

    def __init__(self, source: ModuleType = writer, config: MlaConfig = CONFIG):
        self._wide = config.beat_bytes > config.n
        super().__init__(source.LoadWriter(config), {"pick": 3})

    def claim(self, m: Module, block: writer.LoadWriter) -> None:
        item, port, pick = block.item.payload, block.sp_write, constant(m, self.pick)
        names = ("data", "next", "pair", "mask", "addr", *(["next_mask"] if self._wide else []))
        m.d.comb += [
            Assume(~block.clear),
            Assume(~block.item.valid | ~(item.slot | item.collect | item.bad)),
        ]
        stable(m, "item", block.item, Assume)
        arrives, writes = block.item.valid & block.item.ready, port.valid & port.ready
        # A write waits in a register of the scratchpad until it is granted; an empty register accepts a write.
        waits = Signal()
        m.d.sync += waits.eq(Mux(port.ready, port.valid, waits))
        m.d.comb += [Assume(port.waits == waits), Assume(port.ready | waits)]
        arrived, written, ends, done = (
            Signal(4, name=name) for name in ("arrived", "written", "ends", "done")
        )
        m.d.sync += [
            arrived.eq(arrived + arrives),
            written.eq(written + writes),
            ends.eq(ends + (arrives & item.end)),
            done.eq(done + block.done),
        ]
        picked = Signal(item.shape())
        with m.If(arrives & (arrived == pick)):
            m.d.sync += picked.eq(item)
        with m.If(writes & (written == pick)):
            m.d.comb += [Assert(getattr(port, name) == getattr(picked, name)) for name in names]
        expanded, counted, kept = Signal(), Signal(), Signal.like(item.kept)
        # Of beats of two rows, only those that are groups of packed weights are expanded.
        counts = Signal()
        if self._wide:
            groups = Signal(1 << len(pick))
            with m.If(arrives):
                m.d.sync += groups.bit_select(arrived[: len(pick)], 1).eq(item.group)
            m.d.comb += counts.eq(writes & groups.bit_select(written[: len(pick)], 1))
        else:
            m.d.comb += counts.eq(writes & port.pair)
        m.d.sync += [
            expanded.eq(counts),
            counted.eq(writes & (written == pick)),
            kept.eq(picked.kept),
        ]
        m.d.comb += [
            Assert(block.expanded == expanded),
            Assert(~counted | (block.kept == kept)),
            Assert(written <= arrived),
            Assert(block.busy | (written == arrived)),
            Assert(done <= ends),
            Assert(block.busy | (done + block.done == ends)),
        ]


def _lane(bits: Value, width: Value, lane: int) -> Value:
    """Return the signed number of `width` bits at the position of a lane, as a byte; 0 if it has no bits."""
    cases = [Const(0, 8)]
    for each in range(1, 9):
        value = bits[each * lane : each * (lane + 1)]
        cases.append(Cat(value, value[-1].replicate(8 - each)))
    return Array(cases)[width]


CONTRACTS = {"count": CountContract, "value": ValueContract, "held": HeldContract}
