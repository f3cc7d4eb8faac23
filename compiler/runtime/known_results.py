"""Programs that run only if the results are not known: of an all-zero tensor, of the previous inputs, or of a cascade,
in which a network with fewer bits knows the label.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.buffer_allocation import joint_peak
from compiler.codegen.dispatch_guard import Guard, GuardedProgram, at_least, equal
from compiler.codegen.executable import CommandStream, StageExecutable, align_up, rebased, share_memory
from compiler.codegen.split_programs import ProgramPart
from compiler.ir.graph import Graph
from compiler.ir.tensor import Tensor
from compiler.lowering.lower import LoweredNetwork
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.size_variants import check_room
from compiler.runtime.stages import Stage
from compiler.schedule.schedule import Schedule
from cosim.semantics.command_fields import unpack_fields
from hw.config import MlaConfig
from hw.errors import InputError, did_you_mean, shown
from hw.isa.assembler import assemble
from hw.isa.commands import FUSE_DIMS
from hw.isa.enums import Unit
from hw.isa.micro_instruction import MicroOp, Statistic, encode
from hw.isa.program import Program

#: Maximum number of names listed in a message.
_MAX_NAMES = 8


def tensor_named(graph: Graph, name: str) -> str:
    """Return the name of a tensor, given its name or the name of the node that computes it.

    Raises
    ------
    InputError
        There is no tensor or node of this name.
    """
    if name in graph.nodes:
        return graph.nodes[name].outputs[0]
    if name not in graph.tensors:
        names, more = list(graph.nodes), ", ..." if len(graph.nodes) > _MAX_NAMES else ""
        near = did_you_mean(name, [*graph.nodes, *graph.tensors])
        listed = f"{', '.join(names[:_MAX_NAMES])}{more}"
        raise InputError(f"skip: there is no tensor and no node {shown(name)}{near}; nodes: {listed}")
    return name


def single(schedule: Schedule, lowered: LoweredNetwork, skip: str | None) -> Schedule:
    """Merge all layers of a schedule into one program, with a separate counter tag for each layer.

    The last tile of the layer that computes `skip` is not split, because the guard reads the statistics of a
    single command.
    """
    last = {layer.name for layer in lowered.layers if layer.y == skip}
    layers = {
        name: replace(
            layer,
            same_program_as_previous=True,
            own_counter_tag=True,
            split_last_tile=layer.split_last_tile and name not in last,
        )
        for name, layer in schedule.layers.items()
    }
    return replace(schedule, layers=layers)


def check_single(name: str, code: StageExecutable) -> None:
    """Check that a stage has not been split into several programs.

    Raises
    ------
    InputError
        The program is longer than the instruction store.
    """
    if len(code.parts) > 1:
        words = sum(len(program.words) for program in code.programs)
        raise InputError(
            f"{name} must be one program: its {words:,} instructions are more than the "
            f"{code.config.wis_words:,} of the instruction store"
        )


#: Instruction with which every program begins, since the previous one may still run.
WAIT_FOR_ALL = "fence load, matrix, fuse, store"


def probe(config: MlaConfig, tensor: Tensor, value: int, location: tuple[int, int], tag: int) -> Program:
    """Return a program that counts the elements of a tensor in DRAM that have a given value, in %fuse_zeros.

    The program subtracts the value from each element and overwrites one scratchpad row with the differences.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration of the program.
    tensor : Tensor
        Tensor of type int8 or uint8.
    value : int
        Value to count, in the tensor's type.
    location : (int, int)
        Index of an operand with a DRAM address, and byte offset of the tensor from that address.
    tag : int
        Counter tag of the program.

    Raises
    ------
    InputError
        The tensor is too large for the scratchpad.
    """
    n, size = config.n, tensor.bytes
    points = -(-size // n)
    rows = points * n
    if rows + n > config.sp_bytes or points >= 1 << 16:
        raise InputError(
            f"skip: {tensor.name!r} of {size:,} bytes does not fit the scratchpad of {config.sp_bytes:,}"
        )
    kind, dims = "i8" if tensor.dtype == "int8" else "u8", FUSE_DIMS.index("x")
    operand, offset = location
    return assemble(
        f"""
        {WAIT_FOR_ALL}
        tag {tag}
        set load.dram, op{operand}, {offset}
        set load.len, {size}
        issue load, signal(fuse:0)
        set fuse.src, a_src=sp a_dtype={kind}
        set fuse.stage, d_dst=sp d_dtype=i8 tail_dim={dims}
        set fuse.zp_ab, {value & 0xFFFF}
        set fuse.x_count, {points}
        set fuse.a_v, {n}
        set fuse.lanes_tail, {(size - 1) % n + 1}
        set fuse.d_base, {rows}
        issue fuse, wait(load:0)
        fence fuse
        halt
    """,
        f"probe {tensor.name}",
    )


def constants(
    config: MlaConfig, name: str, start: int, sizes: Sequence[tuple[int, int]], tag: int
) -> Program:
    """Return a program that copies constants from the model's memory to DRAM.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration of the program.
    name : str
        Name of the program.
    start : int
        Offset of the consecutive constants in the model's memory in bytes.
    sizes : sequence of (int, int)
        For each constant: index of the operand with its destination address, and its size in bytes.
    tag : int
        Counter tag of the program.

    Raises
    ------
    InputError
        The constants do not all fit the scratchpad.
    """
    total = sum(size for _, size in sizes)
    if total > config.sp_bytes:
        raise InputError(f"skip: {total:,} bytes of results do not fit the scratchpad of {config.sp_bytes:,}")
    lines = [
        WAIT_FOR_ALL,
        f"tag {tag}",
        f"set load.dram, op0, {start}",
        f"set load.len, {total}",
        "issue load, signal(store:0)",
    ]
    offset, wait = 0, ", wait(load:0)"
    for operand, size in sizes:
        lines += [f"set store.dram, op{operand}", f"set store.src, {offset}", f"set store.len, {size}"]
        lines.append(f"issue store{wait}")
        offset, wait = offset + size, ""
    return assemble("\n".join([*lines, "halt"]), name)


def writes_all_at_once(config: MlaConfig, stream: CommandStream, tensor: Tensor) -> bool:
    """Return True if the last FUSE command of a stage writes every element of its output tensor once."""
    layers = [number for number, layer in enumerate(stream.lowered.layers) if layer.y == tensor.name]
    drains = [command for command in stream.issued if command.unit == Unit.FUSE]
    if not drains or drains[-1].layer not in layers:
        return False
    c = unpack_fields(Unit.FUSE, list(drains[-1].values))
    lanes = c.lanes or config.n
    steps = {dim: getattr(c, f"{dim}_count") for dim in FUSE_DIMS}
    whole = prod(steps.values()) * lanes
    if c.tail_dim < len(FUSE_DIMS):
        whole -= whole // lanes // steps[FUSE_DIMS[c.tail_dim]] * (lanes - (c.lanes_tail or config.n))
    return not c.reduce and not c.lane_reduce and whole == tensor.elements


def with_skip(
    network: CompiledNetwork, name: str, streams: Sequence[CommandStream], start: int = 0
) -> CompiledNetwork:
    """Add a short program, run if a tensor is all zero, to the stage that depends only on this tensor.

    Parameters
    ----------
    network : CompiledNetwork
        Network in which each stage is one program, and one stage has the tensor as its only input.
    name : str
        Name of the tensor, or of the node that computes it. Zero is the tensor's zero point.
    streams : sequence of CommandStream
        Command streams of the stages on the accelerator, in order.
    start : int
        Number of bytes at the start of the model's memory that belong to other code.

    Raises
    ------
    InputError
        There is no such stage, the tensor is neither int8 nor uint8, or the tensor or the constants do not fit the
        scratchpad.
    """
    assert network.graph is not None
    stages, name = list(network.stages), tensor_named(network.graph, name)
    index = next(
        (i for i, each in enumerate(stages) if each.code and [t.name for t in each.inputs] == [name]), None
    )
    if index is None:
        raise InputError(f"skip: no stage on the accelerator depends on {name!r} alone")
    stage = stages[index]
    (tensor,) = stage.inputs
    if tensor.dtype not in ("int8", "uint8"):
        raise InputError(f"skip: {name!r} must be int8 or uint8, not {tensor.dtype}")
    zero = tensor.quantization.zero_point[0] if tensor.quantization else 0
    results = _results_of_zeros(network, stage, np.full(tensor.shape, zero, tensor.dtype))
    first = stages[index - 1] if index else None
    others = [*stages[:index], *stages[index + 1 :]]
    read = [t.name for t in (*network.outputs, *(t for each in others for t in each.inputs))]
    if first is not None and first.code and [t.name for t in first.outputs] == [name] and name not in read:
        stream = streams[sum(bool(each.code) for before in stages[: index - 1] for each in before.walk())]
        seen = zero == np.iinfo(tensor.dtype).min and writes_all_at_once(network.config, stream, tensor)
        stages[index - 1 : index + 1] = [
            _merged(network.config, first, stage, zero, results, start, seen=seen)
        ]
    else:
        stages[index] = _with_probe(network.config, stage, zero, results, start)
    check_room(network.config, stages)
    return replace(network, stages=tuple(stages))


def _results_of_zeros(network: CompiledNetwork, stage: Stage, zeros: NDArray) -> NDArray[np.uint8]:
    """Return the bytes of all outputs that the stage computes from zeros."""
    part = replace(network, inputs=stage.inputs, outputs=stage.outputs, stages=(stage,))
    return bytes_of(stage.outputs, part(zeros))


def bytes_of(tensors: Sequence[Tensor], arrays: Mapping[str, NDArray]) -> NDArray[np.uint8]:
    """Return the bytes of several tensors, one after the other."""
    each = [np.ascontiguousarray(arrays[tensor.name]) for tensor in tensors]
    return np.concatenate([array.reshape(-1).view(np.uint8) for array in each])


def _with_probe(config: MlaConfig, stage: Stage, zero: int, results: NDArray[np.uint8], start: int) -> Stage:
    """Insert a probe of the input before the stage."""
    code = stage.code
    assert code is not None
    (tensor,) = stage.inputs
    memory = share_memory([code], results, start)
    same = {operand: (operand, 0) for operand in code.operand_numbers.values()}
    main = rebased(code.parts[0].program, memory.moved[0], same)
    first = probe(config, tensor, zero, (code.operand_numbers[tensor.name], 0), code.tags[0])
    end = replace(code.parts[0], program=main)
    made = replace(code, parts=(ProgramPart(first, ()), end), image=memory.image, memory=memory.size)
    guard = equal(Statistic.FUSE_ZEROS, tensor.elements)
    return replace(stage, code=_guarded(made, stage.outputs, guard, memory.more))


def _merged(
    config: MlaConfig,
    first: Stage,
    second: Stage,
    zero: int,
    results: NDArray[np.uint8],
    start: int,
    *,
    seen: bool,
) -> Stage:
    """Merge two stages into one that stores the tensor between them in the model's memory and probes it.

    The probe is omitted if the last FUSE command of the first stage has `seen` the whole tensor. The guard then tests
    the maximum of that command's results.
    """
    a, b = first.code, second.code
    assert a is not None and b is not None
    (tensor,) = second.inputs
    memory = share_memory([a, b], results, start)
    middle = align_up(memory.size)
    places = {each.name: number for number, each in enumerate((*first.inputs, *second.outputs), 1)}
    programs = []
    for code, moved in zip((a, b), memory.moved, strict=True):
        moved_operands = {
            index: (places[name], 0) for name, index in code.operand_numbers.items() if name != tensor.name
        }
        moved_operands[code.operand_numbers[tensor.name]] = (0, middle)
        programs.append(rebased(code.parts[0].program, moved, moved_operands))
    begin, end = programs
    guard, looks = (
        equal(Statistic.FUSE_ZEROS, tensor.elements),
        [ProgramPart(_probe_of(config, tensor, zero, middle, b), ())],
    )
    if seen:
        guard, looks, begin = equal(Statistic.FUSE_MAX, zero), [], _until_drained(begin)
    layers = tuple(layer + len(a.tags) for layer in b.parts[0].layers)
    parts = (replace(a.parts[0], program=begin), *looks, ProgramPart(end, layers))
    size, peak = middle + align_up(tensor.bytes), joint_peak([a.peak, b.peak])
    code = StageExecutable(config, parts, (*a.tags, *b.tags), memory.image, size, places, peak)
    return Stage(
        first.inputs,
        second.outputs,
        code=_guarded(code, second.outputs, guard, memory.more),
        infos=(*first.infos, *second.infos),
        spared=second.spared,
    )


def _probe_of(config: MlaConfig, tensor: Tensor, zero: int, middle: int, code: StageExecutable) -> Program:
    return probe(config, tensor, zero, (0, middle), code.tags[0])


def _until_drained(program: Program) -> Program:
    """Make a program wait for FUSE at its end, so that a guard can read the statistics."""
    fence = encode(MicroOp.FENCE, d=1 << Unit.FUSE)
    return replace(program, words=(*program.words[:-1], fence, program.words[-1]))


def _guarded(code: StageExecutable, outputs: Sequence[Tensor], guard: Guard, start: int) -> StageExecutable:
    """Add to the last program a guarded alternative that only writes the constants at `start`."""
    *before, last = code.parts
    sizes = [(code.operand_numbers[each.name], each.bytes) for each in outputs]
    short = constants(code.config, f"{last.program.name} of zeros", start, sizes, code.tags[-1])
    return replace(code, parts=(*before, replace(last, instead=(GuardedProgram(guard, short),))))


def with_reuse(network: CompiledNetwork, start: int = 0) -> CompiledNetwork:
    """Make every stage on the accelerator reuse its last results if its inputs have not changed.

    Each stage gets memory for copies of its inputs and outputs. A first program compares the inputs with the copies
    byte by byte. If all are equal, a short program writes the copies of the outputs; otherwise, the stage runs as
    usual, and then replaces the copies. Before the first sample, the copies are zeros and the results for them.

    Parameters
    ----------
    network : CompiledNetwork
        Network in which each stage is one program.
    start : int
        Number of bytes at the start of the model's memory that belong to other code.

    Raises
    ------
    InputError
        There is no stage on the accelerator, or a copy does not fit the scratchpad.
    """
    stages = []
    for stage in network.stages:
        if stage.control is not None:
            raise InputError(f"reuse: {network.name!r} has control flow")
        stages.append(stage if stage.code is None else reusing(network, stage, stage.code, start))
    if not any(stage.code for stage in stages):
        raise InputError(f"reuse: {network.name!r} has no layer on the accelerator")
    check_room(network.config, stages)
    return replace(network, stages=tuple(stages))


def reusing(network: CompiledNetwork, stage: Stage, code: StageExecutable, start: int) -> Stage:
    """Make a stage reuse its last results if its inputs have not changed; raise the errors of `with_reuse`."""
    config, (part,) = network.config, code.parts
    zeros = {tensor.name: np.zeros(tensor.shape, tensor.dtype) for tensor in stage.inputs}
    made = replace(network, inputs=stage.inputs, outputs=stage.outputs, stages=(stage,), states=())(**zeros)
    inputs, results = bytes_of(stage.inputs, zeros), bytes_of(stage.outputs, made)
    copies = np.concatenate([results, inputs])
    memory = share_memory([code], copies, start)
    operands = code.operand_numbers
    kept = [(operands[tensor.name], tensor.bytes) for tensor in stage.outputs]
    given = [(operands[tensor.name], tensor.bytes) for tensor in stage.inputs]
    first = comparison(config, stage.inputs, given, memory.more + results.size, code.tags[0])
    main = rebased(part.program, memory.moved[0], {operand: (operand, 0) for operand in operands.values()})
    update = copy(config, [*kept, *given], memory.more, code.tags[-1])
    main = replace(main, words=(*main.words[:-1], *update.words))
    name = f"{part.program.name} of the same inputs"
    short = constants(config, name, memory.more, kept, code.tags[-1])
    guard = equal(Statistic.FUSE_ZEROS, inputs.size)
    parts = (
        ProgramPart(first, ()),
        replace(part, program=main, instead=(GuardedProgram(guard, short),)),
    )
    image = replace(code, parts=parts, image=memory.image, memory=memory.size, mutable=copies.size)
    return replace(stage, code=image)


def with_cascade(
    exact: CompiledNetwork,
    narrow: CompiledNetwork,
    streams: Sequence[CommandStream],
    threshold: int,
    start: int = 0,
) -> CompiledNetwork:
    """Return a network whose programs compute the outputs exactly only if a narrow network is not certain of the label.

    The first program is that of the narrow network. If the largest element of its output is at least `threshold`, the
    output stays as it is; otherwise, the exact network's program computes it again.

    Parameters
    ----------
    exact, narrow : CompiledNetwork
        Networks with the same inputs and outputs, in which each stage is one program.
    streams : sequence of CommandStream
        Command streams of the narrow network's stages on the accelerator, in order.
    threshold : int
        Least value of the largest output with which it is accepted, as stored.
    start : int
        Number of bytes at the start of the model's memory that belong to other code.

    Raises
    ------
    InputError
        The networks have not exactly one stage on the accelerator, its only output is not int8 or uint8, one command
        does not write all of it, or the programs do not fit the instruction store together.
    """
    stages = list(exact.stages)
    places = [index for index, stage in enumerate(stages) if stage.code]
    others = [stage for stage in narrow.stages if stage.code]
    need = "accuracy_budget: a share of requests needs a network with one stage on the accelerator"
    if len(places) != 1 or len(others) != 1 or any(stage.control for stage in stages):
        raise InputError(f"{need}, not {len(places)} and, with fewer bits, {len(others)}")
    (index,), (first,) = places, others
    second = stages[index]
    a, b = first.code, second.code
    assert a is not None and b is not None
    ends = [[(t.name, t.shape, t.dtype) for t in (*each.inputs, *each.outputs)] for each in (first, second)]
    tensor = second.outputs[0]
    if ends[0] != ends[1] or len(second.outputs) != 1 or tensor.dtype not in ("int8", "uint8"):
        names = ", ".join(f"{each.name!r} ({each.dtype})" for each in second.outputs)
        raise InputError(f"{need}, whose only output is the softmax in int8 or uint8, not {names}")
    if not writes_all_at_once(exact.config, streams[0], tensor):
        raise InputError(f"{need}, whose last command computes all of {tensor.name!r}")
    memory = share_memory([a, b], start=start)
    moved = {a.operand_numbers[name]: (number, 0) for name, number in b.operand_numbers.items()}
    same = {number: (number, 0) for number in b.operand_numbers.values()}
    (begin,), (end,) = a.programs, b.programs
    begin = replace(_until_drained(rebased(begin, memory.moved[0], moved)), name=f"{begin.name}, few bits")
    end = replace(rebased(end, memory.moved[1], same), name=f"{end.name}, exact")
    certain = assemble(f"{WAIT_FOR_ALL}\ntag {b.tags[-1]}\nhalt", f"{end.name}, not needed")
    instead = (GuardedProgram(at_least(Statistic.FUSE_MAX, threshold), certain),)
    layers = tuple(layer + len(a.tags) for layer in b.parts[0].layers)
    code = replace(
        b,
        parts=(replace(a.parts[0], program=begin), ProgramPart(end, layers, instead)),
        tags=(*a.tags, *b.tags),
        image=memory.image,
        memory=memory.size,
        peak=joint_peak([a.peak, b.peak]),
    )
    infos = [
        replace(info, program=program.name)
        for program, stage in ((begin, first), (end, second))
        for info in stage.infos
    ]
    stages[index] = replace(second, code=code, infos=tuple(infos))
    check_room(exact.config, stages)
    return replace(
        exact,
        stages=tuple(stages),
        layers=(*narrow.layers, *exact.layers),
        floor=narrow.floor + exact.floor,
    )


def comparison(
    config: MlaConfig, tensors: Sequence[Tensor], given: Sequence[tuple[int, int]], start: int, tag: int
) -> Program:
    """Return a program that counts the bytes of the inputs that equal their copies, in %fuse_zeros.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration of the program.
    tensors : sequence of Tensor
        Inputs, for messages.
    given : sequence of (int, int)
        For each input: index of the operand with its address, and its size in bytes.
    start : int
        Offset of the consecutive copies in the model's memory in bytes.
    tag : int
        Counter tag of the program.

    Raises
    ------
    InputError
        The inputs and their copies do not fit the scratchpad.
    """
    n, size = config.n, sum(each for _, each in given)
    points = -(-size // n)
    if 2 * points * n > config.sp_bytes or points >= 1 << 16:
        names = ", ".join(repr(tensor.name) for tensor in tensors)
        raise InputError(
            f"reuse: two copies of {names} of {size:,} bytes do not fit the scratchpad of {config.sp_bytes:,}"
        )
    lines, offset = [WAIT_FOR_ALL, f"tag {tag}"], 0
    for operand, length in given:
        lines += [
            f"set load.dram, op{operand}",
            f"set load.dst, {offset}",
            f"set load.len, {length}",
            "issue load",
        ]
        offset += length
    lines += [
        f"set load.dram, op0, {start}",
        f"set load.dst, {points * n}",
        f"set load.len, {size}",
        "issue load, signal(fuse:0)",
        "set fuse.src, a_src=sp a_dtype=i8 b_src=sp b_dtype=i8 op=sub",
        f"set fuse.stage, d_dst=sp d_dtype=i8 tail_dim={FUSE_DIMS.index('x')}",
        f"set fuse.x_count, {points}",
        f"set fuse.a_v, {n}",
        f"set fuse.b_base, {points * n}",
        f"set fuse.b_x, {n}",
        f"set fuse.d_x, {n}",
        f"set fuse.lanes_tail, {(size - 1) % n + 1}",
        "issue fuse, wait(load:0)",
        "fence fuse",
        "halt",
    ]
    return assemble("\n".join(lines), "comparison with the previous inputs")


def copy(config: MlaConfig, sources: Sequence[tuple[int, int]], start: int, tag: int) -> Program:
    """Return a program that copies tensors to consecutive bytes of the model's memory.

    It may also continue another program, since it clears the fields of LOAD and STORE.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration of the program.
    sources : sequence of (int, int)
        For each tensor: index of the operand with its address, and its size in bytes.
    start : int
        Offset of the copies in the model's memory in bytes.
    tag : int
        Counter tag of the program.

    Raises
    ------
    InputError
        The tensors do not all fit the scratchpad.
    """
    size = sum(each for _, each in sources)
    if size > config.sp_bytes:
        raise InputError(
            f"reuse: inputs and outputs of {size:,} bytes do not fit the scratchpad of {config.sp_bytes:,}"
        )
    lines, offset = [WAIT_FOR_ALL, f"tag {tag}", "clear load", "clear store"], 0
    for number, (operand, length) in enumerate(sources, 1):
        signal = ", signal(store:0)" if number == len(sources) else ""
        lines += [f"set load.dram, op{operand}", f"set load.dst, {offset}", f"set load.len, {length}"]
        lines.append(f"issue load{signal}")
        offset += length
    lines += [f"set store.dram, op0, {start}", "set store.src, 0", f"set store.len, {size}"]
    lines += ["issue store, wait(load:0)", "halt"]
    return assemble("\n".join(lines), "copy of inputs and outputs")
