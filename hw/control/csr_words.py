"""What the host wrote to the registers that only hold it, in a memory."""

from collections.abc import Callable

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi_lite import LITE_ADDR_BITS
from hw.bus.register_map import ADDRESS, WINDOW_BASE, WINDOW_STRIDE
from hw.lib.ram import Ram
from hw.sequencer.layouts import LIMIT_BITS

_BITS = (max(ADDRESS.values()) >> 2).bit_length()
_WINDOWS = WINDOW_BASE // WINDOW_STRIDE  # of four words each: first byte, last byte, permissions


class CsrWords(wiring.Component):
    """Reads back registers without a wire from each of them, and the limits of the DRAM windows.

    Latency: 1 cycle. Throughput: a write and two reads a cycle. Nothing is known of what is read of a word while it is
    written: the host does not do both at a time.

    Parameters
    ----------
    masks : dict of str and int
        Registers, and which of their bits are not always 0.

    Attributes
    ----------
    masks : dict of str and int
        As given.

    Members
    -------
    address, data, writes : In
        Write: bit i of `writes` for register i.
    read : In, value : Out
        Byte address, whose upper bits do not count, and what that register holds: 0 before the first write, and at
        addresses of others. `read` stays until then.
    limit : In, word : Out
        Number of a limit (see LIMIT_BITS), and what the host wrote there.
    """

    def __init__(self, masks: dict[str, int]):
        self.masks = masks
        super().__init__(
            {
                "address": In(LITE_ADDR_BITS),
                "data": In(32),
                "writes": In(len(masks)),
                "read": In(LITE_ADDR_BITS),
                "value": Out(32),
                "limit": In(LIMIT_BITS),
                "word": Out(32),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.words = words = Ram(width=32, depth=1 << _BITS, reads=2, exclusive=True)
        written, mask, valid = Signal(len(self.masks)), Signal(32), Signal()
        m.d.sync += written.eq(written | self.writes)
        m.d.comb += [
            words.w_en.eq(self.writes.any()),
            words.w_addr.eq(self.address[2:]),
            words.w_data.eq(self.data),
            words.r0_addr.eq(self.read[2 : 2 + _BITS]),
            words.r1_addr.eq(Cat(self.limit[0], Const(0, 1), self.limit[1:] + _WINDOWS)),
            self.word.eq(words.r1_data),
        ]
        with m.Switch(self.read[2:]):
            for i, (name, bits) in enumerate(self.masks.items()):
                with m.Case(ADDRESS[name] >> 2):
                    m.d.comb += [valid.eq(written[i]), mask.eq(bits)]
        m.d.comb += self.value.eq(Mux(valid, words.r0_data & mask, 0))
        return m


def keep_words(
    m: Module, csr: wiring.Component, masks: dict[str, int], writes: Callable[[str], Value]
) -> CsrWords:
    """The memory for some registers and for those of all windows; `writes` tells whether one is written."""
    for index in range(csr.config.windows):
        masks |= dict.fromkeys((f"WINDOW{index}_BASE", f"WINDOW{index}_LAST"), 0xFFFFFFFF)
        masks |= {f"WINDOW{index}_PERM": 3}
    m.submodules.words = words = CsrWords(masks)
    m.d.comb += [
        words.address.eq(csr.write.p.addr),
        words.data.eq(csr.write.p.data),
        words.writes.eq(Cat(writes(name) for name in masks)),
        words.read.eq(csr.read.p.addr),
        words.limit.eq(csr.limit),
    ]
    m.d.sync += csr.windows.limit.eq(words.word)
    return words
