"""Serial checker, which checks the bounding boxes and rules of a command, one field per cycle."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from hw.checker.serial.box import BoundingBox
from hw.checker.serial.field_store import FieldStore
from hw.checker.serial.flags import check_flags, early_rules, weigh_tile
from hw.checker.serial.layouts import ADDRESS_BITS, CODE_LAYOUT, Early, Late, Width
from hw.checker.serial.microcode import programs
from hw.checker.serial.verdict import SerialVerdict
from hw.checker.values import INCREMENTS_LAYOUT, AddressSpace
from hw.config import MlaConfig
from hw.isa.commands import FIELD_INDEX_BITS, UNIT_FIELDS
from hw.isa.enums import Unit
from hw.layouts import limit_ports, windows_layout

#: Number of bits of each width.
_WIDTHS = {Width.W4: 4, Width.W6: 6, Width.W8: 8, Width.W9: 9, Width.W12: 12, Width.W16: 16, Width.W20: 20}


class SerialChecker(wiring.Component):
    """Checks the same conditions as `ParallelChecker` and `hw.checker.rules`, with the fields in a memory and a single
    multiplier.

    A micro-program for each unit reads one field per cycle. Its lines pass through eight stages. Stage 1 fetches the
    line, stage 2 reads the field, stages 3 and 4 extend the field to 32 bits, and stage 5 updates operands, packed
    words, rules and the tile size. Stage 6 forms the product, stage 7 adds the product to the ends of the box, and
    stage 8 operates on the ends.

    Latency: one cycle for each line plus eight cycles, in total about 60 cycles for LOAD, 45 for STORE, 125 for MATRIX
    (depthwise 210; 9 more with `config.wide`, 11 with `config.sparse`) and 140 for FUSE (165 with B and a residual).
    Throughput: one command at a time.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    field_w_en, field_w_field, field_w_data, field_clear : In
        Field write port, as in `ConfigRegisters`; writes are not allowed during a check.
    start, unit : In
        `start` begins the check of the command of `unit`; `unit` must be held until `done`.
    windows : In, limit : Out
        `limit` requests the limit of a DRAM window; `windows` returns it, valid in stage 7, with the permissions of all
        windows.
    clear : In
        Abandon the check in progress.
    done : Out
        One-cycle pulse when the result is valid.
    bad, fail, fail_kind, fail_address : Out
        `bad`: high if the command violates a rule; `fail`: high if a box exceeds its space; see `ParallelChecker`.
    increments : Out
        Derived walk increments, valid from `done` to the next `start`.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__(
            {
                "field_w_en": In(1),
                "field_w_field": In(2 + FIELD_INDEX_BITS),
                "field_w_data": In(32),
                "field_clear": In(len(Unit)),
                "start": In(1),
                "unit": In(2),
                "windows": In(windows_layout(config)),
                **limit_ports(config, requests=True),
                "clear": In(1),
                "done": Out(1),
                "bad": Out(1),
                "fail": Out(1),
                "fail_kind": Out(AddressSpace.BITS),
                "fail_address": Out(32),
                "increments": Out(INCREMENTS_LAYOUT),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        flush, jump, target = Signal(), Signal(), Signal(ADDRESS_BITS)
        words, entries = programs(self.config)
        lines = [self._fetch(m, words, entries, flush, jump, target)]
        for i in range(2, 6):
            line = Signal(CODE_LAYOUT, name=f"line{i}", reset_less=True)
            m.d.sync += line.eq(lines[-1])
            lines.append(line)
        value, absent = self._value(m, words, entries, lines)
        m.submodules.box = box = BoundingBox(self.config)
        first, second = Signal(32), Signal(32)
        flags, taps, group = check_flags(m, first, second, box.quotient, self.config)
        met, line = Signal(), lines[4]
        condition = flags.bit_select(lines[3].flag, 1) ^ lines[3].unless
        m.d.sync += met.eq(self._live(m, flush) & condition & ~flush)
        with m.If(met & (line.early == Early.FIRST_WORD)):
            default = Mux(absent & (self.unit == Unit.MATRIX), _default(Unit.MATRIX, "word"), 0)
            m.d.sync += first.eq(value | default)
        with m.If(met & (line.early == Early.SECOND_WORD)):
            m.d.sync += second.eq(value | Mux(absent, _default(Unit.FUSE, "stage"), 0))
        tile = weigh_tile(m, met, line, value, taps, group, self.config)
        broken, refused = early_rules(m, met, line, value, self.config), Signal()
        with m.If(self.start):
            m.d.sync += refused.eq(0)
        with m.Elif(broken):
            m.d.sync += refused.eq(1)
        ended = box.late_met & (box.late.late == Late.END)
        m.d.comb += [
            jump.eq(met & (line.early == Early.JUMP)),
            target.eq(line.target),
            box.line.eq(line),
            box.met.eq(met),
            box.value.eq(value),
            box.tile.eq(tile),
            box.start.eq(self.start),
            box.windows.eq(self.windows),
            self.limit.eq(line.target),
            box.clear.eq(self.clear),
            flush.eq(self.clear | ended),
            self.increments.eq(box.increments),
            self.bad.eq(refused | box.bad),
        ]
        m.d.sync += self.done.eq(ended & ~self.clear)
        self._verdict(m, box)
        return m

    def _fetch(
        self, m: Module, words: list[int], entries: dict[Unit, int], flush: Value, jump: Value, target: Value
    ) -> data.View:
        """Step through the lines of a program, and return the line in stage 1."""
        m.submodules.code = code = memory.Memory(
            shape=unsigned(CODE_LAYOUT.size),
            depth=1 << ADDRESS_BITS,
            init=words,
            attrs={"rom_style": "block"},
        )
        port = code.read_port()
        next_line, self._running = Signal(ADDRESS_BITS), Signal()
        m.d.comb += port.addr.eq(next_line)
        with m.If(self.start):
            m.d.sync += self._running.eq(1)
            with m.Switch(self.unit):
                for unit in Unit:
                    with m.Case(int(unit)):
                        m.d.sync += next_line.eq(entries[unit])
        with m.Else():
            m.d.sync += next_line.eq(Mux(jump, target, next_line + 1))
        with m.If(flush):
            m.d.sync += self._running.eq(0)
        return data.View(CODE_LAYOUT, port.data)

    def _live(self, m: Module, flush: Value) -> Signal:
        """Return a signal that is high if the line in stage 4 belongs to the check in progress."""
        live = self._running
        for i in range(1, 5):
            later = Signal(name=f"live{i}")
            m.d.sync += later.eq(live & ~flush)
            live = later
        return live

    def _value(
        self, m: Module, words: list[int], entries: dict[Unit, int], lines: list[data.View]
    ) -> tuple[Signal, Signal]:
        """Return the field or literal of the line in stage 5, and a signal that is high if it is a field with its
        default value.
        """
        m.submodules.fields = fields = FieldStore(_read(words, entries))
        m.d.comb += [
            fields.w_en.eq(self.field_w_en),
            fields.w_field.eq(self.field_w_field),
            fields.w_data.eq(self.field_w_data),
            fields.clear.eq(self.field_clear),
            fields.unit.eq(self.unit),
            fields.index.eq(lines[1].index),
        ]
        raw, value = Signal(32, reset_less=True), Signal(32, reset_less=True)
        absent = [Signal(name=f"absent{i}", reset_less=True) for i in range(2)]
        number = Mux(lines[2].literal, lines[2].index, lines[2].one)
        stored = fields.written & ~lines[2].literal
        m.d.sync += [
            raw.eq(Mux(stored, fields.data, number)),
            absent[0].eq(~fields.written),
            absent[1].eq(absent[0]),
        ]
        sign = Signal()
        with m.Switch(lines[3].width):
            for width, bits in _WIDTHS.items():
                with m.Case(width):
                    m.d.comb += sign.eq(raw[bits - 1] & lines[3].signed)
        for width, (low, high) in _groups().items():
            inside = lines[3].width > width if width is not None else 1
            m.d.sync += value[low:high].eq(Mux(inside, raw[low:high], sign.replicate(high - low)))
        return value, absent[1]

    def _verdict(self, m: Module, box: BoundingBox) -> None:
        m.submodules.verdict = verdict = SerialVerdict(self.config)
        late = box.late
        m.d.comb += [
            verdict.start.eq(self.start),
            verdict.valid.eq(box.late_met & (late.late == Late.VERDICT) & ~(late.ranged & box.empty)),
            verdict.kind.eq(late.kind),
            verdict.order.eq(late.order),
            verdict.low.eq(box.low),
            verdict.high.eq(box.high),
            verdict.permitted.eq(box.permitted),
            self.fail.eq(verdict.fail),
            self.fail_kind.eq(verdict.fail_kind),
            self.fail_address.eq(verdict.fail_address),
        ]


def _default(unit: Unit, name: str) -> int:
    return next(f.default for f in UNIT_FIELDS[unit] if f.name == name)


def _groups() -> dict[Width | None, tuple[int, int]]:
    """Return, for each width, the range of bits that the next larger width adds to it; None is the key of bits 0..3."""
    found: dict[Width | None, tuple[int, int]] = {None: (0, 4)}
    order = list(_WIDTHS.items())
    for (width, low), high in zip(order, [bits for _, bits in order[1:]] + [32], strict=True):
        found[width] = (low, high)
    return found


def _read(words: list[int], entries: dict[Unit, int]) -> dict[Unit, int]:
    """Return, for each unit, the number of leading fields that its program reads."""
    starts = sorted((entry, unit) for unit, entry in entries.items())
    ends = [entry for entry, _ in starts[1:]] + [len(words)]
    found = {}
    for (entry, unit), end in zip(starts, ends, strict=True):
        lines = [CODE_LAYOUT.from_bits(word) for word in words[entry:end]]
        found[unit] = 1 + max(line.index for line in lines if not line.literal)
    return found
