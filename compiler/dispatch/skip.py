"""A part of a network that is not carried out where the tensor it begins with has one value everywhere.

What comes out then is a constant, which the golden model computes once. Behind one opcode are a short program that
writes the constant, with a guard on what FUSE has counted, and the program of the part, without.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.code import Code
from compiler.codegen.making import Making
from compiler.codegen.programs import Part
from compiler.dispatch.drained import at_once
from compiler.dispatch.guard import Guard, Variant, equal
from compiler.dispatch.rebase import rebased
from compiler.dispatch.short import constants, probe
from compiler.dispatch.sizes import check_room
from compiler.ir.tensor import Tensor
from compiler.network import Network
from compiler.stages import Stage
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.enums import Unit
from hw.isa.micro import MicroOp, Statistic, encode
from hw.isa.program import Program

_ALIGN = 64


def with_skip(network: Network, name: str, makings: Sequence[Making]) -> Network:
    """The network with a short program for the stage that begins with a tensor, for where all of that is zero.

    Parameters
    ----------
    network : Network
        Whose stages are one program each; one of them takes nothing but the tensor.
    name : str
        The tensor. Zero is its zero point.
    makings : sequence of Making
        Of the stages on the accelerator, in order.

    Raises
    ------
    InputError
        There is no such stage, or the tensor or the constants do not fit the machine.
    """
    stages = list(network.stages)
    at = next(
        (i for i, each in enumerate(stages) if each.code and [t.name for t in each.inputs] == [name]), None
    )
    if at is None:
        raise InputError(f"skip: no stage on the accelerator depends on {name!r} alone")
    stage = stages[at]
    (tensor,) = stage.inputs
    zero = tensor.quantization.zero_point[0] if tensor.quantization else 0
    results = _results(network, stage, np.full(tensor.shape, zero, tensor.dtype))
    first = stages[at - 1] if at else None
    if first is not None and first.code and [t.name for t in first.outputs] == [name]:
        making = makings[sum(bool(each.code) for before in stages[: at - 1] for each in before.walk())]
        seen = zero == np.iinfo(tensor.dtype).min and at_once(network.config, making, tensor)
        stages[at - 1 : at + 1] = [_joined(network.config, first, stage, zero, results, seen=seen)]
    else:
        stages[at] = _alone(network.config, stage, zero, results)
    check_room(network.config, stages)
    return replace(network, stages=tuple(stages))


def _results(network: Network, stage: Stage, zeros: NDArray) -> list[NDArray]:
    """What the stage's own program makes of zeros."""
    part = replace(network, inputs=stage.inputs, outputs=stage.outputs, stages=(stage,))
    made = part(zeros)
    return [made[tensor.name] for tensor in stage.outputs]


def _alone(config: MlaConfig, stage: Stage, zero: int, results: Sequence[NDArray]) -> Stage:
    """The stage behind a look at its input."""
    code = stage.code
    assert code is not None
    (tensor,) = stage.inputs
    look = probe(config, tensor, zero, (code.places[tensor.name], 0), code.tags[0])
    guard = equal(Statistic.FUSE_ZEROS, tensor.elements)
    made = _guarded(code, stage.outputs, guard, results)
    return replace(stage, code=replace(made, parts=(Part(look, ()), *made.parts)))


def _joined(
    config: MlaConfig, first: Stage, second: Stage, zero: int, results: Sequence[NDArray], *, seen: bool
) -> Stage:
    """Two stages, what passes from one to the other in the model's memory, and a look at it between them.

    The look is spared if FUSE has `seen` all of it when the first ends: then its greatest element tells.
    """
    a, b = first.code, second.code
    assert a is not None and b is not None
    (tensor,) = second.inputs
    middle = _up(a.memory)
    shift = middle + _up(tensor.bytes)
    ends = (*first.inputs, *second.outputs)
    places = {each.name: number for number, each in enumerate(ends, 1)}
    from_a = {0: (0, 0), a.places[tensor.name]: (0, middle)}
    from_a |= {a.places[each.name]: (places[each.name], 0) for each in first.inputs}
    from_b = {0: (0, shift), b.places[tensor.name]: (0, middle)}
    from_b |= {b.places[each.name]: (places[each.name], 0) for each in second.outputs}
    image = np.zeros(shift + b.image.size, np.uint8)
    image[: a.image.size], image[shift:] = a.image, b.image
    layers = tuple(layer + len(a.tags) for layer in b.parts[0].layers)
    begin = replace(a.parts[0], program=rebased(a.parts[0].program, from_a))
    end = Part(rebased(b.parts[0].program, from_b), layers)
    code = Code(config, (end,), (*a.tags, *b.tags), image, shift + b.memory, places)
    if seen:
        begin = replace(begin, program=_until_drained(begin.program))
        made = _guarded(code, second.outputs, equal(Statistic.FUSE_MAX, zero), results)
        code = replace(made, parts=(begin, *made.parts))
    else:
        look = probe(config, tensor, zero, (0, middle), b.tags[0])
        made = _guarded(code, second.outputs, equal(Statistic.FUSE_ZEROS, tensor.elements), results)
        code = replace(made, parts=(begin, Part(look, ()), *made.parts))
    return Stage(
        first.inputs, second.outputs, code=code, infos=(*first.infos, *second.infos), spared=second.spared
    )


def _until_drained(program: Program) -> Program:
    """The program ends only when FUSE has done all it asked for: a guard may look at its statistics."""
    fence = encode(MicroOp.FENCE, d=1 << Unit.FUSE)
    return replace(program, words=(*program.words[:-1], fence, program.words[-1]))


def _guarded(code: Code, outputs: Sequence[Tensor], guard: Guard, results: Sequence[NDArray]) -> Code:
    """Code of one program with a short one behind a guard, and what that writes in the model's memory."""
    start = _up(code.memory)
    data = np.concatenate([np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in results])
    image = np.zeros(start + data.size, np.uint8)
    image[: code.image.size], image[start:] = code.image, data
    (part,) = code.parts
    sizes = [
        (code.places[each.name], made.nbytes) for each, made in zip(outputs, results, strict=True)
    ]  # fmt: skip
    name = f"{part.program.name} of zeros"
    short = constants(code.config, name, start, sizes, code.tags[-1])
    return replace(
        code, parts=(replace(part, instead=(Variant(guard, short),)),), image=image, memory=image.size
    )


def _up(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
