"""Reading the registers: the selected one into a register of its own."""

from amaranth.hdl import Const, Module, Signal, Value
from amaranth.lib import wiring

from hw.bus.register_map import ADDRESS, CONFIG_FIELDS, ID, REGISTERS
from hw.control.csr_words import CsrWords
from hw.lib.pipeline import register

ISA_VERSION = 1
#: Bits of a register's number, and the addresses' bits above it.
_NUMBER, _ABOVE = slice(2, 9), slice(9, None)


def read_only(csr: wiring.Component) -> dict[str, Value]:
    """Values of the registers that nobody writes."""
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


def choose(m: Module, address: Value, values: dict[str, Value], data: Signal, bad: Signal) -> None:
    """Value at an address, and whether there is none."""
    m.d.sync += [data.eq(0), bad.eq(1)]
    with m.Switch(address[2:]):
        for entry in REGISTERS:
            with m.Case(entry.address >> 2):
                m.d.sync += [data.eq(values.get(entry.name, 0)), bad.eq(0)]


def choose_late(
    m: Module,
    step: Value,
    address: Value,
    values: dict[str, Value],
    words: CsrWords,
    data: Signal,
    bad: Signal,
) -> None:
    """As `choose`, with what the host wrote in a memory; the address stands for a cycle before, in which each register
    finds out whether it is the one.
    """
    fixed, known = Signal(32), Signal()
    with m.Switch(address[_NUMBER]):
        for name, value in values.items():
            if isinstance(value, Const):
                with m.Case(ADDRESS[name] >> 2):
                    m.d.comb += fixed.eq(value)
    found = register(m, "fixed", fixed) | words.value
    for name, value in values.items():
        if not isinstance(value, Const):
            hit = register(m, f"reads_{name}", address[_NUMBER] == ADDRESS[name] >> 2)
            found = found | (value & hit.replicate(len(value)))
    with m.Switch(address[_NUMBER]), m.Case(*(entry.address >> 2 for entry in REGISTERS)):
        m.d.comb += known.eq(1)
    with m.If(step):
        m.d.sync += [data.eq(0), bad.eq(1)]
    with m.If(step & known & ~address[_ABOVE].any()):
        m.d.sync += [data.eq(found), bad.eq(0)]
