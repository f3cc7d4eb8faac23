"""Included generators of candidates: tilings and fusion of layers, and programs with instructions reordered."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from compiler.cost.learned_model import find_model
from compiler.profile.measurement import Measurement, Rejected, Result
from compiler.schedule.schedule import Schedule
from compiler.tuning.edits.rewrites import (
    Item,
    Rewrite,
    advance_fields,
    defer_fields,
    encode_items,
    move_commands,
    parse_items,
    peel_loops,
)
from compiler.tuning.fusion_engine import FusionEngine
from compiler.tuning.generators.generator import Candidate, Generator, GeneratorTask
from compiler.tuning.layer_space import spaces_of
from compiler.tuning.network_cost_model import NetworkCostModel
from hw.isa.assembler import assemble
from hw.isa.disassembler import disassemble
from hw.isa.enums import Unit
from hw.isa.program import Program

#: Number of tilings of a layer whose cycles are predicted (the best by the static compiler's estimate), and number of
#: tilings that are proposed.
_MAX_PREDICTED, _MAX_PROPOSED = 64, 4


class TilingGenerator(Generator):
    """Generator of other tilings of one layer at a time, selected by the predicted cycles of the whole network."""

    name = "tiling"

    def propose(self, task: GeneratorTask) -> Iterator[Candidate]:
        """Yield the most promising tilings of the task's layers, largest predicted gain first."""
        cost_model = NetworkCostModel(task.prepared, task.conditions, find_model(task.conditions))
        base = Schedule(task.schedule.fusions, task.schedule.layers)
        now = cost_model.predict(base).cycles
        found: list[tuple[float, Candidate]] = []
        stages = task.prepared.lowered(base.fusions)
        for name, space in spaces_of(task.prepared.config, stages, task.conditions.dram).items():
            if name in task.layers:
                mine = base.layers[name]
                tilings = [space.with_context(each.schedule, mine) for each in space.tilings[:_MAX_PREDICTED]]
                candidates = [
                    task.with_layers({name: each}, self.name, f"tiling of {name}")
                    for each in tilings
                    if each != mine
                ]
                costs = sorted(
                    ((cost_model.predict(each.schedule), each) for each in candidates),
                    key=lambda each: each[0].cycles,
                )
                found += [
                    (cost.cycles, Candidate(each.schedule, self.name, each.description, cost.cycles))
                    for cost, each in costs[:_MAX_PROPOSED]
                    if cost.cycles < now
                ]
        found.sort(key=lambda each: each[0])
        yield from (candidate for _, candidate in found)


class FusionGenerator(Generator):
    """Generator of fusion options whose predicted gain plus expected prediction error is positive."""

    name = "fusion"

    def propose(self, task: GeneratorTask) -> Iterator[Candidate]:
        """Yield the fixed point of the engine, all promising options combined, then each option separately."""
        engine = FusionEngine(task.prepared, task.conditions, find_model(task.conditions))
        opportunities = [
            opportunity
            for opportunity in engine.opportunities(task.schedule)
            if set(opportunity.layers) <= set(task.layers)
        ]
        options = [
            option for option in engine.options(task.schedule, opportunities) if option.optimistic_gain > 0
        ]
        base = Schedule(task.schedule.fusions, task.schedule.layers)
        wholes = (
            ("fixed point", engine.fixed_point(base, layers=task.layers)),
            ("all promising options", engine.combine(task.schedule, options)),
        )
        for description, whole in wholes:
            if whole is not None and whole != base:
                predicted = engine.predict(whole).cycles
                yield Candidate(whole, self.name, description, predicted)
        for option in options:
            why = f"{option.opportunity.kind} {' + '.join(option.opportunity.layers)}: {option.description}"
            yield Candidate(option.schedule, self.name, why, option.prediction.cycles)


def _peel_and_defer(items: Sequence[Item]) -> list[Item]:
    return defer_fields(peel_loops(items))


def _defer_and_advance(items: Sequence[Item]) -> list[Item]:
    return advance_fields(defer_fields(items))


#: Rewrites of a program by description.
REWRITES: dict[str, Rewrite] = {
    "fields set late": defer_fields,
    "first iterations of loops peeled": _peel_and_defer,
    "loads two commands earlier": partial(move_commands, unit=Unit.LOAD, steps=2),
    "fields set early": _defer_and_advance,
    "sums a command earlier": partial(move_commands, unit=Unit.MATRIX, steps=1),
    "loads a command later": partial(move_commands, unit=Unit.LOAD, steps=-1),
    "drains a command earlier": partial(move_commands, unit=Unit.FUSE, steps=1),
    "loads eight commands earlier": partial(move_commands, unit=Unit.LOAD, steps=8),
    "stores a command later": partial(move_commands, unit=Unit.STORE, steps=-1),
}


class PeepholeGenerator(Generator):
    """Generator that applies one rewrite at a time to all programs, then combines the best rewrites.

    The measured cycles of a program's layers show which rewrite is best for the program.
    """

    name = "peephole"

    def __init__(self) -> None:
        self._pending: dict[str, _Rewritten] = {}
        self._rejected: deque[_Rewritten] = deque()
        self._gains: dict[str, dict[str, _Gain]] = {}

    def propose(self, task: GeneratorTask) -> Iterator[Candidate]:
        """Yield each rewrite applied to all programs, then combinations of the best rewrite of each program."""
        self._pending, self._gains = {}, {name: {} for name in task.programs}
        self._rejected.clear()
        for description, rewrite in REWRITES.items():
            yield from self._candidate(task, description, _rewritten(task, rewrite))
            while self._rejected:
                again = self._rejected.popleft()
                yield from self._candidate(task, again.description, again.texts)
        yield from self._combinations(task)

    def observe(self, candidate: Candidate, result: Result) -> None:
        """Record the gain of each program; if the validator rejected a program, schedule a retry without it."""
        rewritten = self._pending.pop(candidate.schedule.to_json(), None)
        if rewritten is None:
            return
        if isinstance(result, Rejected):
            left = {
                name: text
                for name, text in rewritten.texts.items()
                if f"program {name!r}" not in result.reason
            }
            if left and len(left) < len(rewritten.texts):
                self._rejected.append(replace(rewritten, texts=left))
        elif result.valid:
            task = rewritten.task
            for name, text in rewritten.texts.items():
                before, after = (_cycles(task, name, each) for each in (task.measured, result))
                gain = _Gain(before - after, rewritten.description, text)
                self._gains[name][rewritten.description] = gain

    def _candidate(self, task: GeneratorTask, description: str, texts: dict[str, str]) -> Iterator[Candidate]:
        if texts:
            candidate = task.with_texts(texts, self.name, description)
            self._pending[candidate.schedule.to_json()] = _Rewritten(task, description, texts)
            yield candidate

    def _combinations(self, task: GeneratorTask) -> Iterator[Candidate]:
        """Yield the best rewrites of all programs combined, then repeatedly only the half with the largest gains."""
        best = [max(gains.values(), key=lambda each: each.cycles) for gains in self._gains.values() if gains]
        names = [name for name, gains in self._gains.items() if gains]
        chosen = sorted(
            ((name, gain) for name, gain in zip(names, best, strict=True) if gain.cycles > 0),
            key=lambda each: -each[1].cycles,
        )
        while chosen:
            description = "; ".join(f"{name}: {gain.description}" for name, gain in chosen)
            yield task.with_texts({name: gain.text for name, gain in chosen}, self.name, description)
            chosen = chosen[: len(chosen) // 2]


@dataclass(frozen=True)
class _Rewritten:
    """Task, rewrite and program texts of a candidate."""

    task: GeneratorTask
    description: str
    texts: dict[str, str]


@dataclass(frozen=True)
class _Gain:
    """Cycles that a rewrite of a program saves in the program's layers."""

    cycles: int
    description: str
    text: str


def _cycles(task: GeneratorTask, program: str, measured: Measurement) -> int:
    """Return the measured cycles of the layers that a program executes."""
    names = set(task.layers_of[program])
    return sum(entry.cycles for entry in measured.layers if names & set(entry.names))


def _rewritten(task: GeneratorTask, rewrite: Rewrite) -> dict[str, str]:
    """Apply a rewrite to all programs; return the texts of those that change and still fit the instruction store."""
    programs = [assemble(text, name) for name, text in task.programs.items()]
    everything = [program for code in task.network.codes for program in code.programs]
    room = task.conditions.config.wis_words - sum(len(program.words) for program in everything)
    out: dict[str, str] = {}
    for name, program in zip(task.programs, programs, strict=True):
        items = parse_items(program.words)
        words = program.words if items is None else encode_items(rewrite(items))
        grown = len(words) - len(program.words)
        if words != program.words and grown <= max(room, 0):
            room -= max(grown, 0)
            out[name] = disassemble(Program(program.name, words))
    return out
