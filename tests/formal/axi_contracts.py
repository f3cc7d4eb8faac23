"""Contracts of the AXI channels: assertions on blocks whose inputs are unconstrained."""

from abc import abstractmethod
from dataclasses import replace

from amaranth.hdl import Assert, Assume, Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hw.bus.axi import BOUNDARY, WRITE_MASTERS
from hw.bus.axi_arbiter import ReadArbiter, WriteArbiter
from hw.bus.axi_lite import AxiLite, lite_names
from hw.bus.dma_bursts import BurstWalk
from hw.config import MlaConfig
from hw.control.completion import RecordWriter
from hw.units.load.unit import LoadUnit
from hw.units.store.unit import StoreUnit

CONFIG = MlaConfig(n=4, sp_bytes=512, acc_bytes=1024, max_burst=4)
#: The same machine with beats of two rows.
WIDE = replace(CONFIG, bus_bytes=8)


def stable(m: Module, name: str, port: wiring.PureInterface, claim: type) -> None:
    """Add a claim (Assert or Assume): an offered payload and its `valid` remain unchanged until the transfer."""
    waiting = Signal(name=f"{name}_waiting")
    offered = Signal(len(port.payload.as_value()), name=f"{name}_offered")
    m.d.sync += [waiting.eq(port.valid & ~port.ready), offered.eq(port.payload.as_value())]
    m.d.comb += claim(~waiting | (port.valid & (port.payload.as_value() == offered)))


def constant(m: Module, value: Signal) -> Value:
    """Return the value that an unconstrained input has in the first cycle, in that cycle and all later ones."""
    later, held = Signal(name=f"{value.name}_later"), Signal.like(value, name=f"{value.name}_held")
    m.d.sync += later.eq(1)
    with m.If(~later):
        m.d.sync += held.eq(value)
    return Mux(later, held, value)


def whole(m: Module, port: wiring.PureInterface, config: MlaConfig) -> None:
    """Assert that bursts start at a beat and do not cross 4 KiB."""
    width = config.beat_bytes
    end = (port.payload.addr % BOUNDARY) + (port.payload.len + 1) * width
    m.d.comb += Assert(~port.valid | ((end <= BOUNDARY) & (port.payload.addr % width == 0)))


class Contract(wiring.Component):
    """A block with unconstrained inputs and assertions about its outputs.

    Parameters
    ----------
    block : wiring.Component
        Block to verify.
    free : dict of str to shape
        Further unconstrained inputs of the circuit, with which the assertions describe a choice.
    """

    def __init__(self, block: wiring.Component, free: dict[str, int] | None = None):
        self._block = block
        self._free = [path for path, member, _ in block.signature.flatten(block) if member.flow == In]
        shapes = {
            "__".join(map(str, path)): In(member.shape)
            for path, member, _ in block.signature.flatten(block)
            if member.flow == In
        }
        super().__init__(shapes | {name: In(shape) for name, shape in (free or {}).items()})

    def elaborate(self, platform: object) -> Elaboratable:
        """Drive the inputs and add the assertions."""
        m = Module()
        m.submodules.block = block = self._block
        for path in self._free:
            target = block
            for step in path:
                target = getattr(target, step) if isinstance(step, str) else target[step]
            m.d.comb += target.eq(getattr(self, "__".join(map(str, path))))
        self.claim(m, block)
        return m

    @abstractmethod
    def claim(self, m: Module, block: wiring.Component) -> None:
        """Add the assertions."""


class BurstContract(Contract):
    """Contract of the request walker for any command, back-pressure, `stop` and `allow`."""

    def __init__(self, config: MlaConfig = CONFIG):
        self._config = config
        super().__init__(BurstWalk(config))

    def claim(self, m: Module, block: BurstWalk) -> None:
        """Add the assertions."""
        stable(m, "request", block.request, Assert)
        whole(m, block.request, self._config)


class LoadContract(Contract):
    """Contract of LOAD for any command, response and abort."""

    def __init__(self, config: MlaConfig = CONFIG):
        self._config = config
        super().__init__(LoadUnit(config))

    def claim(self, m: Module, block: LoadUnit) -> None:
        """Add the assertions."""
        stable(m, "ar", block.ar, Assert)
        whole(m, block.ar, self._config)


class StoreContract(Contract):
    """Contract of STORE for any command, response and abort."""

    def __init__(self, config: MlaConfig = CONFIG):
        self._config = config
        super().__init__(StoreUnit(config))

    def claim(self, m: Module, block: StoreUnit) -> None:
        """Add the assertions."""
        stable(m, "aw", block.aw, Assert)
        stable(m, "w", block.w, Assert)
        whole(m, block.aw, self._config)


class RecordContract(Contract):
    """Contract of the writer of completion records for any records and back-pressure."""

    def __init__(self, config: MlaConfig = CONFIG):
        super().__init__(RecordWriter(config))

    def claim(self, m: Module, block: RecordWriter) -> None:
        """Add the assertions."""
        stable(m, "aw", block.aw, Assert)
        stable(m, "w", block.w, Assert)


class ReadContract(Contract):
    """Contract of the read arbiter; its masters need not obey the protocol."""

    def __init__(self):
        super().__init__(ReadArbiter(CONFIG))

    def claim(self, m: Module, block: ReadArbiter) -> None:
        """Add the assertions."""
        stable(m, "ar", block.ar, Assert)


class WriteContract(Contract):
    """Contract of the write arbiter; its masters obey the protocol."""

    def __init__(self):
        super().__init__(WriteArbiter(CONFIG))

    def claim(self, m: Module, block: WriteArbiter) -> None:
        """Add the assertions."""
        for name in WRITE_MASTERS:
            stable(m, name, getattr(block, f"{name}_w"), Assume)
        stable(m, "aw", block.aw, Assert)
        stable(m, "w", block.w, Assert)


class LiteContract(Contract):
    """Contract of the AXI4-Lite slave: responses stay valid until accepted, and each belongs to a request."""

    def __init__(self):
        super().__init__(AxiLite())

    def claim(self, m: Module, block: AxiLite) -> None:
        """Add the assertions."""
        pins = {name: getattr(block, f"s_axil_{name}") for name in lite_names()}
        for answer, fields in (("b", ("bresp",)), ("r", ("rdata", "rresp"))):
            waiting = Signal(name=f"{answer}_waiting")
            payload = Cat(pins[name] for name in fields)
            offered = Signal(len(payload), name=f"{answer}_offered")
            valid, ready = pins[f"{answer}valid"], pins[f"{answer}ready"]
            m.d.sync += [waiting.eq(valid & ~ready), offered.eq(payload)]
            m.d.comb += Assert(~waiting | (valid & (payload == offered)))
        stable(m, "write", block.write, Assert)
        stable(m, "read", block.read, Assert)
        for answer, requests in (("b", ("aw", "w")), ("r", ("ar",))):
            for request in requests:
                taken = pins[f"{request}valid"] & pins[f"{request}ready"]
                answered = pins[f"{answer}valid"] & pins[f"{answer}ready"]
                open_ = Signal(3, name=f"{request}_open")
                m.d.sync += open_.eq(open_ + taken - answered)
                m.d.comb += [
                    Assert(open_ <= 2),
                    Assert(~pins[f"{answer}valid"] | (open_ != 0)),
                    # Invariants of the counters that induction needs.
                    Assert(open_ == pins[f"{answer}valid"] + ~pins[f"{request}ready"]),
                ]


class OrderContract(Contract):
    """Contract of the write arbiter: W carries only beats of bursts that have been offered on AW."""

    def __init__(self):
        super().__init__(WriteArbiter(CONFIG))

    def claim(self, m: Module, block: WriteArbiter) -> None:
        """Add the assertions."""
        taken = Signal(
            8
        )  # bursts accepted on AW minus bursts completed on W; -1 while AW still offers the current one
        finished = block.w.valid & block.w.ready & block.w.payload.last
        m.d.sync += taken.eq(taken + (block.aw.valid & block.aw.ready) - finished)
        m.d.comb += Assert(~block.w.valid | block.aw.valid | ((taken != 0) & ~taken[-1]))


CONTRACTS = {
    c.__name__: c
    for c in (
        BurstContract,
        LoadContract,
        StoreContract,
        RecordContract,
        ReadContract,
        WriteContract,
        LiteContract,
        OrderContract,
    )
}
