"""Transposition of tiles that LOAD writes to the scratchpad."""

from amaranth.hdl import Cat, Elaboratable, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.config import SP_ADDR_BITS, MlaConfig
from hw.lib.ram import Ram
from hw.lib.rotate import rotate_right
from hw.memory.ports import SpWritePort


def collect_layout(config: MlaConfig) -> data.StructLayout:
    """Return the layout of a beat of a line to transpose.

    Byte i of the beat is at position (i + line) % n. Further members are the mask of valid bytes and the destination of
    the plane.
    """
    lane_bits = (config.n - 1).bit_length()
    return data.StructLayout(
        {
            "data": 8 * config.n,
            "mask": config.n,
            "line": lane_bits,
            "plane_end": 1,
            "end": 1,
            "dst": SP_ADDR_BITS,
            "dst_step": SP_ADDR_BITS,
            "columns": lane_bits,
            "rows": lane_bits,
        }
    )


class Transposer(wiring.Component):
    """Buffer that collects the lines of a plane and writes its columns.

    Byte i of line y is stored in byte memory (i + y) % n at address y, so a line or a column accesses every memory
    once. There is room for two planes, one of which is collected while the other is written. Latency: the first column
    is offered three cycles after the plane's last beat. Throughput: one beat in and one column out per cycle.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    beat : In(stream of collect_layout)
        Beats to collect; the fields after `plane_end` are valid in the last beat of the plane. `columns` is the number
        of bytes of a line minus one, and `rows` is the number of lines minus one.
    sp_write : Out(SpWritePort)
        Write port for the columns.
    end : Out
        High if the offered column is the last column of a plane whose `end` was set.
    busy : Out
        High while a column is offered or remains to be offered.
    clear : In
        Discard all collected lines.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        super().__init__(
            {
                "beat": In(stream.Signature(collect_layout(config))),
                "sp_write": Out(SpWritePort(config)),
                "end": Out(1),
                "busy": Out(1),
                "clear": In(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        n = self._config.n
        lane_bits = (n - 1).bit_length()
        beat, port = self.beat.payload, self.sp_write
        advance, fill_half = Signal(), Signal()
        # Plane that is being written: its descriptor, the column to read and its address.
        reading, half, last_column = Signal(), Signal(), Signal()
        column, addr = Signal(lane_bits), Signal(SP_ADDR_BITS)
        columns, rows, dst_step, end = Signal(lane_bits), Signal(lane_bits), Signal(SP_ADDR_BITS), Signal()
        # Column that the memories return.
        read_valid, read_end = Signal(), Signal()
        read_column, read_addr, read_mask = Signal(lane_bits), Signal(SP_ADDR_BITS), Signal(n)
        start = Signal()
        m.d.comb += [
            advance.eq(~port.valid | port.ready),
            last_column.eq(column == columns),
            self.beat.ready.eq(~beat.plane_end | ~reading | (advance & last_column)),
            start.eq(self.beat.valid & self.beat.ready & beat.plane_end & ~self.clear),
            self.busy.eq(reading | read_valid | port.valid),
        ]
        words = self._memories(m, fill_half, half, column, advance)
        with m.If(start):
            m.d.sync += [
                reading.eq(1),
                half.eq(fill_half),
                fill_half.eq(~fill_half),
                column.eq(0),
                addr.eq(beat.dst),
                columns.eq(beat.columns),
                rows.eq(beat.rows),
                dst_step.eq(beat.dst_step),
                end.eq(beat.end),
            ]
        with m.Elif(self.clear | (advance & last_column)):
            m.d.sync += reading.eq(0)
        with m.Elif(advance):
            m.d.sync += [column.eq(column + 1), addr.eq(addr + dst_step)]
        with m.If(advance):
            m.d.sync += [
                read_valid.eq(reading),
                read_end.eq(end & last_column),
                read_column.eq(column),
                read_addr.eq(addr),
                read_mask.eq(Cat(rows >= i for i in range(n))),
                port.valid.eq(read_valid),
                self.end.eq(read_end),
                port.addr.eq(read_addr),
                port.mask.eq(read_mask),
                port.data.eq(rotate_right(m, "column", words, read_column, n)),
            ]
        with m.If(self.clear):
            m.d.sync += [read_valid.eq(0), port.valid.eq(0)]
        return m

    def _memories(self, m: Module, fill_half: Signal, half: Signal, column: Signal, advance: Signal) -> Cat:
        """Add the byte memories; return the bytes of the column that was read one cycle earlier."""
        n = self._config.n
        beat = self.beat.payload
        words = []
        for i in range(n):
            m.submodules[f"byte{i}"] = ram = Ram(width=8, depth=2 * n)
            line = Signal(len(column), name=f"line{i}")
            m.d.comb += [
                line.eq(i - column),
                ram.w_addr.eq(Cat(beat.line, fill_half)),
                ram.w_data.eq(beat.data.word_select(i, 8)),
                ram.w_en.eq(self.beat.valid & self.beat.ready & beat.mask[i]),
                ram.r0_addr.eq(Cat(line, half)),
                ram.r0_en.eq(advance),
            ]
            words.append(ram.r0_data)
        return Cat(words)
