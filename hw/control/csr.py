"""Control and status registers that the AXI4-Lite slave accesses, from the table in `hw.bus.register_map`.

With `serial_commands`, registers that only store values written by the host are words of a small memory (`CsrWords`).
"""

from collections.abc import Callable

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi_lite import LITE_ADDR_BITS, LITE_READ, LITE_WRITE
from hw.bus.register_map import ADDRESS, CONFIG_FIELDS, ID, REGISTERS, WINDOW_BASE, WINDOW_STRIDE
from hw.config import MlaConfig
from hw.control.layouts import SEGMENT_OP_LAYOUT, TABLE_OP_LAYOUT, SegmentOp
from hw.layouts import LIMIT_BITS, TRAP_LAYOUT, limit_ports, windows_layout
from hw.lib.pipeline import pipeline_register
from hw.lib.ram import Ram

_BITS = (max(ADDRESS.values()) >> 2).bit_length()
_WINDOWS = WINDOW_BASE // WINDOW_STRIDE  # windows of four words each: first byte, last byte, permissions


class CsrWords(wiring.Component):
    """Memory of register values and of the limits of the DRAM windows, which avoids a wire from each register.

    Latency: 1 cycle. Throughput: one write and two reads per cycle. Data are undefined if a word is read in the cycle
    in which it is written; the host never does this.

    Parameters
    ----------
    masks : dict of str and int
        Mask of the bits that can be 1, by register name.

    Attributes
    ----------
    masks : dict of str and int
        Value of the parameter `masks`.

    Members
    -------
    address, data, writes : In
        Write port; bit i of `writes` enables a write of register i.
    read : In, value : Out
        Byte address, whose upper bits are ignored; value of the register one cycle later. The value is 0 before the
        first write and at other addresses. `read` must be held until the value is returned.
    limit : In, word : Out
        Index of a window's limit (see LIMIT_BITS); value that the host has written to this limit.
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


def add_words(
    m: Module, csr: wiring.Component, masks: dict[str, int], writes: Callable[[str], Value]
) -> CsrWords:
    """Add a memory for the registers in `masks` and the registers of all windows; `writes` returns a register's write
    enable.
    """
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


ISA_VERSION = 1
#: Address bits that are the index of a register, and the address bits above them.
_NUMBER, _ABOVE = slice(2, 9), slice(9, None)


def read_only(csr: wiring.Component) -> dict[str, Value]:
    """Return the values of the read-only registers, by name."""
    config = csr.config
    values: dict[str, Value] = {"ID": Const(ID, 32), "ISA_VERSION": Const(ISA_VERSION, 32)}
    values |= {f"CONFIG_{name.upper()}": Const(getattr(config, name), 32) for name in CONFIG_FIELDS}
    values |= {
        f"TRAP_{name.upper()}": csr.trap[name]
        for name in ("cause", "pc", "segment", "tag", "macro", "address")
    }
    return values | {
        "STATUS": csr.status,
        "RING_TAIL": csr.tail,
        "TRAP_COUNT": csr.trap_count,
        "SEG_STATUS": csr.segment_status,
        "LOADER_ERROR": csr.loader_error,
        "MAXIMUM": csr.maximum_value,
    }


def select_register(m: Module, address: Value, values: dict[str, Value], data: Signal, bad: Signal) -> None:
    """Load `data` with the value of the register at an address, and set `bad` if no register has this address."""
    m.d.sync += [data.eq(0), bad.eq(1)]
    with m.Switch(address[2:]):
        for entry in REGISTERS:
            with m.Case(entry.address >> 2):
                m.d.sync += [data.eq(values.get(entry.name, 0)), bad.eq(0)]


def select_register_late(
    m: Module,
    step: Value,
    address: Value,
    values: dict[str, Value],
    words: CsrWords,
    data: Signal,
    bad: Signal,
) -> None:
    """Do the same as `select_register` if the values written by the host are in a memory. The address must be valid one
    cycle earlier; in that cycle it is compared with the address of each register.
    """
    fixed, known = Signal(32), Signal()
    with m.Switch(address[_NUMBER]):
        for name, value in values.items():
            if isinstance(value, Const):
                with m.Case(ADDRESS[name] >> 2):
                    m.d.comb += fixed.eq(value)
    found = pipeline_register(m, "fixed", fixed) | words.value
    for name, value in values.items():
        if not isinstance(value, Const):
            hit = pipeline_register(m, f"reads_{name}", address[_NUMBER] == ADDRESS[name] >> 2)
            found = found | (value & hit.replicate(len(value)))
    with m.Switch(address[_NUMBER]), m.Case(*(entry.address >> 2 for entry in REGISTERS)):
        m.d.comb += known.eq(1)
    with m.If(step):
        m.d.sync += [data.eq(0), bad.eq(1)]
    with m.If(step & known & ~address[_ABOVE].any()):
        m.d.sync += [data.eq(found), bad.eq(0)]


#: Registers that only store values written by the host.
_PLAIN = tuple(
    register.name
    for register in REGISTERS
    if register.access == "rw" and register.name != "WIS_ADDRESS" and not register.name.startswith("WINDOW")
)
#: Number of low bits that read 0, by register.
_ZEROS = {"RING_BASE": 8, "LOADER_SOURCE": 6}
_WIDTHS = {"CONTROL": 2, "IRQ_ENABLE": 4, "RING_LOG2": 5}
#: Cycles from a write of MAXIMUM_SELECT until the selected value is valid.
_SETTLE = 3


class Csr(wiring.Component):
    """Host registers. A write that starts an operation is answered when the operation has been accepted or refused, so
    that the host's next read observes its effect. Reads have no side effects, except that a read of the low half of a
    64-bit value latches the high half.

    Latency: 1 cycle for plain writes, 2 for reads; a read of a counter takes until the counter block answers.
    Throughput: one read and one write at a time.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration, which can be read back; uses the number of windows.

    Members
    -------
    write, write_bad, read, read_data, read_bad : In, Out
        Ports to the AXI4-Lite slave `AxiLite`.
    cycle : In
        Value of the cycle counter.
    status, tail, trap, trap_count, segment_status, loader_error, maximum_value : In
        Values that the read-only registers return.
    irq_set : In
        Mask of the bits of IRQ_STATUS to set.
    counter_select, counter_read : Out, counter_done, counter_value : In
        Ports to read a counter: `counter_read` is held until `counter_done`; `counter_value` is valid in the cycle of
        `counter_done`.
    segment_op, table_op : Out
        Operations on the segment table and the dispatch table.
    resume : Out
        One-cycle pulse for each write of 1 to RESUME.
    control, gated, ring_base, ring_log2, ring_head, step_limit, watchdog : Out
        Values of the registers with these names; `control` and `gated` are bits 0 and 1 of CONTROL.
    segment_select, maximum_select, windows : Out
        Values of SEG_SELECT, MAXIMUM_SELECT and the registers of the DRAM windows.
    limit : In
        With `serial_commands`: index of the window limit that is returned two cycles later.
    irq : Out
        Interrupt pin, level-sensitive and active high.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__(
            {
                "write": In(stream.Signature(LITE_WRITE)),
                "write_bad": Out(1),
                "read": In(stream.Signature(LITE_READ)),
                "read_data": Out(32),
                "read_bad": Out(1),
                "cycle": In(64),
                "status": In(5),
                "tail": In(32),
                "trap": In(TRAP_LAYOUT),
                "trap_count": In(32),
                "segment_status": In(5),
                "loader_error": In(3),
                "irq_set": In(4),
                "counter_select": Out(32),
                "counter_read": Out(1),
                "counter_done": In(1),
                "counter_value": In(64),
                "maximum_select": Out(32),
                "maximum_value": In(32),
                "segment_op": Out(stream.Signature(SEGMENT_OP_LAYOUT)),
                "table_op": Out(stream.Signature(TABLE_OP_LAYOUT)),
                "resume": Out(1),
                "control": Out(1),
                "gated": Out(1),
                "ring_base": Out(32),
                "ring_log2": Out(5),
                "ring_head": Out(32),
                "step_limit": Out(32),
                "watchdog": Out(32),
                "segment_select": Out(32),
                "windows": Out(windows_layout(config)),
                **limit_ports(config, requests=False),
                "irq": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        self._m, self._decoded = Module(), Signal()
        m = self._m
        values: dict[str, Value] = {}
        for name in _PLAIN:
            zeros = _ZEROS.get(name, 0)
            store = Signal(_WIDTHS.get(name, 32) - zeros, name=name.lower())
            values[name] = Cat(Const(0, zeros), store) if zeros else store
            with m.If(self._writes(name)):
                m.d.sync += store.eq(self.write.p.data[zeros:])
            m.d.comb += self.write.ready.eq(1)
        for index in range(self.config.windows):
            self._window(m, index, values)
        self._start_operations(m, values)
        self._interrupts(m, values)
        values |= read_only(self)
        m.d.comb += [
            self.control.eq(values["CONTROL"][0]),
            self.gated.eq(values["CONTROL"][1]),
            self.ring_base.eq(values["RING_BASE"]),
            self.ring_log2.eq(values["RING_LOG2"]),
            self.ring_head.eq(values["RING_HEAD"]),
            self.step_limit.eq(values["STEP_LIMIT"]),
            self.watchdog.eq(values["WATCHDOG"]),
            self.segment_select.eq(values["SEG_SELECT"]),
            self.counter_select.eq(values["COUNTER_SELECT"]),
            self.maximum_select.eq(values["MAXIMUM_SELECT"]),
        ]
        self._read(m, values)
        self._delay_writes(m)
        return m

    def _delay_writes(self, m: Module) -> None:
        """Keep `write.ready` low until the register of the write is decoded."""

    def _hit(self, name: str) -> Value:
        """Return a value that is high if a write has the address of the named register."""
        return self.write.p.addr[2:] == ADDRESS[name] >> 2

    def _writes(self, name: str) -> Value:
        """Return a value that is high if the named register is written."""
        return self.write.valid & self._hit(name)

    def _window_registers(self, index: int) -> dict[str, Value]:
        """Return the registers of a DRAM window that are part of `windows`, keyed by the suffix of their names."""
        window = self.windows[index]
        return {name: window[name.lower()] for name in ("BASE", "LAST", "PERM")}

    def _window(self, m: Module, index: int, values: dict[str, Value]) -> None:
        for end, register in self._window_registers(index).items():
            name = f"WINDOW{index}_{end}"
            values[name] = register
            with m.If(self._writes(name)):
                m.d.sync += register.eq(self.write.p.data)

    def _start_operations(self, m: Module, values: dict[str, Value]) -> None:
        """Connect the writes that start an operation; a write waits until another component accepts its operation."""
        data, word_address = self.write.p.data, Signal(32, name="wis_address")
        values["WIS_ADDRESS"] = word_address
        op, table = self.segment_op, self.table_op
        known = Signal()
        m.d.comb += [
            op.p.segment.eq(values["SEG_SELECT"]),
            op.p.base.eq(values["SEG_BASE"]),
            op.p.length.eq(values["SEG_LENGTH"]),
            op.p.address.eq(word_address),
            op.p.word.eq(Cat(values["WIS_DATA_LO"], data)),
            op.p.crc.eq(values["SEG_CRC"]),
            op.p.source.eq(values["LOADER_SOURCE"]),
            table.p.index.eq(values["DISPATCH_INDEX"]),
            table.p.entry.candidate.eq(values["DISPATCH_WORD"]),
            table.p.entry.value.eq(data),
            known.eq((data != 0) & (data <= SegmentOp.PIN)),
            self.resume.eq(self._writes("RESUME") & data[0]),
        ]
        with m.If(self._writes("WIS_ADDRESS")):
            m.d.sync += word_address.eq(data)
        for name, kind, does in (
            ("SEG_COMMAND", data[:3], known),
            ("WIS_DATA_HI", SegmentOp.WRITE, Const(1)),
            ("LOADER_COMMAND", SegmentOp.LOAD, data == 1),
        ):
            with m.If(self._writes(name)):
                m.d.comb += [op.valid.eq(does), op.p.kind.eq(kind), self.write.ready.eq(op.ready | ~does)]
        with m.If(self._writes("WIS_DATA_HI") & op.ready):
            m.d.sync += word_address.eq(word_address + 1)
        for name, commit, does in (("DISPATCH_VALUE", 0, Const(1)), ("DISPATCH_COMMIT", 1, data[0])):
            with m.If(self._writes(name)):
                m.d.comb += [
                    table.valid.eq(does),
                    table.p.commit.eq(commit),
                    self.write.ready.eq(table.ready | ~does),
                ]

    def _interrupts(self, m: Module, values: dict[str, Value]) -> None:
        raised, cleared = Signal(4, name="irq_status"), Signal(4)
        values["IRQ_STATUS"] = raised
        with m.If(self._writes("IRQ_STATUS")):
            m.d.comb += cleared.eq(self.write.p.data)
        m.d.sync += [
            raised.eq(raised & ~cleared | self.irq_set),
            self.irq.eq((raised & values["IRQ_ENABLE"]).any()),
        ]

    def _read(self, m: Module, values: dict[str, Value]) -> None:
        """Add the two steps of a read: loading `read_data` from the selected register, and the transfer."""
        address, taken = self.read.p.addr, Signal()
        settled = Signal(range(_SETTLE + 1))
        cycle_high, counter_high = Signal(32), Signal(32)
        values |= {
            "CYCLE_LO": self.cycle[:32],
            "CYCLE_HI": cycle_high,
            "COUNTER_LO": self.counter_value[:32],
            "COUNTER_HI": counter_high,
        }
        with m.If(self._writes("MAXIMUM_SELECT")):
            m.d.sync += settled.eq(0)
        with m.Elif(settled != _SETTLE):
            m.d.sync += settled.eq(settled + 1)
        step, is_counter, is_cycle, ready = Signal(), Signal(), Signal(), Signal()
        m.d.comb += ready.eq(~is_counter | self.counter_done)
        self._look_up(m, taken, is_counter, ready)
        m.d.comb += [
            is_counter.eq(address[2:] == ADDRESS["COUNTER_LO"] >> 2),
            is_cycle.eq(address[2:] == ADDRESS["CYCLE_LO"] >> 2),
            self.counter_read.eq(self.read.valid & ~taken & is_counter),
            step.eq(self.read.valid & ~taken & (settled == _SETTLE) & ready),
            self.read.ready.eq(taken),
        ]
        m.d.sync += taken.eq(step)
        self._select_before(m, step, values)
        with m.If(step):
            self._select(m, values)
            with m.If(is_cycle):
                m.d.sync += cycle_high.eq(self.cycle[32:])
            with m.If(is_counter):
                m.d.sync += counter_high.eq(self.counter_value[32:])
        m.d.comb += self.write_bad.eq(1)
        known = (register.address >> 2 for register in REGISTERS)
        with m.Switch(self.write.p.addr[2:]), m.Case(*known):
            m.d.comb += self.write_bad.eq(0)

    def _look_up(self, m: Module, taken: Signal, is_counter: Signal, ready: Signal) -> None:
        """Add a memory of registers, whose look-up delays `ready` by one cycle; without such a memory, do nothing."""

    def _select_before(self, m: Module, step: Signal, values: dict[str, Value]) -> None:
        """In the cycle before `step`, select the register to read."""

    def _select(self, m: Module, values: dict[str, Value]) -> None:
        """In the cycle of `step`, select the register to read."""
        select_register(m, self.read.p.addr, values, self.read_data, self.read_bad)


class SerialCsr(Csr):
    """`Csr` for machines with `serial_commands`, with a memory for the registers that only store values written by the
    host.

    The memory also returns the limits of the DRAM windows, one at a time.

    Latency: as for `Csr`, but 3 cycles for reads. Throughput: as for `Csr`. Parameters and members are those of `Csr`.
    """

    def _window_registers(self, index: int) -> dict[str, Value]:
        return {"PERM": self.windows.perm[index]}

    def _look_up(self, m: Module, taken: Signal, is_counter: Signal, ready: Signal) -> None:
        masks = {name: ((1 << _WIDTHS.get(name, 32)) - 1) & -(1 << _ZEROS.get(name, 0)) for name in _PLAIN}
        self._words = add_words(m, self, masks, self._writes)
        looked = Signal()
        m.d.sync += looked.eq(self.read.valid & ~taken)
        m.d.comb += ready.eq(Mux(is_counter, self.counter_done, looked))

    def _select_before(self, m: Module, step: Signal, values: dict[str, Value]) -> None:
        wired = {name: value for name, value in values.items() if name not in self._words.masks}
        select_register_late(m, step, self.read.p.addr, wired, self._words, self.read_data, self.read_bad)

    def _select(self, m: Module, values: dict[str, Value]) -> None:
        pass


class PipelinedCsr(SerialCsr):
    """`SerialCsr` that decodes the address of a write in a separate cycle.

    Latency: as for `SerialCsr`, but 2 cycles for plain writes. Throughput: as for `Csr`. Parameters and members are
    those of `Csr`.
    """

    def _delay_writes(self, m: Module) -> None:
        m.d.sync += self._decoded.eq(self.write.valid & ~self.write.ready)
        with m.If(~self._decoded):
            m.d.comb += self.write.ready.eq(0)

    def _writes(self, name: str) -> Value:
        return self._decoded & pipeline_register(self._m, f"writes_{name}", self._hit(name))


def host_registers(config: MlaConfig) -> Csr:
    """Return the host registers of a machine; `serial_commands` and `pipelined` select the variant of `Csr`."""
    if config.serial_commands:
        return config.variant(SerialCsr, PipelinedCsr)(config)
    return Csr(config)
