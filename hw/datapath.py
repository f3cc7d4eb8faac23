"""The four units and the memories that they access."""

from amaranth.hdl import Elaboratable, Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw.bus.axi import BURST, RESPONSE, read_beat, write_beat
from hw.config import MlaConfig
from hw.isa.enums import Unit
from hw.layouts import command_stream, event_layout
from hw.memory.accumulator import Accumulator
from hw.memory.scratchpad import SP_EVENTS, PipelinedScratchpad, Scratchpad
from hw.units.fuse import FuseUnit
from hw.units.load.unit import LoadUnit
from hw.units.matrix.unit import MatrixUnit
from hw.units.store.unit import StoreUnit

#: State of MATRIX from which the cause of each array cycle is determined.
MATRIX_STATE = ("row_entering", "wait_weights", "weight_shift", "in_flight")
#: Units whose results are visible before a command is done.
_EARLY = ("load", "matrix", "fuse")
#: Statistics of the last commands that programs can read.
RESULTS_LAYOUT = data.StructLayout(
    {
        "fuse_rows": 32,
        "fuse_zeros": 32,
        "fuse_min": 32,
        "fuse_max": 32,
        "matrix_zeros": 32,
    }
)


class Datapath(wiring.Component):
    """LOAD, MATRIX, FUSE and STORE around scratchpad and accumulator.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    load, matrix, fuse, store : In(stream)
        Commands that may start.
    visible, done : Out(4)
        One bit for each unit: one-cycle pulse when the results of a command are visible to commands that start in the
        next cycle, and when the command is complete.
    abort : In(1), dma_busy : Out(2)
        `abort` makes LOAD and STORE discard their commands; `dma_busy` is high for a unit with bursts in flight or
        commands in progress (bit 0 LOAD, bit 1 STORE).
    tag_busy : In(2)
        High if the counters of LOAD (bit 0) or STORE (bit 1) cannot change to another tag.
    load_error, store_error : Out(1), load_error_addr, store_error_addr : Out(32)
        Bus errors of LOAD and STORE, and their addresses.
    ar, r, aw, w, b
        Bus channels of LOAD and STORE.
    {unit}_events, fuse_out_events, sp_events : Out, acc_reads, acc_conflicts : Out(2)
        Increments of the counters.
    {unit}_active, {unit}_tag : Out
        High if the unit has a command; tag of this command.
    matrix_tagged : Out
        High if MATRIX reports events with a tag in this cycle.
    matrix_state : Out
        State of the MATRIX unit for the counters (MATRIX_STATE).
    results : Out
        Statistics of the last command of each unit.
    in_flight_max, latency_max : Out(16)
        Maximum number of LOAD's requests in flight, and their maximum latency in cycles.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        units = [unit.name.lower() for unit in Unit]
        super().__init__(
            {
                **{unit.name.lower(): In(command_stream(unit)) for unit in Unit},
                "visible": Out(len(Unit)),
                "done": Out(len(Unit)),
                "abort": In(1),
                "dma_busy": Out(2),
                "tag_busy": In(2),
                "load_error": Out(1),
                "store_error": Out(1),
                "load_error_addr": Out(32),
                "store_error_addr": Out(32),
                "ar": Out(stream.Signature(BURST)),
                "r": In(stream.Signature(read_beat(config))),
                "aw": Out(stream.Signature(BURST)),
                "w": Out(stream.Signature(write_beat(config))),
                "b": In(stream.Signature(RESPONSE)),
                **{f"{unit}_events": Out(event_layout(unit)) for unit in units},
                **{f"{unit}_active": Out(1) for unit in units},
                **{f"{unit}_tag": Out(6) for unit in units},
                "fuse_out_events": Out(event_layout("fuse_out")),
                "sp_events": Out(SP_EVENTS),
                "acc_reads": Out(2),
                "acc_conflicts": Out(2),
                "matrix_tagged": Out(1),
                "matrix_state": Out(data.StructLayout(dict.fromkeys(MATRIX_STATE, 1))),
                "results": Out(RESULTS_LAYOUT),
                "in_flight_max": Out(16),
                "latency_max": Out(16),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        config = self._config
        units = {
            "load": LoadUnit(config),
            "matrix": MatrixUnit(config),
            "fuse": FuseUnit(config),
            "store": StoreUnit(config),
        }
        for name, unit in units.items():
            m.submodules[name] = unit
            connect(m, flipped(getattr(self, name)), unit.cmd)
            m.d.comb += [
                self.visible[Unit[name.upper()]].eq(getattr(unit, "visible" if name in _EARLY else "done")),
                self.done[Unit[name.upper()]].eq(unit.done),
                getattr(self, f"{name}_events").eq(unit.events),
                getattr(self, f"{name}_active").eq(unit.active),
                getattr(self, f"{name}_tag").eq(unit.event_tag if name == "matrix" else unit.active_tag),
            ]
        self._memories(m, **units)
        self._bus(m, units["load"], units["store"])
        self._report(m, units["matrix"], units["fuse"], units["load"])
        return m

    def _memories(
        self, m: Module, load: LoadUnit, matrix: MatrixUnit, fuse: FuseUnit, store: StoreUnit
    ) -> None:
        m.submodules.sp = sp = self._config.variant(Scratchpad, PipelinedScratchpad)(self._config)
        m.submodules.acc = acc = Accumulator(self._config)
        connect(m, matrix.act, sp.act)
        connect(m, matrix.weight, sp.weight)
        connect(m, fuse.sp_read, sp.fuse)
        connect(m, store.sp_read, sp.store)
        connect(m, fuse.sp_write, sp.fuse_write)
        connect(m, load.sp_write, sp.load_write)
        connect(m, load.slot_write, fuse.slot_write)
        connect(m, matrix.update, acc.update)
        connect(m, fuse.acc_read, acc.fuse_read)
        connect(m, fuse.acc_write, acc.fuse_write)
        m.d.comb += [
            self.sp_events.eq(sp.events),
            self.acc_reads.eq(acc.reads),
            self.acc_conflicts.eq(acc.conflicts),
        ]

    def _bus(self, m: Module, load: LoadUnit, store: StoreUnit) -> None:
        connect(m, load.ar, flipped(self.ar))
        connect(m, flipped(self.r), load.r)
        connect(m, store.aw, flipped(self.aw))
        connect(m, store.w, flipped(self.w))
        connect(m, flipped(self.b), store.b)
        for index, (name, unit) in enumerate((("load", load), ("store", store))):
            m.d.comb += [
                unit.abort.eq(self.abort),
                self.dma_busy[index].eq(unit.busy),
                unit.tag_busy.eq(self.tag_busy[index]),
                getattr(self, f"{name}_error").eq(unit.error),
                getattr(self, f"{name}_error_addr").eq(unit.error_addr),
            ]

    def _report(self, m: Module, matrix: MatrixUnit, fuse: FuseUnit, load: LoadUnit) -> None:
        m.d.comb += [
            self.fuse_out_events.eq(fuse.out_events),
            self.results.fuse_rows.eq(fuse.rows),
            self.results.fuse_zeros.eq(fuse.zeros),
            self.results.fuse_min.eq(fuse.min),
            self.results.fuse_max.eq(fuse.max),
            self.results.matrix_zeros.eq(matrix.zeros),
            self.matrix_tagged.eq(matrix.tagged),
            self.in_flight_max.eq(load.in_flight_max),
            self.latency_max.eq(load.latency_max),
        ]
        m.d.comb += [self.matrix_state[name].eq(getattr(matrix, name)) for name in MATRIX_STATE]
