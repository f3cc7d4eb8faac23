"""Measured trajectories of edits of one program, towards faster variants."""

import random
from dataclasses import replace

from compiler.llm.data.measure_harness import Devices, MeasureHarness
from compiler.llm.data.trajectories import EditVariant, EditWalk, Trajectory
from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import Schedule
from compiler.tuning.edits.edit import Edit, EditError, applied, draw_edits
from compiler.tuning.edits.editable_programs import EditableProgram, EditablePrograms
from hw.errors import InputError
from hw.isa.counters import CAUSES

#: Number of variants per program besides the compiled one, and attempts for each.
_VARIANTS, _PATIENCE = 24, 10
#: Fraction of trajectories that edit the program of a schedule other than the best one.
_ANY = 0.25
#: Fraction of variants that start from an arbitrary variant instead of the best one so far.
_ASTRAY = 0.15
#: Maximum number of commands; building variants of longer programs takes too long.
_LONGEST = 400


def edit_walk(devices: Devices, walk: Trajectory, rng: random.Random) -> EditWalk | None:
    """Measure edits of a program under one of the schedules of a trajectory; None if no program can be edited.

    Parameters
    ----------
    devices : Devices
        Simulated devices.
    walk : Trajectory
        Network and its schedules.
    rng : random.Random
        Random generator for the edits.

    Raises
    ------
    WorkError
        A simulator process died.
    """
    costs = [step.cycles for step in walk.steps]
    step = rng.randrange(len(costs)) if rng.random() < _ANY else costs.index(min(costs))
    try:
        rig = MeasureHarness(devices, walk.machine, walk.point)
        layers = dict(zip(rig.names, walk.schedules(step), strict=True))
        network = rig.prepared.network(replace(rig.first.schedule, layers=layers))
    except InputError:  # of another version of the compiler
        return None
    workshop = EditablePrograms(network)
    pieces = [piece for piece in workshop.pieces if 0 < len(piece.unrolled.commands) <= _LONGEST]
    measured = rig.measured(network) if pieces else None
    if measured is None:
        return None
    piece = rng.choices(pieces, [max(each.cycles(measured), 1) for each in pieces])[0]
    return _Editing(rig, workshop, piece, rng).walk(step, measured)


class _Editing:
    """Builds and measures variants of one program."""

    def __init__(
        self, rig: MeasureHarness, workshop: EditablePrograms, piece: EditableProgram, rng: random.Random
    ):
        self.rig, self.workshop, self.piece, self.rng = rig, workshop, piece, rng
        self._seen = {_text(workshop.schedule)}

    def walk(self, step: int, measured: Measurement) -> EditWalk:
        """Measure the variants; fewer if few edits have an effect."""
        made = EditWalk(step, self.piece.name, [self._variant(-1, None, measured)])
        edits: list[tuple[Edit, ...]] = [()]
        for _ in range(_VARIANTS):
            costs = [variant.cycles for variant in made.variants]
            best = costs.index(min(costs))
            base = self.rng.randrange(len(costs)) if self.rng.random() < _ASTRAY else best
            found = self._next(edits[base])
            if found is not None:
                made.variants.append(self._variant(base, *found))
                edits.append((*edits[base], found[0]))
        return made

    def _next(self, edits: tuple[Edit, ...]) -> tuple[Edit, Measurement] | None:
        """Measure one more edit."""
        commands = applied(self.workshop.config, self.piece.unrolled.commands, edits)
        for _ in range(_PATIENCE):
            found = draw_edits(self.workshop.config, commands, self.rng)
            if found is None:
                return None
            try:
                schedule = self.workshop.with_edits({self.piece.name: (*edits, found[0])})
                if (text := _text(schedule)) in self._seen:
                    continue
                self._seen.add(text)
                network = self.rig.prepared.network(schedule)
            except (EditError, InputError):  # too long for the instruction store
                continue
            if (measured := self.rig.measured(network)) is not None:
                return found[0], measured
        return None

    def _variant(self, base: int, edit: Edit | None, measured: Measurement) -> EditVariant:
        entries = [entry for entry in measured.layers if set(self.piece.layers) & set(entry.names)]
        where = [sum(entry.where[cause] for entry in entries) for cause in CAUSES]
        return EditVariant(base, edit, self.piece.cycles(measured), where)


def _text(schedule: Schedule) -> str:
    return "".join(each.text for each in schedule.programs.values())
