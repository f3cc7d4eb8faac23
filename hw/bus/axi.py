"""The AXI4 master side: payloads, identifiers and pins.

Inside the machine, a channel is a stream. The masters' streams have no identifiers; the arbiters add them. Every burst
has type INCR and full-width beats, starts at a multiple of the bus width and does not cross a multiple of 4 KiB.
"""

from amaranth.hdl import Module, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig

ID_BITS = 2
#: Boundary in bytes: a burst must not cross a multiple of this number.
BOUNDARY = 4096
#: Bit of `resp` that is set in SLVERR and DECERR.
RESP_ERROR_BIT = 1
#: Names of the read masters, in the order of their identifiers.
READ_MASTERS = ("load", "fetch", "loader")
#: Names of the write masters, in the order of their identifiers.
WRITE_MASTERS = ("store", "record")

#: AR and AW of one master: byte address, and number of beats minus one.
BURST = data.StructLayout({"addr": 32, "len": 8})
#: AR and AW at the pins.
ID_BURST = data.StructLayout({"addr": 32, "len": 8, "id": ID_BITS})
#: B of one master, followed by B at the pins.
RESPONSE = data.StructLayout({"resp": 2})
ID_RESPONSE = data.StructLayout({"resp": 2, "id": ID_BITS})


def read_beat(config: MlaConfig) -> data.StructLayout:
    """Return the layout of the R channel of one master."""
    return data.StructLayout({"data": 8 * config.beat_bytes, "resp": 2, "last": 1})


def id_read_beat(config: MlaConfig) -> data.StructLayout:
    """Return the layout of the R channel at the pins."""
    return data.StructLayout({"data": 8 * config.beat_bytes, "resp": 2, "last": 1, "id": ID_BITS})


def write_beat(config: MlaConfig) -> data.StructLayout:
    """Return the layout of the W channel, which is the same for a master and at the pins."""
    return data.StructLayout({"data": 8 * config.beat_bytes, "strb": config.beat_bytes, "last": 1})


def chunk_beats(config: MlaConfig) -> int:
    """Return the distance in beats between the addresses at which bursts are split: a power of two, at most `max_burst`
    and at most 4 KiB.
    """
    return min(config.max_burst, BOUNDARY // config.beat_bytes)


class AxiMaster(wiring.Signature):
    """The five channels at the edge of the chip, from the chip's point of view: streams with identifiers."""

    def __init__(self, config: MlaConfig):
        super().__init__(
            {
                "ar": Out(stream.Signature(ID_BURST)),
                "r": In(stream.Signature(id_read_beat(config))),
                "aw": Out(stream.Signature(ID_BURST)),
                "w": Out(stream.Signature(write_beat(config))),
                "b": In(stream.Signature(ID_RESPONSE)),
            }
        )


def pin_members(config: MlaConfig, prefix: str = "m_axi_") -> dict[str, wiring.Member]:
    """Return the pins of the master by name, for a component's signature; `drive_pins` connects them to an
    AxiMaster.
    """
    address = {"id": ID_BITS, "addr": 32, "len": 8, "size": 3, "burst": 2}
    outputs = {
        "ar": address,
        "aw": address,
        "w": {"data": 8 * config.beat_bytes, "strb": config.beat_bytes, "last": 1},
    }
    inputs = {
        "r": {"id": ID_BITS, "data": 8 * config.beat_bytes, "resp": 2, "last": 1},
        "b": {"id": ID_BITS, "resp": 2},
    }
    members: dict[str, wiring.Member] = {}
    for flow, reverse, channels in ((Out, In, outputs), (In, Out, inputs)):
        for channel, fields in channels.items():
            members |= {f"{prefix}{channel}valid": flow(1), f"{prefix}{channel}ready": reverse(1)}
            members |= {f"{prefix}{channel}{name}": flow(width) for name, width in fields.items()}
    return members


def drive_pins(
    m: Module, config: MlaConfig, top: wiring.Component, bus: wiring.PureInterface, prefix: str = "m_axi_"
) -> None:
    """Connect the pins of `top` (see `pin_members`) to `bus`, an interface with the signature AxiMaster."""

    def pin(name: str) -> Value:
        return getattr(top, prefix + name)

    for channel in ("ar", "aw", "w"):
        port = getattr(bus, channel)
        m.d.comb += [pin(f"{channel}valid").eq(port.valid), port.ready.eq(pin(f"{channel}ready"))]
        m.d.comb += [pin(f"{channel}{name}").eq(port.payload[name]) for name in port.payload.shape().members]
    size = (config.beat_bytes - 1).bit_length()
    for channel in ("ar", "aw"):
        m.d.comb += [pin(f"{channel}size").eq(size), pin(f"{channel}burst").eq(1)]
    for channel in ("r", "b"):
        port = getattr(bus, channel)
        m.d.comb += [port.valid.eq(pin(f"{channel}valid")), pin(f"{channel}ready").eq(port.ready)]
        m.d.comb += [port.payload[name].eq(pin(f"{channel}{name}")) for name in port.payload.shape().members]
