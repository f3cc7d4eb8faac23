"""Memory wrapper `Ram`, used for every memory of the machine."""

from amaranth.hdl import Elaboratable, Module, unsigned
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from hw.errors import InputError


class Ram(wiring.Component):
    """Memory with one write port and any number of read ports in the sync domain.

    Synchronous reads have one cycle of latency and hold their data while `r{i}_en` is low. A read of a word that is
    written in the same cycle returns the old word, or the new word if `transparent`. Contents are undefined until they
    are written; logic must not assume that they are zero.

    Parameters
    ----------
    width, depth : int
        Number of bits of a word, and number of words.
    granularity : int or None
        Number of bits written by one bit of `w_en`; by default the width of the word.
    reads : int
        Number of read ports.
    comb : bool
        True for combinational reads, for small memories made of LUTs.
    transparent : bool
        True if a read of a word that is written in the same cycle returns the new word; only for synchronous reads.
    exclusive : bool
        True if data read from a granule in the cycle in which it is written are never used; the memory then becomes
        block RAM without logic that returns the old word.

    Members
    -------
    w_addr, w_data, w_en : In
        Address, data and enables of the write port.
    r{i}_addr, r{i}_en : In, r{i}_data : Out
        Address, enable and data of read port i; combinational reads ignore `r{i}_en`.
    """

    def __init__(
        self,
        *,
        width: int,
        depth: int,
        granularity: int | None = None,
        reads: int = 1,
        comb: bool = False,
        transparent: bool = False,
        exclusive: bool = False,
    ):
        granularity = width if granularity is None else granularity
        if width < 1 or depth < 2 or width % granularity:
            raise InputError(
                f"memory must have width >= 1, depth >= 2 and whole granules, not {width} x {depth} / {granularity}"
            )
        self.width, self.depth, self.granularity = width, depth, granularity
        self.reads, self.comb, self.transparent, self.exclusive = reads, comb, transparent, exclusive
        address = (depth - 1).bit_length()
        ports = {"w_addr": In(address), "w_data": In(width), "w_en": In(width // granularity)}
        for i in range(reads):
            ports |= {f"r{i}_addr": In(address), f"r{i}_en": In(1, init=1), f"r{i}_data": Out(width)}
        super().__init__(ports)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        attrs = {"no_rw_check": 1, "ram_style": "block"} if self.exclusive else {}
        m.submodules.mem = mem = memory.Memory(
            shape=unsigned(self.width), depth=self.depth, init=[], attrs=attrs
        )
        write = mem.write_port(granularity=None if self.granularity == self.width else self.granularity)
        m.d.comb += [write.addr.eq(self.w_addr), write.data.eq(self.w_data), write.en.eq(self.w_en)]
        for i in range(self.reads):
            if self.comb:
                read = mem.read_port(domain="comb")
            else:
                read = mem.read_port(transparent_for=(write,) if self.transparent else ())
                m.d.comb += read.en.eq(getattr(self, f"r{i}_en"))
            m.d.comb += [read.addr.eq(getattr(self, f"r{i}_addr")), getattr(self, f"r{i}_data").eq(read.data)]
        return m
