"""Split of a network's command sequence into programs that fit the instruction store."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from compiler.codegen.dispatch_guard import GuardedProgram
from compiler.codegen.emit import (
    MIN_SAVED_COMMANDS,
    Item,
    ProgramEmitter,
    ProgramLengthError,
    RegistersError,
    reroll,
)
from compiler.codegen.semaphores import Issued
from compiler.util.lru_cache import LruCache
from cosim.programs import Candidate
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.enums import Unit
from hw.isa.micro_instruction import MicroOp, decode
from hw.isa.program import Program

#: Cache of programs; the key is everything on which a program depends.
ProgramCache = LruCache[list[Program]]
#: Limit on the total number of commands of cached programs.
_MAX_CACHED_COMMANDS = 1 << 15
#: Number of parts of a split command sequence if its program would fill at least so many instruction stores.
_LONG_PARTS, _FULL_STORES = 8, 4
#: Number of commands that a loop saves if its instructions for registers do not matter, and share of the words of a
#: long program that may remain with such loops only.
_LONG_LOOP, _SHORTER = 12, 0.95
#: Mask of the bits of a tag.
_TAGS = 63


@dataclass(frozen=True)
class ProgramPart:
    """Program with the guarded programs that may replace it.

    Parameters
    ----------
    program : Program
        Program that runs if no guard holds.
    layers : tuple of int
        Layers whose commands the program issues, except those for which it only prefetches weights.
    instead : tuple of GuardedProgram
        Alternatives bound to the same opcode; the first alternative whose guard holds runs instead of `program`.
    """

    program: Program
    layers: tuple[int, ...]
    instead: tuple[GuardedProgram, ...] = ()

    @property
    def programs(self) -> tuple[Program, ...]:
        """All programs in the order of the dispatch table, with the unguarded program last."""
        return (*(variant.program for variant in self.instead), self.program)

    @cached_property
    def tag(self) -> int:
        """First tag that the program sets; 0 if the program sets no tag.

        The macro-instruction starts with this tag. If it started with another tag, units would see two tag changes,
        and the second change would wait until the counters of the first tag are saved.
        """
        for word in self.program.words:
            values = decode(word)
            if values["opcode"] == MicroOp.TAG:
                return 0 if values["a"] or values["b"] else values["imm"] & _TAGS
        return 0


def program_cache() -> ProgramCache:
    """Return an empty cache for the programs of one network under successive schedules."""
    return LruCache(_MAX_CACHED_COMMANDS)


def split_into_programs(
    config: MlaConfig,
    commands: Sequence[Issued],
    names: Sequence[str],
    joined: Sequence[bool],
    tags: Sequence[int],
    known: ProgramCache | None = None,
) -> tuple[ProgramPart, ...]:
    """Split a command sequence into programs, the first of which waits until the machine is idle.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the target machine.
    commands : sequence of Issued
        All commands, in order.
    names, joined, tags : sequences
        For each layer: its name, True if the layer is part of the previous layer's program, and its counter tag.
    known : ProgramCache, optional
        Cache of programs emitted earlier for the same commands.
    """
    out: list[ProgramPart] = []
    known = program_cache() if known is None else known
    loaded = {c.layer for c in commands} - {c.layer for c in commands if c.unit != Unit.LOAD}
    for piece in _program_commands(commands, joined):
        layers = dict.fromkeys(c.layer for c in piece if c.unit != Unit.LOAD or c.layer in loaded)
        layers = tuple(layers) or (piece[0].layer,)
        name, alone = names[layers[0]], not out
        key = name, alone, tuple(map(_command_key, piece)), tuple(tags[c.layer] for c in piece)
        programs = known.get(key)
        if programs is None:
            programs = _emit(config, name, piece, tags, alone=alone)
            known.put(key, programs, len(piece))
        out += [ProgramPart(program, layers) for program in programs]
    return tuple(out)


def _command_key(command: Issued) -> tuple:
    """Return all properties of a command that affect its program."""
    return command.unit, command.layer, command.region, command.wait, command.signal, command.values


def _program_commands(commands: Sequence[Issued], joined: Sequence[bool]) -> list[list[Issued]]:
    """Split the commands at each layer that starts a program, without moving prefetched loads."""
    out: list[list[Issued]] = [[]]
    current = 0
    for command in commands:
        if command.unit != Unit.LOAD and command.layer > current:
            if not all(joined[current + 1 : command.layer + 1]) and out[-1]:
                out.append([])
            current = command.layer
        out[-1].append(command)
    return out


def _emit(
    config: MlaConfig, name: str, piece: Sequence[Issued], tags: Sequence[int], *, alone: bool
) -> list[Program]:
    """Return the program of a command sequence, or several if one would exceed the instruction store."""
    try:
        program = rolled(config, name, piece, tags, alone=alone)
    except ProgramLengthError:
        count = _LONG_PARTS
    else:
        if len(program.words) <= config.wis_words:
            return [program]
        if len(piece) < 2:
            raise InputError(
                f"program {name!r} of {len(program.words)} words: the store has {config.wis_words}"
            )
        count = 2 if len(program.words) < _FULL_STORES * config.wis_words else _LONG_PARTS
    size = -(-len(piece) // count)
    parts = [
        program
        for start in range(0, len(piece), size)
        for program in _emit(config, name, piece[start : start + size], tags, alone=alone and not start)
    ]
    return [Program(f"{name}.{i}", part.words) for i, part in enumerate(parts)]


def rolled(
    config: MlaConfig,
    name: str,
    piece: Sequence[Issued],
    tags: Sequence[int],
    *,
    alone: bool,
    emitter: Callable[[str, Sequence[int]], ProgramEmitter] = ProgramEmitter,
) -> Program:
    """Return the program of a command sequence, with loops nested as deeply as the registers permit.

    If that makes a long program shorter, loops that save few commands are omitted. `emitter` returns a new emitter for
    the name and the tags of the program.
    """

    def emitted(items: Sequence[Item]) -> Program:
        return emitter(name, tags).program(items, alone=alone)

    program = _rolled(config, piece, MIN_SAVED_COMMANDS, emitted)
    if len(program.words) > config.wis_words // 2:
        other = _rolled(config, piece, _LONG_LOOP, emitted)
        if len(other.words) < _SHORTER * len(program.words):
            return other
    return program


def _rolled(
    config: MlaConfig, piece: Sequence[Issued], least: int, emitted: Callable[[Sequence[Item]], Program]
) -> Program:
    """Return the program of a command sequence with loops each of which saves `least` commands."""
    for depth in range(config.loop_depth, 0, -1):
        try:
            return emitted(reroll(piece, depth, least))
        except RegistersError:
            continue
    return emitted(piece)


def batches(config: MlaConfig, parts: Sequence[ProgramPart]) -> list[range]:
    """Return consecutive ranges of parts; all programs of a range can be resident at the same time."""
    out: list[range] = []
    start = words = segments = 0
    for number, part in enumerate(parts):
        size = sum(len(program.words) for program in part.programs)
        full = segments + len(part.programs) > config.segments or number - start == config.opcodes
        if number > start and (full or words + size > config.wis_words):
            out.append(range(start, number))
            start, words, segments = number, 0, 0
        words, segments = words + size, segments + len(part.programs)
    return [*out, range(start, len(parts))]


def candidates(part: ProgramPart, segments: Sequence[int]) -> list[Candidate]:
    """Return the dispatch table entries for a part; `segments` holds the segment of each of its `programs`."""
    guards = [variant.guard for variant in part.instead]
    return [
        *(Candidate(s, g.compare, g.selector, g.value) for s, g in zip(segments, guards, strict=False)),
        Candidate(segments[-1]),
    ]
