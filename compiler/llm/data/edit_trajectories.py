"""A walk over edits of one program of a network, towards faster ones."""

import random
from dataclasses import replace

from compiler.llm.data.measure_harness import Devices, MeasureHarness
from compiler.llm.data.trajectories import EditVariant, EditWalk, Trajectory
from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import Schedule
from compiler.tuning.edits.edit import Edit, EditError, applied
from compiler.tuning.edits.editable_programs import EditableProgram, EditablePrograms
from compiler.tuning.edits.random_edits import draw_edits
from hw.errors import InputError
from hw.isa.counters import CAUSES

#: Variants of a program beside the one that is compiled; tries for each.
_VARIANTS, _PATIENCE = 24, 10
#: Part of the walks that are of another schedule's program than the best one's.
_ANY = 0.25
#: Variants are made from the best so far, but for this part of them, which are made from any other.
_ASTRAY = 0.15
#: Commands of a program at most: each variant of a longer one takes too long to make.
_LONGEST = 400


def edit_walk(devices: Devices, walk: Trajectory, rng: random.Random) -> EditWalk | None:
    """Edits of a program under one of a walk's schedules, measured; None: no program of it can be edited.

    Parameters
    ----------
    devices : Devices
        The machines.
    walk : Walk
        The network, and its schedules.
    rng : random.Random
        Chance.

    Raises
    ------
    WorkError
        A simulator died.
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
    """Variants of one program."""

    def __init__(
        self, rig: MeasureHarness, workshop: EditablePrograms, piece: EditableProgram, rng: random.Random
    ):
        self.rig, self.workshop, self.piece, self.rng = rig, workshop, piece, rng
        self._seen = {_text(workshop.schedule)}

    def walk(self, step: int, measured: Measurement) -> EditWalk:
        """As many variants as there are to be, fewer where few edits change anything."""
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
        """One edit more, measured."""
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
