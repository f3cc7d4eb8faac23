"""The DMA blocks with the chip's pins: LOAD, STORE, arbiters, scratchpad, and protocol checkers."""

import os

from amaranth.hdl import Elaboratable, Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus.axi import BOUNDARY, BURST, RESPONSE, AxiMaster, drive_pins, pin_members, read_beat, write_beat
from hw.bus.axi_arbiter import ReadArbiter, WriteArbiter
from hw.config import MlaConfig
from hw.isa.enums import Unit
from hw.layouts import command_stream
from hw.memory.scratchpad import Scratchpad
from hw.units.load.unit import LoadUnit
from hw.units.store.unit import StoreUnit

#: Environment variable with the width of the bus in bytes, which the tests set.
BUS = "PIN_BUS_BYTES"
CONFIG = MlaConfig(n=8, bus_bytes=int(os.environ.get(BUS, "0")), sp_bytes=8192, acc_bytes=8192, max_burst=16)


class DmaTop(wiring.Component):
    """The DMA blocks connected to the AXI pins; the streams of ring fetches and completion records are ports.

    `unstable` is set permanently when a channel changes an offered payload or drops `valid`, and `crossing` is set
    permanently when a burst crosses 4 KiB. The counters are zero after a reset.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        counters = (
            "load_dones",
            "store_dones",
            "load_errors",
            "store_errors",
            "ar_bursts",
            "aw_bursts",
            "b_answers",
        )
        super().__init__(
            {
                **pin_members(config),
                "load_cmd": In(command_stream(Unit.LOAD)),
                "store_cmd": In(command_stream(Unit.STORE)),
                "fetch_ar": In(stream.Signature(BURST)),
                "fetch_r": Out(stream.Signature(read_beat(config))),
                "record_aw": In(stream.Signature(BURST)),
                "record_w": In(stream.Signature(write_beat(config))),
                "record_b": Out(stream.Signature(RESPONSE)),
                "abort": In(1),
                "load_busy": Out(1),
                "store_busy": Out(1),
                "unstable": Out(1),
                "crossing": Out(1),
                **{name: Out(16) for name in counters},
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        """Connect the blocks."""
        m = Module()
        config = self._config
        m.submodules.load = load = LoadUnit(config)
        m.submodules.store = store = StoreUnit(config)
        m.submodules.read_arbiter = reads = ReadArbiter(config)
        m.submodules.write_arbiter = writes = WriteArbiter(config)
        m.submodules.scratchpad = scratchpad = Scratchpad(config)
        bus = AxiMaster(config).create()
        drive_pins(m, config, self, bus)
        for ours, theirs in (
            (wiring.flipped(self.load_cmd), load.cmd),
            (wiring.flipped(self.store_cmd), store.cmd),
            (load.ar, reads.load_ar),
            (reads.load_r, load.r),
            (wiring.flipped(self.fetch_ar), reads.fetch_ar),
            (reads.fetch_r, wiring.flipped(self.fetch_r)),
            (store.aw, writes.store_aw),
            (store.w, writes.store_w),
            (writes.store_b, store.b),
            (wiring.flipped(self.record_aw), writes.record_aw),
            (wiring.flipped(self.record_w), writes.record_w),
            (writes.record_b, wiring.flipped(self.record_b)),
            (load.sp_write, scratchpad.load_write),
            (store.sp_read, scratchpad.store),
            (reads.ar, wiring.flipped(bus.ar)),
            (wiring.flipped(bus.r), reads.r),
            (writes.aw, wiring.flipped(bus.aw)),
            (writes.w, wiring.flipped(bus.w)),
            (wiring.flipped(bus.b), writes.b),
        ):
            wiring.connect(m, ours, theirs)
        m.d.comb += [
            load.abort.eq(self.abort),
            store.abort.eq(self.abort),
            self.load_busy.eq(load.busy),
            self.store_busy.eq(store.busy),
        ]
        for counter, event in (
            (self.load_dones, load.done),
            (self.store_dones, store.done),
            (self.load_errors, load.error),
            (self.store_errors, store.error),
            (self.ar_bursts, bus.ar.valid & bus.ar.ready),
            (self.aw_bursts, bus.aw.valid & bus.aw.ready),
            (self.b_answers, bus.b.valid & bus.b.ready),
        ):
            m.d.sync += counter.eq(counter + event)
        self._check(m, bus)
        return m

    def _check(self, m: Module, bus: wiring.PureInterface) -> None:
        for name in ("ar", "aw", "w"):
            port = getattr(bus, name)
            payload: Value = port.payload.as_value()
            waiting, offered = Signal(name=f"{name}_waiting"), Signal(len(payload), name=f"{name}_offered")
            m.d.sync += [waiting.eq(port.valid & ~port.ready), offered.eq(payload)]
            with m.If(waiting & (~port.valid | (payload != offered))):
                m.d.sync += self.unstable.eq(1)
        for port in (bus.ar, bus.aw):
            width = self._config.beat_bytes
            end = (port.payload.addr % BOUNDARY) + (port.payload.len + 1) * width
            with m.If(port.valid & ((end > BOUNDARY) | (port.payload.addr % width != 0))):
                m.d.sync += self.crossing.eq(1)
