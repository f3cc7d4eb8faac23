"""Tries schedules of one model on simulated machines."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Self

from compiler.ir.graph import Graph
from compiler.measure.conditions import Conditions
from compiler.measure.measurement import Measurement, Rejected, Result
from compiler.measure.reference import Reference
from compiler.measure.trial import measure_network
from compiler.network import Network
from compiler.options import Options
from compiler.pipeline import Prepared
from compiler.profile.floors import bus_rate
from compiler.runtime import dram_bytes
from compiler.schedule.schedule import Schedule
from cosim.pool import DevicePool
from hw.errors import InputError, WorkError

if TYPE_CHECKING:
    from cosim.rtl.rtl_device import RtlDevice

#: DRAM of a machine that candidates run on, as often as the first program needs it: others may keep more of it there.
_ROOM = 4
#: A candidate that takes so many times as long as the first program is given up.
_PATIENCE = 3
_PAGE = 4096


class Measurer:
    """Compiles schedules of a model, proves them harmless, runs them on the RTL, compares their outputs.

    Parameters
    ----------
    graph : Graph
        The model.
    conditions : Conditions
        The machine and its memory.
    options : Options
        As for `compile`; their memory is that of the conditions.
    devices : int or None
        Simulators at work at the same time; None: one for each core.
    seed : int
        Of the inputs, which are fresh for each measurement.
    say : callable
        Hears of progress.

    Attributes
    ----------
    prepared : Prepared
        The model, to be compiled under one schedule after another.
    first : Network
        What the static compiler makes for these conditions.
    asked : int
        Measurements so far.

    Raises
    ------
    InputError
        The model cannot be compiled for the machine, or nothing of it runs there.
    """

    def __init__(
        self, graph: Graph, conditions: Conditions, options: Options, devices: int | None = 1, seed: int = 0,
        say: Callable[[str], None] = lambda _text: None,
    ):  # fmt: skip
        self.conditions, self.say = conditions, say
        self.prepared = Prepared(graph, conditions.config, replace(options, dram=conditions.dram))
        self.first = self.prepared.network()
        if not self.first.codes:
            raise InputError(f"{graph.name}: no operator of it runs on the accelerator: nothing to measure")
        self.reference = Reference(self.first, seed)
        self.asked = 0
        self._limit: int | None = None
        self._lock = Lock()
        self._bytes = -(-_ROOM * dram_bytes(self.first) // _PAGE) * _PAGE
        self._stack = ExitStack()
        self.say("opening the machine (the first time its simulator is built: minutes)")
        self._pool = self._stack.enter_context(DevicePool(self._open, devices))

    @property
    def devices(self) -> int:
        """Simulators at work at the same time."""
        return len(self._pool.devices)

    def compile(self, schedule: Schedule) -> Network | Rejected:
        """The network under a schedule."""
        try:
            with self._lock:  # what it keeps from one schedule to the next is for one at a time
                network = self.prepared.network(schedule)
        except InputError as error:
            return Rejected("compile", str(error))
        if dram_bytes(network) > self._bytes:
            return Rejected("compile", f"it needs {dram_bytes(network)} bytes of DRAM, not {self._bytes}")
        return network

    def measure(self, schedules: Sequence[Schedule]) -> list[Result]:
        """What comes of some schedules, as many at the same time as there are devices.

        Raises
        ------
        WorkError
            A simulator died, or a disk is full.
        """
        numbers = count(self.asked)
        self.asked += len(schedules)
        return self._pool.map(self._one, list(zip(numbers, schedules, strict=False)))

    def baseline(self) -> Measurement:
        """The first program's cycles; asks for one measurement.

        Raises
        ------
        WorkError
            It cannot be measured, or its outputs are wrong.
        """
        (result,) = self.measure([self.first.schedule])
        if not isinstance(result, Measurement) or not result.believable:
            why = (
                f"{result.stage}: {result.reason}"
                if isinstance(result, Rejected)
                else "its outputs are wrong"
            )
            raise WorkError(f"{self.first.name}: the first program cannot be measured: {why}")
        self._limit = _PATIENCE * result.cycles
        return result

    def close(self) -> None:
        """Close the machines; may be called twice."""
        self._stack.close()

    def _one(self, device: "RtlDevice", item: tuple[int, Schedule]) -> Result:
        number, schedule = item
        network = self.compile(schedule)
        if isinstance(network, Rejected):
            return network
        rate = bus_rate(self.conditions.config, self.conditions.rate)
        return measure_network(device, network, self.reference.question(number), rate, self._limit)

    def _open(self) -> "RtlDevice":
        from cosim.rtl.rtl_device import RtlDevice

        dram = self.conditions.dram
        return RtlDevice(
            self.conditions.config, self._bytes, latency=dram.latency, bytes_per_cycle=self.conditions.rate
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
