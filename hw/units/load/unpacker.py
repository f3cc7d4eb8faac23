"""Expansion of packed weights: a stream of bytes becomes groups of two rows."""

from typing import NamedTuple

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.config import SP_ADDR_BITS, MlaConfig
from hw.lib.pipeline import enable_register

#: Number of bits of a group's width; greater values count as MAX_WIDTH.
WIDTH_BITS, MAX_WIDTH = 4, 8
#: Beats that the window holds: the longest group has 2N + 1 bytes and may begin at the end of a beat.
_ROWS = 4


def packed_beat(config: MlaConfig) -> data.StructLayout:
    """Return the layout of a beat at the input of Unpacker.

    `start` and `stop` are the positions of the first and the last byte that belong to the line; `end` is set in the
    last beat of a line. The other fields must be the same in all beats of a line: `rest` is the number of bytes of the
    line minus one, `groups` the number of groups minus one, `dst` the address of the first group, and `step` the
    distance between groups.
    """
    lane_bits = (config.beat_bytes - 1).bit_length()
    return data.StructLayout(
        {
            "data": 8 * config.beat_bytes,
            "start": lane_bits,
            "stop": lane_bits,
            "bad": 1,
            "end": 1,
            "rest": 20,
            "groups": 16,
            "dst": SP_ADDR_BITS,
            "step": SP_ADDR_BITS,
            "tag": 6,
            "last": 1,
        }
    )


def packed_group(config: MlaConfig) -> data.StructLayout:
    """Return the layout of a group at the output of Unpacker.

    `kept` is the number of bytes of the line that the group has used. If `drops` is set, these bytes follow the last
    group of the line. `bad` is set from the first bad beat of a line on. `end` is set in the last group of a line that
    has `last` set.
    """
    return data.StructLayout(
        {
            "rows": data.ArrayLayout(8 * config.n, 2),
            "addr": SP_ADDR_BITS,
            "kept": (2 * config.n + 1).bit_length(),
            "tag": 6,
            "drops": 1,
            "bad": 1,
            "end": 1,
        }
    )


class Unpacker(wiring.Component):
    """Converter from lines of packed weights to rows of N bytes, two at a time (format: docs/machine.md, LOAD).

    A window holds the next bytes of a line. After its end, zeros follow, so a line that is too short results in zeros;
    bytes after the last group are discarded.

    Latency: two cycles from the beat that completes a group to the group. Throughput: one group and one beat per cycle;
    a line begins in the cycle after the last group of the line before.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    beat : In(stream of packed_beat)
        Beats of lines.
    group : Out(stream of packed_group)
        Groups of the lines.
    clear : In
        Discard all data.
    active, next_tag : Out
        `active` is high from the first beat of a line until its last group has been accepted; `next_tag` is the tag of
        the next group.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        super().__init__(
            {
                "beat": In(stream.Signature(packed_beat(config))),
                "group": Out(stream.Signature(packed_group(config))),
                "clear": In(1),
                "active": Out(1),
                "next_tag": Out(6),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        n, width = self._config.n, self._config.beat_bytes
        lane_bits = (width - 1).bit_length()
        beat = self.beat.payload
        window = Signal(8 * width * _ROWS)
        # `head` is the position of the next byte, `level` the number of bytes in the window, zeros after the line
        # included. `received` is set once the window contains the last byte of the line.
        head, level = Signal(lane_bits + 2), Signal(range(_ROWS * width + 1))
        busy, received, bad = Signal(), Signal(), Signal()
        left, groups = Signal(21), Signal(17)
        line = Signal(_line(self._config))
        header = window.word_select(head, 8)
        widths = [
            Mux(header.word_select(i, WIDTH_BITS)[3], MAX_WIDTH, header.word_select(i, WIDTH_BITS)[:3])
            for i in range(2)
        ]
        sizes = [Signal(range(n + 1), name=f"size{i}") for i in range(2)]
        need, used, kept = (Signal(range(2 * n + 2), name=name) for name in ("need", "used", "kept"))
        fire, free, room, drops, ends = (
            Signal(name=name) for name in ("fire", "free", "room", "drops", "ends")
        )
        out_valid, take, more, start = Signal(), Signal(), Signal(), Signal()
        following = self._following(m, take & ~more, start)
        m.d.comb += [
            *(size.eq((bits * n + 7) >> 3) for size, bits in zip(sizes, widths, strict=True)),
            need.eq(1 + sizes[0] + sizes[1]),
            # The bytes after the last group are discarded in steps of at most a beat.
            drops.eq(groups == 0),
            used.eq(Mux(drops, width, need)),
            kept.eq(Mux(left < used, left, used)),
            fire.eq(busy & (level >= used) & free),
            ends.eq((left == kept) & (groups <= 1)),
            room.eq(head[:lane_bits] + level <= (_ROWS - 1) * width),
            # Beats of the next line wait beside the window.
            more.eq(busy & ~received),
            self.beat.ready.eq(self.clear | Mux(more, room, following.room)),
            take.eq(self.beat.valid & self.beat.ready & ~self.clear),
            start.eq((~busy | (fire & ends)) & (following.count != 0)),
            self.active.eq(busy | out_valid),
            self.next_tag.eq(Mux(out_valid, self.group.payload.tag, line.tag)),
        ]
        pads = busy & received & room
        place = Signal(2)
        m.d.comb += place.eq((head + level) >> lane_bits)
        for i in range(_ROWS):
            row = window[8 * width * i : 8 * width * (i + 1)]
            with m.If(start):
                m.d.sync += row.eq(following.rows[i])
            with m.Elif(((take & more) | pads) & (place == i)):
                m.d.sync += row.eq(Mux(pads, 0, _line_bytes(beat, width)))
        with m.If(start):
            m.d.sync += [
                line.eq(following.line),
                left.eq(following.line.rest + 1),
                groups.eq(following.line.groups + 1),
                head.eq(following.line.start),
                level.eq((following.count << lane_bits) - following.line.start),
                received.eq(following.received),
                bad.eq(following.bad),
            ]
        with m.Else():
            m.d.sync += level.eq(level - Mux(fire, used, 0) + Mux((take & more) | pads, width, 0))
            with m.If(take & more):
                m.d.sync += [received.eq(beat.end), bad.eq(bad | beat.bad)]
            with m.If(fire):
                m.d.sync += [
                    head.eq(head + used),
                    left.eq(left - kept),
                    line.dst.eq(line.dst + line.step),
                    groups.eq(Mux(drops, 0, groups - 1)),
                ]
        with m.If(self.clear):
            m.d.sync += busy.eq(0)
        with m.Elif(start | (fire & ends)):
            m.d.sync += busy.eq(start)
        self._emit(m, window, head, widths, sizes, fire, free, out_valid)
        group = self.group.payload
        for name, value in (
            ("addr", line.dst),
            ("kept", kept),
            ("tag", line.tag),
            ("drops", drops),
            ("bad", bad),
            ("end", ends & line.last),
        ):
            m.d.comb += getattr(group, name).eq(enable_register(m, f"group_{name}", value, fire))
        return m

    def _following(self, m: Module, take: Value, start: Value) -> "_Following":
        """Add the registers in which the first beats of the next line wait for the window.

        Parameters
        ----------
        m : Module
            Module that the registers are added to.
        take : Value
            High if a beat of the next line is accepted.
        start : Value
            High if the line moves to the window, together with a beat that is accepted in this cycle.
        """
        width, beat = self._config.beat_bytes, self.beat.payload
        rows = [Signal(8 * width, name=f"following{i}") for i in range(_ROWS)]
        line, first = (
            Signal(_line(self._config), name="following_line"),
            Signal(_line(self._config), name="first"),
        )
        count, complete, bad = (
            Signal(range(_ROWS + 1)),
            Signal(name="following_complete"),
            Signal(name="following_bad"),
        )
        m.d.comb += [getattr(first, name).eq(getattr(beat, name)) for name in _line(self._config).members]
        now = _Following(
            rows=[Mux(take & (count == i), _line_bytes(beat, width), rows[i]) for i in range(_ROWS)],
            line=Signal(_line(self._config), name="next_line"),
            count=Signal(range(_ROWS + 1), name="following_count"),
            received=(take & beat.end) | complete,
            bad=(take & beat.bad) | bad,
            room=(count < _ROWS) & ~complete,
        )
        m.d.comb += [now.line.eq(Mux(count == 0, first, line)), now.count.eq(count + take)]
        for i, row in enumerate(rows):
            with m.If(take & (count == i)):
                m.d.sync += row.eq(_line_bytes(beat, width))
        m.d.sync += [line.eq(now.line), count.eq(now.count), complete.eq(now.received), bad.eq(now.bad)]
        with m.If(start | self.clear):
            m.d.sync += [count.eq(0), complete.eq(0), bad.eq(0)]
        return now

    def _emit(
        self,
        m: Module,
        window: Signal,
        head: Signal,
        widths: list[Value],
        sizes: list[Signal],
        fire: Signal,
        free: Signal,
        valid: Signal,
    ) -> None:
        """Add the registers of the group at the output, and the expansion of its rows."""
        n = self._config.n
        m.d.comb += [self.group.valid.eq(valid), free.eq(~valid | self.group.ready)]
        with m.If(self.clear):
            m.d.sync += valid.eq(0)
        with m.Elif(free):
            m.d.sync += valid.eq(fire)
        wrapped = Cat(window, window)
        begin = head + 1
        for i in range(2):
            body, width = Signal(8 * n, name=f"body{i}"), Signal(WIDTH_BITS, name=f"width{i}")
            with m.If(fire):
                m.d.sync += [body.eq(wrapped.bit_select(begin << 3, 8 * n)), width.eq(widths[i])]
            begin = begin + sizes[i]
            row = self.group.payload.rows[i]
            with m.Switch(width):
                for each in range(1, MAX_WIDTH + 1):
                    with m.Case(each):
                        m.d.comb += row.eq(
                            Cat(_extended(body[each * lane : each * (lane + 1)]) for lane in range(n))
                        )


class _Following(NamedTuple):
    """First beats of the next line, including a beat that is accepted in this cycle.

    `line` holds the fields of the line, `count` the number of beats; `received` is set if they are all beats of the
    line, `bad` if one of them is bad, and `room` if one more beat can be accepted in this cycle.
    """

    rows: list[Value]
    line: data.View
    count: Signal
    received: Value
    bad: Value
    room: Value


def _line(config: MlaConfig) -> data.StructLayout:
    """Return the layout of the fields that are the same in all beats of a line, and the position of its first byte."""
    members = packed_beat(config).members
    return data.StructLayout(
        {name: members[name] for name in ("start", "rest", "groups", "dst", "step", "tag", "last")}
    )


def _line_bytes(beat: data.View, width: int) -> Value:
    """Return the `width` bytes of a beat, with zeros after the end of the line."""
    return beat.data & Cat((~beat.end | (beat.stop >= i)).replicate(8) for i in range(width))


def _extended(value: Value) -> Value:
    """Return `value` sign-extended to a byte."""
    return Cat(value, value[-1].replicate(8 - len(value)))
