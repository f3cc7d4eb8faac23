"""Scratchpad: banked rows of n bytes; an access may start at any byte, because the ports rotate the data."""

from copy import copy

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.config import SP_ADDR_BITS, MlaConfig
from hw.isa.counters import SP_BANKS_MAX
from hw.layouts import event_layout
from hw.lib.pipeline import enable_register
from hw.lib.ram import Ram
from hw.lib.rotate import rotate_left, rotate_right
from hw.lib.trees import select_tree
from hw.memory.ports import SpReadPort, SpWritePort, loads_pairs


class SpAccess:
    """Words and halves of the memory that an access of n bytes at a byte address needs, as named signals in `m`.

    Rows alternate between the even and the odd half, so the row of the first byte and the row after it are never in the
    same half. An access at a multiple of n needs only one half.

    Parameters
    ----------
    m : Module
        Module that the signals are added to.
    config : MlaConfig
        Machine configuration; uses `n`, `sp_banks`, `sp_rows`.
    name : str
        Prefix of the signals' names.
    addr : Value
        Byte address; bits beyond the size of the memory are ignored.
    pair : Value
        Set if the access needs the row after the row of `addr`, too.

    Attributes
    ----------
    offset : Value
        Position of the first byte in its row.
    odd : Value
        Set if the row of the first byte is in the odd half.
    pair : Value
        Set if the access needs two rows.
    bank : Value
        Bank of the first byte.
    index : tuple of Signal
        Word address (bank in the high bits) in the even and in the odd half.
    word, banks : tuple of Value
        Two parts of `index`: word within its bank, and bank.
    want : tuple of Signal
        For the even and for the odd half, one bit for each bank: set if the access needs this half of the bank.
    """

    def __init__(self, m: Module, config: MlaConfig, name: str, addr: Value, pair: Value):
        self.pair = pair
        lane_bits = (config.n - 1).bit_length()
        pair_bits = (config.sp_rows // 2 - 1).bit_length()
        self.offset = addr[:lane_bits]
        self.odd = addr[lane_bits]
        word = addr[lane_bits + 1 : lane_bits + 1 + pair_bits]
        self._bank_bits = (config.sp_banks - 1).bit_length()
        self.bank = word[-self._bank_bits :]
        self._split(tuple(Signal(pair_bits, name=f"{name}_index_{half}") for half in ("even", "odd")))
        self.want = tuple(Signal(config.sp_banks, name=f"{name}_want_{half}") for half in ("even", "odd"))
        crosses = Signal(name=f"{name}_crosses")
        m.d.comb += [
            crosses.eq(self.offset.any() | pair),
            self.index[0].eq(word + self.odd),
            self.index[1].eq(word),
            self.want[0].eq(Mux(~self.odd | crosses, 1 << self.banks[0], 0)),
            self.want[1].eq(Mux(self.odd | crosses, 1 << self.banks[1], 0)),
        ]

    def _split(self, index: tuple[Signal, ...]) -> None:
        self.index = index
        self.word = tuple(i[: -self._bank_bits] for i in index)
        self.banks = tuple(i[-self._bank_bits :] for i in index)

    def held(self, m: Module, name: str, take: Value) -> "SpAccess":
        """Return a copy whose signals are registers with names that begin with `name`, loaded while `take` is high."""
        later = copy(self)
        later.offset, later.odd, later.pair, later.bank = (
            enable_register(m, f"{name}_{part}", getattr(self, part), take)
            for part in ("offset", "odd", "pair", "bank")
        )
        later._split(
            tuple(enable_register(m, f"{name}_index_{h}", v, take) for h, v in enumerate(self.index))
        )
        later.want = tuple(enable_register(m, f"{name}_want_{h}", v, take) for h, v in enumerate(self.want))
        return later


class SpReadLane(wiring.Component):
    """Data path of one read port, which selects and rotates the requested bytes from the words read by the banks.

    Latency: `data` is valid two cycles after `capture`; the memory words must be at `even` and `odd` one cycle after
    `capture`. Throughput: one row per cycle.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `n`, `sp_banks`.

    Members
    -------
    capture : In
        High if an access is granted in this cycle.
    addr : In
        Byte address of the access granted in this cycle.
    even_bank, odd_bank : In
        Banks that contain the words of the access.
    even, odd : In
        Words read by the banks, with bank 0 in the low bits, one cycle after `capture`.
    data, next : Out
        The n bytes from the requested address on, and the row after them if the address is a multiple of n.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        words = In(8 * config.n * config.sp_banks)
        self._bank_bits = (config.sp_banks - 1).bit_length()
        super().__init__(
            {
                "capture": In(1),
                "addr": In(SP_ADDR_BITS),
                "even_bank": In(self._bank_bits),
                "odd_bank": In(self._bank_bits),
                "even": words,
                "odd": words,
                "data": Out(8 * config.n),
                "next": Out(8 * config.n),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        n = self._config.n
        lane_bits = (n - 1).bit_length()
        offset, offset_2 = Signal(lane_bits), Signal(lane_bits)
        odd, odd_2, captured = Signal(), Signal(), Signal()
        from_even = Signal(n)
        banks = tuple(Signal(self._bank_bits, name=f"bank_{half}") for half in ("even", "odd"))
        m.d.sync += [
            Cat(offset, odd).eq(self.addr[: lane_bits + 1]),
            offset_2.eq(offset),
            odd_2.eq(odd),
            from_even.eq(Cat(offset <= j for j in range(n)) ^ odd.replicate(n)),
            banks[0].eq(self.even_bank),
            banks[1].eq(self.odd_bank),
        ]
        m.d.sync += captured.eq(self.capture)
        # These words are registered as early as possible, because they are valid late in a cycle and their routing is
        # long.
        even, odd_word = (
            # The tree consists of two-way selections, which an FPGA implements with its wide multiplexers.
            enable_register(
                m, f"{half}_held", select_tree(m, f"word_{half}", bank, self._words(source)), captured
            )
            for half, source, bank in zip(("even", "odd"), (self.even, self.odd), banks, strict=True)
        )
        merged = Signal(8 * n)
        # Byte j is from the row of the first byte if j >= offset, else from the next row.
        m.d.comb += [
            merged.eq(
                Cat(Mux(from_even[j], even.word_select(j, 8), odd_word.word_select(j, 8)) for j in range(n))
            ),
            self.data.eq(rotate_right(m, "rotated", merged, offset_2, n)),
            self.next.eq(Mux(odd_2, even, odd_word)),
        ]
        return m

    def _words(self, source: Value) -> dict[int, Value]:
        """Return the words of `source` by bank number."""
        return {b: source.word_select(b, 8 * self._config.n) for b in range(self._config.sp_banks)}


READERS = ("act", "weight", "fuse", "store")
WRITERS = ("fuse_write", "load_write")


def reads_pairs(config: MlaConfig, reader: str) -> bool:
    """Return True if a read port of the scratchpad can read two rows at once."""
    return bool({"act": config.wide, "weight": config.weight_rows > 1}.get(reader))


#: Events of the scratchpad in group `seq`: reads, writes and refusals of each bank. The layout is the same for every
#: configuration: the counters of absent banks stay 0.
SP_EVENTS = data.StructLayout(
    {
        name: event_layout("seq").members[name]
        for name in (
            f"sp_{kind}_bank{b}" for kind in ("reads", "writes", "conflicts") for b in range(SP_BANKS_MAX)
        )
    }
)


class Scratchpad(wiring.Component):
    """Banked memory; each bank has a half for even rows and a half for odd rows, each with a read and a write port.

    An access of n bytes takes one cycle at any byte address, because the two rows that it may need are in different
    halves. Addresses wrap from the last byte to the first. A decoded request waits in a register of its port until no
    request of higher priority waits for a half that it needs. Therefore `act` and `fuse_write`, which have the highest
    priority, never wait for more than one cycle. Latency: SP_READ_LATENCY cycles from the grant of a read; a write
    granted in one cycle is visible to reads granted in the next. Throughput: one access per cycle on each port whose
    halves are free.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    act, weight, fuse, store : In(SpReadPort)
        Read ports, highest priority first.
    fuse_write, load_write : In(SpWritePort)
        Write ports, highest priority first.
    events : Out(SP_EVENTS)
        Counts of accesses granted and refused in the previous cycle, by the bank of their first byte; a read or
        write of a pair of rows counts twice.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        super().__init__(
            {
                **{name: In(SpReadPort(config, pairs=reads_pairs(config, name))) for name in READERS},
                "fuse_write": In(SpWritePort(config)),
                "load_write": In(SpWritePort(config, pairs=loads_pairs(config))),
                "events": Out(SP_EVENTS),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        reads = {name: self._request(m, name) for name in READERS}
        writes = {name: self._request(m, name) for name in WRITERS}
        self._written = {name: self._hold_row(m, name) for name in WRITERS}
        read_asks = self._grant(m, reads)
        write_asks = self._grant(m, writes)
        rams = self._banks(m)
        for half in range(2):
            for bank, ram in enumerate(rams[half]):
                self._steer_reads(m, ram, reads, read_asks, half, bank)
                self._steer_writes(m, ram, writes, write_asks, half, bank)
        for name, access in reads.items():
            m.submodules[f"{name}_lane"] = lane = SpReadLane(self._config)
            port = getattr(self, name)
            m.d.comb += [
                lane.capture.eq(port.waits & port.ready),
                lane.addr.eq(Cat(access.offset, access.odd)),
                lane.even_bank.eq(access.banks[0]),
                lane.odd_bank.eq(access.banks[1]),
                lane.even.eq(Cat(ram.r0_data for ram in rams[0])),
                lane.odd.eq(Cat(ram.r0_data for ram in rams[1])),
                port.data.eq(lane.data),
            ]
            if "pair" in port.signature.members:
                m.d.comb += port.next.eq(lane.next)
        self._count(m, reads, writes)
        return m

    def _request(self, m: Module, name: str) -> SpAccess:
        """Return the request that waits in the register of a port."""
        port = getattr(self, name)
        with m.If(port.ready):
            m.d.sync += port.waits.eq(port.valid)
        pair = port.pair if "pair" in port.signature.members else Const(0)
        access = SpAccess(m, self._config, name, port.addr, pair)
        return access.held(m, f"{name}_held", port.valid & port.ready)

    def _hold_row(self, m: Module, name: str) -> tuple[Value, Value, Value, Value]:
        """Return the data, the second row and the masks of both of the write that waits in the registers of a port."""
        port = getattr(self, name)
        take = port.valid & port.ready
        written = enable_register(m, f"{name}_data", port.data, take)
        following = written
        if "pair" in port.signature.members:
            following = enable_register(m, f"{name}_next", port.next, take & port.pair)
        chosen = later = enable_register(m, f"{name}_bytes", port.mask, take)
        if "next_mask" in port.signature.members:
            later = enable_register(m, f"{name}_next_bytes", port.next_mask, take & port.pair)
        return written, following, chosen, later

    def _banks(self, m: Module) -> tuple[list[Ram], list[Ram]]:
        """Add the memories of all banks; return those of the even halves and those of the odd halves."""
        depth = self._config.sp_rows // (2 * self._config.sp_banks)
        rams: tuple[list[Ram], list[Ram]] = ([], [])
        for bank in range(self._config.sp_banks):
            for half in range(2):
                m.submodules[f"bank{bank}_{half}"] = ram = Ram(
                    width=8 * self._config.n, depth=depth, granularity=8, exclusive=True
                )
                rams[half].append(ram)
        return rams

    def _grant(self, m: Module, accesses: dict[str, SpAccess]) -> dict[str, tuple[Signal, Signal]]:
        """Serve the ports by priority; return the banks whose even and odd halves each port requests."""
        taken: list[Value] = [Const(0, self._config.sp_banks)] * 2
        asked = {}
        for name, access in accesses.items():
            port = getattr(self, name)
            asks = tuple(
                Signal(self._config.sp_banks, name=f"{name}_asks_{half}") for half in ("even", "odd")
            )
            m.d.comb += [asks[h].eq(Mux(port.waits, access.want[h], 0)) for h in range(2)]
            m.d.comb += port.ready.eq(~self._refused(name, asks, taken))
            # The request of a refused port counts as granted, so that the grants of all ports are computed in parallel
            # instead of one after another, which would be the longest path of the machine.
            taken = [asks[h] | taken[h] for h in range(2)]
            asked[name] = asks
        return asked

    def _refused(self, name: str, asks: tuple[Signal, ...], taken: list[Value]) -> Value:
        """Return a value that is high if the request of a port is refused.

        Parameters
        ----------
        name : str
            Name of the port.
        asks, taken : sequence
            Banks requested by the port, and banks requested by ports of higher priority; one mask for the even and one
            for the odd half.
        """
        return Cat(asks[h] & taken[h] for h in range(2)).any()

    def _steer_reads(
        self, m: Module, ram: Ram, accesses: dict[str, SpAccess], asked: dict, half: int, bank: int
    ) -> None:
        """Drive the read port of one memory with the address of the port of highest priority that requests it."""
        *first, last = accesses
        address: Value = accesses[last].word[half]
        for name in reversed(first):
            address = Mux(asked[name][half][bank], accesses[name].word[half], address)
        m.d.comb += [
            ram.r0_addr.eq(address),
            ram.r0_en.eq(Cat(asked[name][half][bank] for name in accesses).any()),
        ]

    def _steer_writes(
        self, m: Module, ram: Ram, accesses: dict[str, SpAccess], asked: dict, half: int, bank: int
    ) -> None:
        """Drive the write port of one memory.

        Except in a pair of rows, both halves receive the same rotated data with different byte enables.
        """
        if bank == half == 0:
            self._rotated = {name: self._rotate(m, name, accesses[name]) for name in accesses}
        fuse, load = WRITERS
        fuse_asks = asked[fuse][half][bank]
        (fuse_data, fuse_masks), (load_data, load_masks) = self._rotated[fuse], self._rotated[load]
        load_uses = asked[load][half][bank] & self.load_write.ready
        m.d.comb += [
            ram.w_addr.eq(Mux(fuse_asks, accesses[fuse].word[half], accesses[load].word[half])),
            ram.w_data.eq(Mux(fuse_asks, fuse_data[half], load_data[half])),
            ram.w_en.eq(Mux(fuse_asks, fuse_masks[half], Mux(load_uses, load_masks[half], 0))),
        ]

    def _rotate(
        self, m: Module, name: str, access: SpAccess
    ) -> tuple[tuple[Value, Value], tuple[Value, ...]]:
        """Return the data of a write, rotated to their position in the rows, and the byte enables, for both halves."""
        n, (written, following, chosen, later) = self._config.n, self._written[name]
        row = rotate_left(m, f"{name}_row", written, access.offset, n)
        mask = rotate_left(m, f"{name}_mask", chosen, access.offset, n)
        masks = Signal(n, name=f"{name}_mask_even"), Signal(n, name=f"{name}_mask_odd")
        in_even = Signal(n, name=f"{name}_in_even")
        m.d.comb += [
            in_even.eq(Cat(access.offset <= j for j in range(n)) ^ access.odd.replicate(n)),
            masks[0].eq(mask & (in_even | access.pair.replicate(n))),
            masks[1].eq(mask & (~in_even | access.pair.replicate(n))),
        ]
        if following is written:
            return (row, row), masks
        second = access.pair & access.odd, access.pair & ~access.odd
        even, odd = (Mux(each, following, row) for each in second)
        if later is not chosen:
            masks = tuple(Mux(each, later, own) for each, own in zip(second, masks, strict=True))
        return (even, odd), masks

    def _count(self, m: Module, reads: dict[str, SpAccess], writes: dict[str, SpAccess]) -> None:
        """Count the events; each bank has a separate bit field, so that one addition updates all counts."""
        banks = self._config.sp_banks
        counts = []
        for kind, accesses in (("reads", reads), ("writes", writes), ("conflicts", reads | writes)):
            width = self.events.shape().members[f"sp_{kind}_bank0"].width
            total: Value = Signal(width * banks, name=f"{kind}_none")
            for name, access in accesses.items():
                port = getattr(self, name)
                happens = port.waits & (~port.ready if kind == "conflicts" else port.ready)
                one = Signal(width * banks, name=f"{name}_{kind}")
                rows = Const(1, 2) if kind == "conflicts" else Mux(access.pair, 2, 1)
                m.d.sync += one.eq(
                    Cat(
                        Cat(Mux(happens & (access.bank == b), rows, 0), Const(0, width - 2))
                        for b in range(banks)
                    )
                )
                partial = Signal(width * banks, name=f"{name}_{kind}_total")
                m.d.comb += partial.eq(total + one)
                total = partial
            counts.append(Cat(total, Const(0, width * (SP_BANKS_MAX - banks))))
        m.d.comb += self.events.as_value().eq(Cat(counts))


class PipelinedScratchpad(Scratchpad):
    """`Scratchpad` that refuses LOAD's write during every write of FUSE, regardless of the banks.

    This makes LOAD's `ready` valid earlier in the cycle; more logic depends on it than on the `ready` of other ports.

    Latency and throughput are the same as for `Scratchpad`, except for LOAD's writes. Parameters and members are the
    same.
    """

    def _refused(self, name: str, asks: tuple[Signal, ...], taken: list[Value]) -> Value:
        return self.fuse_write.waits if name == "load_write" else super()._refused(name, asks, taken)
