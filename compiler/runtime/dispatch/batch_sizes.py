"""One network with programs for several sizes of batches, of which the machine takes the smallest that will do.

All have the inputs and outputs of the largest. Behind their addresses the macro-instruction has one more operand, how
many samples count: the guards compare it with the sizes. The program of the largest has none.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from compiler.codegen.dispatch_guard import GuardedProgram, at_most
from compiler.codegen.executable import StageExecutable
from compiler.codegen.memory_peak import joint_peak
from compiler.options import CompileOptions
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.dispatch.rebase import rebased
from compiler.runtime.dispatch.variant_memory import together
from compiler.runtime.stages import BatchVariant, Stage
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.micro_instruction import MAX_OPERANDS


def check_sizes(config: MlaConfig, batches: Sequence[int]) -> None:
    """Refuse sizes of batches that the machine cannot choose among.

    Raises
    ------
    InputError
        They do not ascend, or are more than an opcode has candidates.
    """
    if list(batches) != sorted(set(batches)):
        raise InputError(f"batches must ascend, not be {', '.join(map(str, batches))}")
    if len(batches) > config.candidates:
        raise InputError(
            f"the machine chooses among {config.candidates} programs: batches must be at most as many, not "
            f"{len(batches)}"
        )


def with_sizes(
    options: CompileOptions, build: Callable[[CompileOptions], CompiledNetwork]
) -> CompiledNetwork:
    """A network for the sizes in `options.batches`, which `check_sizes` has passed.

    Parameters
    ----------
    options : Options
        How to compile.
    build : callable
        Compiles the model for one size.

    Raises
    ------
    InputError
        A size cannot be compiled, or the programs do not fit the instruction store together.
    """
    single = replace(options, batches=(), single=True, offset=0)
    made = [build(replace(single, batch=batch)) for batch in options.batches]
    *fewer, largest = made
    _check_stages(made)
    each = zip(*(network.stages for network in made), strict=True)
    stages = tuple(_stage(options, stages) for stages in each)
    check_room(largest.config, stages)
    smaller = tuple(BatchVariant(network.batch, network.floor, tuple(network.infos)) for network in fewer)
    return replace(largest, stages=stages, smaller=smaller)


def check_room(config: MlaConfig, stages: Sequence[Stage]) -> None:
    """Refuse stages whose programs are not all in the instruction store at the same time.

    Raises
    ------
    InputError
        They are too long together, or too many.
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
    """Refuse networks that do not run the same nodes on the accelerator, with the same layers."""
    first, *others = networks
    for other in others:
        differ = {each.node for each in first.host} ^ {each.node for each in other.host}
        if differ:
            raise InputError(
                f"batches of {first.batch} and {other.batch}: node {min(differ)!r} is the host's for one alone"
            )
        if [code.tags for code in first.codes] != [code.tags for code in other.codes]:
            raise InputError(f"batches of {first.batch} and {other.batch} have different layers")


def _stage(options: CompileOptions, stages: Sequence[Stage]) -> Stage:
    """A stage for all sizes."""
    largest, codes = stages[-1], [stage.code for stage in stages if stage.code]
    if not codes:
        return largest
    count = 1 + len(largest.inputs) + len(largest.outputs)
    if count >= MAX_OPERANDS:
        raise InputError(f"{count} addresses leave no operand of {MAX_OPERANDS} for the number of samples")
    return replace(largest, code=_code(options, codes, count))


def _code(options: CompileOptions, codes: Sequence[StageExecutable], count: int) -> StageExecutable:
    """Programs for fewer samples behind guards, that of the largest size without; constants of each of its own."""
    sizes = options.batches
    memory = together(codes, start=options.offset)
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
