"""Networks with programs for several batch sizes or for several lengths of a sequence; the hardware selects one.

Batch sizes: all programs use the inputs and outputs of the largest size. The operand after the addresses of these
tensors is the number of valid samples, which the guards compare with the sizes. The program for the largest size has no
guard.

Lengths: all programs use the inputs and outputs of the longest length. The operand after the addresses is the length,
which the guards compare with the longest length of each program. Further operands are the numbers in the program that
depend on the length (`compiler.codegen.length_programs`); the host passes the operands of the length of each input. The
number of programs is limited by the candidates of an opcode, and all must fit the instruction store.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

from compiler.codegen.buffer_allocation import joint_peak
from compiler.codegen.dispatch_guard import GuardedProgram, at_most
from compiler.codegen.executable import CommandStream, StageExecutable, rebased, share_memory
from compiler.codegen.length_programs import (
    LengthMember,
    LengthProgram,
    LengthsError,
    generate_for_lengths,
    schedules_for_lengths,
)
from compiler.cost.roofline import Floor, compulsory_traffic, layer_floors, network_floor
from compiler.cost.timeline import timeline_cycles
from compiler.ir.graph import Graph
from compiler.ir.tensor import Tensor
from compiler.lowering.lower import LoweredNetwork
from compiler.options import CompileOptions, LengthRange
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.stages import CONVERSIONS, BatchVariant, NetworkLengths, Stage
from compiler.util.progress import progress
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.micro_instruction import MAX_OPERANDS

_log = logging.getLogger(__name__)

#: Ratios of lengths, relative to the longest, for which schedules are made and may be the longest of a program.
_RATIOS = (1, 3 / 4, 1 / 2, 3 / 8, 1 / 4, 3 / 16, 1 / 8)
#: Maximum number of choices of programs that are generated for all lengths until one fits.
_MAX_CHOICES = 4


def check_sizes(config: MlaConfig, batches: Sequence[int]) -> None:
    """Check that the hardware can select among batch sizes.

    Raises
    ------
    InputError
        The sizes are not ascending, or there are more sizes than an opcode has candidates.
    """
    if list(batches) != sorted(set(batches)):
        raise InputError(f"batches must ascend, not be {', '.join(map(str, batches))}")
    if len(batches) > config.candidates:
        raise InputError(
            f"batches must be at most {config.candidates} sizes (an opcode has {config.candidates} candidate "
            f"programs), not {len(batches)}"
        )


def with_sizes(
    options: CompileOptions, build: Callable[[CompileOptions], CompiledNetwork]
) -> CompiledNetwork:
    """Compile a network for the sizes in `options.batches`, which must have passed `check_sizes`.

    Programs with packed loads or without zero tiles are longer. If the programs do not fit the instruction store
    together, the largest sizes, whose samples share the loads of weights, do without both (`Schedule.unpacked`).

    Parameters
    ----------
    options : CompileOptions
        Options of the compilation; `batches` contains the sizes, and `batch_schedules` the schedules of some.
    build : callable
        Compiles the model for one size.

    Raises
    ------
    InputError
        A size cannot be compiled, or the programs do not all fit the instruction store.
    """
    single = replace(options, batches=(), batch_schedules=(), single=True, offset=0)
    given = dict(options.batch_schedules)
    made = [build(replace(single, batch=batch, schedule=given.get(batch))) for batch in options.batches]
    for index, size in reversed(list(enumerate(options.batches))):
        if _words(made) <= made[index].config.wis_words:
            break
        made[index] = build(replace(single, batch=size, schedule=made[index].schedule.unpacked()))
    *fewer, largest = made
    _check_stages(made)
    each = zip(*(network.stages for network in made), strict=True)
    stages = tuple(_stage(options, stages) for stages in each)
    check_room(largest.config, stages)
    smaller = tuple(BatchVariant(network.batch, network.floor, tuple(network.infos)) for network in fewer)
    return replace(largest, stages=stages, smaller=smaller)


def _words(networks: Sequence[CompiledNetwork]) -> int:
    """Return the total length of the programs of several networks."""
    return sum(len(program.words) for each in networks for code in each.codes for program in code.programs)


def check_room(config: MlaConfig, stages: Sequence[Stage]) -> None:
    """Check that the programs of all stages fit the instruction store at the same time.

    Raises
    ------
    InputError
        The programs are too long in total, or too many.
    """
    parts = [part for stage in stages if stage.code for part in stage.code.parts]
    programs = [program for part in parts for program in part.programs]
    words = sum(len(program.words) for program in programs)
    if words > config.wis_words or len(programs) > config.segments or len(parts) > config.opcodes:
        raise InputError(
            f"{len(programs)} programs of {words:,} words together must all be in the instruction store, which holds "
            f"{config.segments} of {config.wis_words:,} words"
        )


def _check_stages(networks: Sequence[CompiledNetwork]) -> None:
    """Check that the networks of all sizes run the same nodes on the accelerator, with the same layers."""
    first, *others = networks
    for other in others:
        differ = {each.node for each in first.host} ^ {each.node for each in other.host}
        if differ:
            raise InputError(
                f"batches of {first.batch} and {other.batch}: node {min(differ)!r} runs on the host in only one"
            )
        if [code.tags for code in first.codes] != [code.tags for code in other.codes]:
            raise InputError(f"batches of {first.batch} and {other.batch} have different layers")


def _stage(options: CompileOptions, stages: Sequence[Stage]) -> Stage:
    """Combine the variants of a stage for all sizes."""
    largest, codes = stages[-1], [stage.code for stage in stages if stage.code]
    if not codes:
        return largest
    count = 1 + len(largest.inputs) + len(largest.outputs)
    if count >= MAX_OPERANDS:
        raise InputError(f"{count} addresses leave no operand of {MAX_OPERANDS} for the number of samples")
    return replace(largest, code=_code(options, codes, count))


def _code(options: CompileOptions, codes: Sequence[StageExecutable], count: int) -> StageExecutable:
    """Combine programs: smaller sizes are guarded, the largest is the fallback; each size has separate constants."""
    sizes = options.batches
    memory = share_memory(codes, start=options.offset)
    same = {number: (number, 0) for number in range(1, count)}
    programs = []
    for code, moved, size in zip(codes, memory.moved, sizes, strict=True):
        (program,) = code.programs
        programs.append(replace(rebased(program, moved, same), name=f"{program.name} x {size}"))
    guards = [at_most(count, size) for size in sizes[:-1]]
    instead = tuple(GuardedProgram(guard, each) for guard, each in zip(guards, programs, strict=False))
    part = replace(codes[-1].parts[0], program=programs[-1], instead=instead)
    peak = joint_peak([code.peak for code in codes])
    return replace(codes[-1], parts=(part,), image=memory.image, memory=memory.size, peak=peak)


@dataclass(frozen=True, eq=False)
class SizedNetwork:
    """Network for one length, before code generation.

    Parameters
    ----------
    graph : Graph
        Graph after all passes.
    lowered : list of LoweredNetwork
        Layers of each part on the accelerator.
    compiled : callable
        Compiles the network with the schedule chosen by the heuristics, as one program; also returns the commands of
        each part on the accelerator.
    """

    graph: Graph
    lowered: list[LoweredNetwork]
    compiled: Callable[[], tuple[CompiledNetwork, list[CommandStream]]]

    @cached_property
    def alone(self) -> tuple[CompiledNetwork, CommandStream]:
        """The network with a program for this length only, and its commands."""
        network, streams = self.compiled()
        return network, streams[-1]


def with_lengths(options: CompileOptions, sized: Callable[[int], SizedNetwork]) -> CompiledNetwork:
    """Compile a network for the lengths in `options.lengths`.

    Parameters
    ----------
    options : CompileOptions
        Options of the compilation.
    sized : callable
        Prepares the network for a length.

    Raises
    ------
    InputError
        The network cannot be compiled for the lengths.
    """
    assert options.lengths is not None
    return _Compilation(options, options.lengths, sized).run()


class _Compilation:
    def __init__(self, options: CompileOptions, lengths: LengthRange, sized: Callable[[int], SizedNetwork]):
        self.options, self.name, self.values = options, lengths.name, lengths.values
        #: By the longest length of a program, the layers whose first and last tiles are not split.
        self._unsplit: dict[int, set[str]] = {}
        with progress("preparing lengths", len(self.values), "lengths") as task:
            self.sized: dict[int, SizedNetwork] = {}
            for length in reversed(self.values):
                self.sized[length] = sized(length)
                task.advance(1)
        self.longest = self.sized[self.values[-1]]
        if len(self.longest.lowered) != 1:
            raise InputError(
                f"{self.longest.graph.name!r} has {len(self.longest.lowered)} stages on the accelerator; a network "
                f"for several lengths must have one"
            )
        self.network, _ = self.longest.alone
        _check_host(self.network)
        for length in self.values[:-1]:
            self._check_layers(length)

    @property
    def config(self) -> MlaConfig:
        """Hardware configuration."""
        return self.network.config

    def run(self) -> CompiledNetwork:
        """Choose the programs, generate them, and return the network."""
        why: InputError | None = None
        for number, longest in enumerate(self._choices()):
            if number == _MAX_CHOICES:
                break
            try:
                return self._combined(self._generated(self._groups(longest, self.values)))
            except LengthsError as error:
                why = error
                _log.info("programs up to %s: %s", longest, error)
        raise why or InputError(f"no programs for {self.name} of {self.values[0]} to {self.values[-1]} fit")

    def _check_layers(self, length: int) -> None:
        """Check that the network has the same layers for a length as for the longest."""
        mine = self.sized[length].lowered
        names = [[layer.name for layer in each.layers] for each in mine]
        if names != [[layer.name for layer in each.layers] for each in self.longest.lowered]:
            raise InputError(
                f"{self.longest.graph.name!r} has other layers for {self.name} {length} than for {self.values[-1]}"
            )

    @cached_property
    def _tops(self) -> list[int]:
        """Lengths that may be the longest of a program, in ascending order."""
        last = self.values[-1]
        found = {max((v for v in self.values if v <= last * ratio), default=0) for ratio in _RATIOS}
        return sorted(found - {0})

    def _choices(self) -> Iterator[tuple[int, ...]]:
        """Yield sets of the longest lengths of the programs, in ascending order; those with the least loss first.

        The loss is that of the estimated cycles relative to those of a program for one length, for the lengths that may
        be the longest of a program and for the shortest length.
        """
        samples = sorted({self.values[0], *self._tops})
        own = {length: self._cycles(self.sized[length].alone[1]) for length in samples}
        losses: dict[tuple[int, int], float] = {}
        words: dict[int, int] = {}
        for top in self._tops:
            for program in self._trial([length for length in samples if length <= top]):
                words[top] = len(program.executable.programs[0].words)
                for length, stream in zip(program.lengths, program.streams, strict=True):
                    losses[top, length] = self._cycles(stream) / own[length] - 1
        found = []
        others = [top for top in self._tops[:-1] if top in words]
        for count in range(min(self.config.candidates, len(others) + 1)):
            for chosen in combinations(others, count):
                longest = (*chosen, self._tops[-1])
                pairs = [(min(top for top in longest if top >= length), length) for length in samples]
                fits = sum(words.get(top, 0) for top in longest) <= self.config.wis_words
                if fits and all(pair in losses for pair in pairs):
                    each = sorted((losses[pair] for pair in pairs), reverse=True)
                    found.append((max(each[0], 0.0), count, sum(each), longest))
        for loss, _, _, longest in sorted(found):
            _log.info("programs up to %s of %s: estimated loss %.1f%%", longest, self.name, 100 * loss)
            yield longest

    def _trial(self, lengths: list[int]) -> list[LengthProgram]:
        """Return a program for as many of the given lengths as possible, among them the longest."""
        while lengths:
            try:
                return self._generated([lengths])
            except LengthsError as error:
                _log.info("no program for lengths %s: %s", lengths, error)
                lengths = lengths[1:]
        return []

    def _groups(self, longest: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        """Return the lengths of each program."""
        bounds = [0, *longest]
        return [
            [length for length in lengths if low < length <= high]
            for low, high in zip(bounds, longest, strict=False)
        ]

    def _generated(self, groups: Sequence[Sequence[int]]) -> list[LengthProgram]:
        """Generate a program for each group of lengths.

        Tiles are not split where that makes the commands of several lengths correspond.
        """
        while True:
            try:
                return self._attempt(groups)
            except LengthsError as error:
                schedule = self.sized[error.longest].alone[0].schedule if error.longest else None
                known = self._unsplit.setdefault(error.longest, set())
                split = {
                    name
                    for name in error.layers - known
                    if schedule
                    and (schedule.layers[name].split_first_tile or schedule.layers[name].split_last_tile)
                }
                if not split:
                    raise
                known |= split

    def _attempt(self, groups: Sequence[Sequence[int]]) -> list[LengthProgram]:
        variants = []
        for group in groups:
            network, _ = self.sized[group[-1]].alone
            lowered = [self.sized[length].lowered[0] for length in group]
            unsplit = self._unsplit.get(group[-1], ())
            schedules = schedules_for_lengths(self.config, lowered, network.schedule, unsplit)
            variants.append([LengthMember(*each) for each in zip(group, lowered, schedules, strict=True)])
        count = len(self.longest.lowered[0].layers)
        limited = self.options.limits.within(self.config)
        return generate_for_lengths(limited, variants, (0, count), self.options.offset, self.options.dram)

    def _cycles(self, stream: CommandStream) -> float:
        return timeline_cycles(self.config, [stream], self.options.dram)

    def _combined(self, programs: Sequence[LengthProgram]) -> CompiledNetwork:
        """Return the network with all programs; those for shorter lengths are guarded."""
        words = sum(len(each.executable.programs[0].words) for each in programs)
        if words > self.config.wis_words:
            raise LengthsError(
                f"the programs of {words:,} words exceed the instruction store of {self.config.wis_words:,}"
            )
        stage = next(each for each in self.network.stages if each.code)
        count = 1 + len(stage.inputs) + len(stage.outputs)
        named = [
            replace(
                each.executable.programs[0],
                name=f"{each.executable.programs[0].name} up to {each.lengths[-1]}",
            )
            for each in programs
        ]
        instead = tuple(
            GuardedProgram(at_most(count, each.lengths[-1]), program)
            for each, program in zip(programs[:-1], named, strict=False)
        )
        last = programs[-1].executable
        code = replace(
            last,
            config=self.config,
            parts=(replace(last.parts[0], program=named[-1], instead=instead),),
            memory=max(each.executable.memory for each in programs),
            peak=joint_peak(each.executable.peak for each in programs),
        )
        self.options.limits.check(code.memory)
        most = max(len(each.operands) for each in programs)
        operands = tuple(
            tuple(numbers) + (0,) * (most - len(numbers))
            for each in programs
            for numbers in zip(*each.operands, strict=True)
        )
        floors = tuple(
            self._floors(length, stream)
            for each in programs
            for length, stream in zip(each.lengths, each.streams, strict=True)
        )
        lengths = NetworkLengths(
            self.name,
            self.values,
            operands,
            self._growth(),
            floors,
            tuple(each.lengths[-1] for each in programs),
        )
        infos = tuple(replace(info, program=named[-1].name) for info in stage.infos)
        made = replace(stage, code=code, infos=infos)
        stages = tuple(made if each is stage else each for each in self.network.stages)
        return replace(self.network, stages=stages, lengths=lengths)

    def _floors(self, length: int, stream: CommandStream) -> tuple[Floor, ...]:
        lowered, traffic = self.sized[length].lowered[0], compulsory_traffic(stream, self.config.n)
        return network_floor([(lowered, traffic)]), *layer_floors(lowered, traffic)

    def _growth(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return the growth of the shapes of inputs, outputs and tensors between stages, after checking it."""
        stages = self.network.stages
        names = dict.fromkeys(
            tensor.name for stage in stages for tensor in _tensors(stage) if tensor.data is None
        )
        return tuple((name, self._growth_of(name)) for name in names)

    def _growth_of(self, name: str) -> tuple[int, ...]:
        last, before = self.values[-1], self.values[-2]
        whole, smaller = (self.sized[length].graph.tensors[name].shape for length in (last, before))
        growth = tuple((a - b) // (last - before) for a, b in zip(whole, smaller, strict=True))
        for length in self.values:
            shape = self.sized[length].graph.tensors[name].shape
            if shape != tuple(
                size - each * (last - length) for size, each in zip(whole, growth, strict=True)
            ):
                raise InputError(
                    f"tensor {name!r} of shape {list(whole)} for {self.name} {last} has shape {list(shape)} for "
                    f"{length}, which is not linear"
                )
        return growth


def _tensors(stage: Stage) -> Iterator[Tensor]:
    """Yield the tensors of a stage that the host handles."""
    yield from (*stage.inputs, *stage.outputs)
    if stage.graph:
        yield from stage.graph.tensors.values()


def _check_host(network: CompiledNetwork) -> None:
    """Check that the host only converts elements; raise InputError if it does not."""
    for stage in network.stages:
        for node in stage.graph or ():
            if node.op not in CONVERSIONS:
                reason = next((each.reason for each in network.host if each.node == node.name), "")
                raise InputError(
                    f"node {node.name!r} ({node.operator}) runs on the host: {reason}; a network for several lengths "
                    f"must run on the accelerator"
                )
        if stage.control is not None:
            raise InputError(
                f"node {stage.control.name!r} ({stage.control.op}) controls the order of stages; a network for several "
                f"lengths must be one stage"
            )
