"""Pins of `mla_chip` as Amaranth members, and connection of blocks to them by name."""

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

ADDRESS = {"id": 2, "addr": 32, "len": 8, "size": 3, "burst": 2}


def _channel(prefix: str, channel: str, fields: dict[str, int], forward: bool) -> dict:
    there, back = (Out, In) if forward else (In, Out)
    pins = {f"{prefix}_{channel}{name}": there(width) for name, width in fields.items()}
    return pins | {f"{prefix}_{channel}valid": there(1), f"{prefix}_{channel}ready": back(1)}


def read_pins(n: int) -> dict:
    """Return the pins of the AXI4 master's AR and R channels."""
    beat = {"id": 2, "data": 8 * n, "resp": 2, "last": 1}
    return _channel("m_axi", "ar", ADDRESS, True) | _channel("m_axi", "r", beat, False)


def write_pins(n: int) -> dict:
    """Return the pins of the AXI4 master's AW, W and B channels."""
    beat = {"data": 8 * n, "strb": n, "last": 1}
    pins = _channel("m_axi", "aw", ADDRESS, True) | _channel("m_axi", "w", beat, True)
    return pins | _channel("m_axi", "b", {"id": 2, "resp": 2}, False)


def host_pins() -> dict:
    """Return the pins of the AXI4-Lite slave."""
    pins = _channel("s_axil", "aw", {"addr": 16}, False) | _channel("s_axil", "b", {"resp": 2}, True)
    pins |= _channel("s_axil", "w", {"data": 32, "strb": 4}, False)
    pins |= _channel("s_axil", "ar", {"addr": 16}, False)
    return pins | _channel("s_axil", "r", {"data": 32, "resp": 2}, True)


def join(m: Module, chip: wiring.Component, block: wiring.Component) -> None:
    """Connect the pins of `block` to the pins of the same name in `m`."""
    for name, member in block.signature.members.items():
        if name.startswith(("m_axi_", "s_axil_")):
            inner, outer = getattr(block, name), getattr(chip, name)
            m.d.comb += outer.eq(inner) if member.flow is Out else inner.eq(outer)
