"""Loadable tables of 256 int16 entries, and the lookup stage."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig
from hw.fuse.control_store import fetch
from hw.fuse.layouts import BEAT, TABLE_CONTROL, control_write, lanes, lanes_of
from hw.lib.pipeline import pipeline_delay, pipeline_register, pipeline_struct
from hw.lib.ram import Ram
from hw.memory.ports import SlotWritePort

#: Cycles from a value to its table entry.
LATENCY = 2
_TABLE_BYTES = 512


class TableLookup(wiring.Component):
    """Replaces each value by table[value & 255] if the command enables the lookup.

    The two stages look up the entries of a wide table one after the other: the first returns the low half of the entry
    above the index, the second uses this index and returns the whole entry.

    Each lane has a copy of all tables. A copy is as wide as a write (N bytes), so that it can accept a write in every
    cycle; a read selects the entry within the word.

    Latency: LATENCY. Throughput: one beat and one write per cycle.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses the number of lanes and of tables.
    high : bool
        True for the stage that looks up the high halves of wide tables.

    Members
    -------
    controls : In
        Controls of a command that enters the pipeline.
    write : In
        Writes of N bytes; writes to parameter slots are ignored.
    beat : In(BEAT), o_beat : Out(BEAT)
        Control data of the beat at the input and at the output.
    value : In(lanes), o : Out(lanes)
        Value of each lane before and after the lookup, int32.
    """

    def __init__(self, config: MlaConfig, *, high: bool):
        self._high = high
        self._n, self._lanes, self._tables = config.n, lanes_of(config), config.table_slots
        super().__init__(
            {
                "controls": In(control_write(TABLE_CONTROL)),
                "write": In(SlotWritePort(config)),
                "beat": In(BEAT),
                "o_beat": Out(BEAT),
                "value": In(lanes(self._lanes)),
                "o": Out(lanes(self._lanes)),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        beats = pipeline_struct(m, "beat", self.beat, LATENCY)
        m.d.comb += self.o_beat.eq(beats[-1])
        first = fetch(m, "first", self.controls, ("enable", "slot"), beats[0].cmd)
        second = fetch(m, "second", self.controls, ("enable", "wide"), beats[1].cmd)
        m.submodules.ram = ram = Ram(
            width=8 * self._n, depth=self._tables * _TABLE_BYTES // self._n, reads=self._lanes, exclusive=True
        )
        row_shift = self._n.bit_length() - 1
        m.d.comb += [
            ram.w_addr.eq(self.write.addr[row_shift:]),
            ram.w_data.eq(self.write.data),
            ram.w_en.eq(self.write.valid & self.write.table),
        ]
        pick_bits = row_shift - 1
        for lane in range(self._lanes):
            value = self.value[lane]
            m.d.comb += [
                getattr(ram, f"r{lane}_addr").eq(Cat(value[pick_bits:8], first.slot)),
                getattr(ram, f"r{lane}_en").eq(self.beat.valid & first.enable),
            ]
            held = pipeline_delay(m, f"value_{lane}", value, 1)
            entry = self._entry(m, lane, getattr(ram, f"r{lane}_data"), held)
            whole = Cat(held[8:24], entry[:16]) if self._high else Cat(held[:8], entry[:16], Const(0, 8))
            found = Mux(second.wide, whole.as_signed(), entry)
            m.d.comb += self.o[lane].eq(
                pipeline_register(m, f"o_{lane}", Mux(second.enable, found, held), signed(32))
            )
        return m

    def _entry(self, m: Module, lane: int, word: Value, value: Value) -> Signal:
        """Return the entry of `word` that `value` selects, through a tree of multiplexers."""
        entries: list[Value] = [word[16 * i : 16 * i + 16].as_signed() for i in range(self._n // 2)]
        for level in range((self._n // 2 - 1).bit_length()):
            merged = []
            for i in range(len(entries) // 2):
                node = Signal(signed(16), name=f"entry_{lane}_{level}_{i}")
                m.d.comb += node.eq(Mux(value[level], entries[2 * i + 1], entries[2 * i]))
                merged.append(node)
            entries = merged
        return entries[0]
