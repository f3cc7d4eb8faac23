"""Tries schedules of one model on simulated machines."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, Self

from compiler.ir.graph import Graph
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, Measurement, Rejected, Result
from compiler.schedule.schedule import Schedule
from compiler.tuning.measure.runner import MeasureOrder, MeasureSubject
from compiler.tuning.measure.worker_pool import LocalWorker, WorkerGroup, WorkerPool
from hw.errors import InputError, WorkError

#: A candidate that takes so many times as long as the first program is given up.
_PATIENCE = 3


class MeasurementMemory(Protocol):
    """Remembers measurements of one model under some conditions."""

    def known(self, schedule: Schedule) -> Result | None:
        """What measuring a schedule gave before; None if it has not been measured."""
        ...

    def keep(self, schedule: Schedule, result: Result) -> None:
        """Remember a measurement, from when this returns."""
        ...


class Measurer:
    """Compiles schedules of a model, proves them harmless, runs them on the RTL, compares their outputs.

    Machines are opened for the first schedule that has to be run.

    Parameters
    ----------
    graph : Graph
        The model.
    conditions : Conditions
        The machine and its memory.
    options : Options
        As for `compile`; their memory is that of the conditions.
    devices : int or None
        Simulators at work at the same time, if there are several each in a process of its own; None: one for each core.
    seed : int
        Of the inputs, which are fresh for each measurement.
    say : callable
        Hears of progress.
    workers : callable or None
        Makes who measures instead, from what is measured.
    stream : bool
        Requests back to back are measured, as in serving, not one by itself.

    Attributes
    ----------
    prepared : Prepared
        The model, to be compiled under one schedule after another.
    first : Network
        What the static compiler makes for these conditions.
    asked : int
        Measurements so far.
    remembered : int
        Those of them that were not made anew.
    memory : Memory or None
        Asked before a schedule is measured, told of each measurement as soon as it is made; None at first.

    Raises
    ------
    InputError
        The model cannot be compiled for the machine, or nothing of it runs there.
    """

    def __init__(
        self,
        graph: Graph,
        conditions: HardwareProfile,
        options: CompileOptions,
        devices: int | None = 1,
        seed: int = 0,
        say: Callable[[str], None] = lambda _text: None,
        workers: Callable[[MeasureSubject], WorkerGroup] | None = None,
        *,
        stream: bool = False,
    ):
        self.conditions, self.say = conditions, say
        self.prepared = ModelCompiler(graph, conditions.config, replace(options, dram=conditions.dram))
        self.first = self.prepared.network()
        if not self.first.codes:
            raise InputError(f"{graph.name}: no operator of it runs on the accelerator: nothing to measure")
        self.memory: MeasurementMemory | None = None
        self.asked = self.remembered = 0
        self._limit: int | None = None
        subject = MeasureSubject(self.prepared, self.first, conditions, seed, stream)
        self._workers = _local(subject, devices) if workers is None else workers(subject)
        self._opened = False

    @property
    def devices(self) -> int:
        """Simulators at work at the same time."""
        return self._workers.count

    def measure(self, schedules: Sequence[Schedule]) -> list[Result]:
        """What comes of some schedules, as many at the same time as there are devices.

        Raises
        ------
        WorkError
            Simulators die, or a disk is full.
        """
        orders = [
            MeasureOrder(number, schedule, self._limit)
            for number, schedule in enumerate(schedules, self.asked)
        ]
        self.asked += len(schedules)
        found = [None if self.memory is None else self.memory.known(schedule) for schedule in schedules]
        places = [place for place, result in enumerate(found) if result is None]
        self.remembered += len(schedules) - len(places)
        if places and not self._opened:
            self.say("opening the simulated chip")
            self._workers.prepare()
            self._opened = True
        for place, result in self._workers.results([orders[place] for place in places]):
            found[places[place]] = result
            if self.memory is not None:
                self.memory.keep(schedules[places[place]], result)
        return [result for result in found if result is not None]

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
        self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _local(subject: MeasureSubject, devices: int | None) -> WorkerGroup:
    """Who measures on this machine: the process itself, or several of its own."""
    number = len(os.sched_getaffinity(0)) if devices is None else devices
    if number < 1:
        raise InputError(f"devices must be at least 1, not {number!r}")
    return LocalWorker(subject) if number == 1 else WorkerPool(subject, number)
