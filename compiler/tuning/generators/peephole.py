"""Programs polished: the same commands, issued in another order or with their fields set at another time."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from compiler.profile.measurement import Measurement, Rejected, Result
from compiler.tuning.generators.generator import Candidate, Generator, GeneratorTask
from compiler.tuning.generators.rewrites import (
    Item,
    Rewrite,
    advance_fields,
    defer_fields,
    encode_items,
    move_commands,
    parse_items,
    peel_loops,
)
from hw.isa.assembler import assemble
from hw.isa.disassembler import disassemble
from hw.isa.enums import Unit
from hw.isa.program import Program


def _peel_and_defer(items: Sequence[Item]) -> list[Item]:
    return defer_fields(peel_loops(items))


def _defer_and_advance(items: Sequence[Item]) -> list[Item]:
    return advance_fields(defer_fields(items))


#: What is done to a program, by a name for people.
REWRITES: dict[str, Rewrite] = {
    "fields set late": defer_fields,
    "first turns of loops apart": _peel_and_defer,
    "loads two commands earlier": partial(move_commands, unit=Unit.LOAD, steps=2),
    "fields set early": _defer_and_advance,
    "sums a command earlier": partial(move_commands, unit=Unit.MATRIX, steps=1),
    "loads a command later": partial(move_commands, unit=Unit.LOAD, steps=-1),
    "drains a command earlier": partial(move_commands, unit=Unit.FUSE, steps=1),
    "loads eight commands earlier": partial(move_commands, unit=Unit.LOAD, steps=8),
    "stores a command later": partial(move_commands, unit=Unit.STORE, steps=-1),
}


class PeepholeGenerator(Generator):
    """Rewrites all programs in one way at a time; the cycles of each one's layers log which way is best for it."""

    name = "polish"

    def __init__(self) -> None:
        self._asked: dict[str, _Rewritten] = {}
        self._refused: deque[_Rewritten] = deque()
        self._gains: dict[str, dict[str, _Gain]] = {}

    def propose(self, task: GeneratorTask) -> Iterator[Candidate]:
        """Every rewrite of all programs, then for each program the one that helped it most."""
        self._asked, self._gains = {}, {name: {} for name in task.programs}
        self._refused.clear()
        for way, rewrite in REWRITES.items():
            yield from self._candidate(task, way, _rewritten(task, rewrite))
            while self._refused:
                again = self._refused.popleft()
                yield from self._candidate(task, again.way, again.texts)
        yield from self._mixed(task)

    def observe(self, candidate: Candidate, result: Result) -> None:
        """What each program gained; where the validator refused one of them, the others are tried without it."""
        asked = self._asked.pop(candidate.schedule.to_json(), None)
        if asked is None:
            return
        if isinstance(result, Rejected):
            left = {
                name: text for name, text in asked.texts.items() if f"program {name!r}" not in result.reason
            }
            if left and len(left) < len(asked.texts):
                self._refused.append(replace(asked, texts=left))
        elif result.believable:
            for name, text in asked.texts.items():
                before, after = (_cycles(asked.task, name, each) for each in (asked.task.measured, result))
                self._gains[name][asked.way] = _Gain(before - after, asked.way, text)

    def _candidate(self, task: GeneratorTask, way: str, texts: dict[str, str]) -> Iterator[Candidate]:
        if texts:
            candidate = task.with_texts(texts, self.name, way)
            self._asked[candidate.schedule.to_json()] = _Rewritten(task, way, texts)
            yield candidate

    def _mixed(self, task: GeneratorTask) -> Iterator[Candidate]:
        """The best of each program together; then without those that gained least."""
        best = [max(ways.values(), key=lambda each: each.cycles) for ways in self._gains.values() if ways]
        names = [name for name, ways in self._gains.items() if ways]
        chosen = sorted(
            ((name, gain) for name, gain in zip(names, best, strict=True) if gain.cycles > 0),
            key=lambda each: -each[1].cycles,
        )
        while chosen:
            why = "; ".join(f"{name}: {gain.way}" for name, gain in chosen)
            yield task.with_texts({name: gain.text for name, gain in chosen}, self.name, why)
            chosen = chosen[: len(chosen) // 2]


@dataclass(frozen=True)
class _Rewritten:
    """What a candidate was made of."""

    task: GeneratorTask
    way: str
    texts: dict[str, str]


@dataclass(frozen=True)
class _Gain:
    """Cycles that a program's layers took fewer with another text."""

    cycles: int
    way: str
    text: str


def _cycles(task: GeneratorTask, program: str, measured: Measurement) -> int:
    """Of the layers that a program has a part in."""
    names = set(task.layers_of[program])
    return sum(entry.cycles for entry in measured.layers if names & set(entry.names))


def _rewritten(task: GeneratorTask, rewrite: Rewrite) -> dict[str, str]:
    """Texts of the programs that a rewrite changes, as far as the instruction store has room for what they grow by."""
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
