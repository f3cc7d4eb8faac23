"""Networks with programs for several batch sizes; the hardware selects the smallest sufficient size.

All programs use the inputs and outputs of the largest size. The operand after the addresses of these tensors is the
number of valid samples, which the guards compare with the sizes. The program for the largest size has no guard.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from compiler.codegen.buffer_allocation import joint_peak
from compiler.codegen.dispatch_guard import GuardedProgram, at_most
from compiler.codegen.executable import StageExecutable, rebased, share_memory
from compiler.options import CompileOptions
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.stages import BatchVariant, Stage
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.micro_instruction import MAX_OPERANDS


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
        Options of the compilation; `batches` contains the sizes.
    build : callable
        Compiles the model for one size.

    Raises
    ------
    InputError
        A size cannot be compiled, or the programs do not all fit the instruction store.
    """
    single = replace(options, batches=(), single=True, offset=0)
    made = [build(replace(single, batch=batch)) for batch in options.batches]
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
