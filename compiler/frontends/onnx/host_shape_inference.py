"""Trial evaluation of host nodes, so that unsupported ones are reported at compile time."""

import binascii
from collections.abc import Sequence

import numpy as np
from google.protobuf.message import DecodeError

from compiler.frontends.onnx.host_types import Made
from compiler.frontends.onnx.values import UnsupportedNodeError
from compiler.ir.tensor import Tensor
from compiler.reference.onnx_node_model import REFUSALS, NodeModel, line_of, node_model
from compiler.reference.onnx_ops import Array, own
from compiler.reference.onnx_ops.op_cost import TRIED_STEPS
from compiler.reference.onnx_reference import Given, check_work
from hw.errors import InputError

#: Type and shape of an output.
Known = tuple[str, tuple[int, ...]]


def infer_by_running(
    text: str, tensors: Sequence[Tensor], found: Sequence[Made | None]
) -> list[Known | None]:
    """Types and shapes of a node's outputs, after it was seen to make them.

    Parameters
    ----------
    text : str
        The model of the node.
    tensors : sequence of Tensor
        Its inputs, with their contents if they are constant.
    found : sequence
        Types and shapes as they follow from the inputs.

    Raises
    ------
    UnsupportedError
        It cannot be computed, takes too much work, or makes something else.
    """
    node = node_model(text)
    named = dict(zip(node.inputs, tensors, strict=True))
    given = [
        Given(tensor.shape, tensor.data) if (tensor := named.get(name)) else None for name in node.proto.input
    ]
    shapes = [made.shape for made in found if made is not None and made.shape is not None]
    here = own(node.asked) is not None
    if len(shapes) < sum(made is not None for made in found) and not here:
        raise UnsupportedNodeError(
            "the shape of its output depends on its input's numbers, and must be known beforehand"
        )
    try:
        steps = check_work(node.asked, given, shapes or [tensor.shape for tensor in tensors[:1]])
    except InputError as error:
        raise UnsupportedNodeError(str(error)) from None
    told = any(made is not None and made.told for made in found)
    if steps > TRIED_STEPS or (told and not here):
        if len(shapes) < len(found) - found.count(None):
            raise UnsupportedNodeError(
                "the shape of its output depends on its input's numbers, and must be known beforehand"
            )
        _known(node)
        return [None if each is None else (each.dtype, each.shape or ()) for each in found]
    return [
        None if each is None else _agreed(here, each, _made(node, tensors, number))
        for number, each in enumerate(found)
    ]


def _known(node: NodeModel) -> None:
    """Refuse a node that takes long, and that the reference does not have."""
    try:
        node.known()
    except REFUSALS as error:
        raise UnsupportedNodeError(f"ONNX's reference does not have it: {line_of(error)}") from None


def _made(node: NodeModel, tensors: Sequence[Tensor], number: int) -> Array:
    """One output for inputs that are made up; integers, which may be places, zeros or ones, real numbers any or
    from 0 to 1, which may be probabilities.
    """
    said = ""
    for whole in (0, 1):
        try:
            with np.errstate(all="ignore"):
                return node.computed([_sample(tensor, whole) for tensor in tensors], number)
        except (*REFUSALS, DecodeError, binascii.Error) as error:
            said = said or line_of(error)
    raise UnsupportedNodeError(said if own(node.asked) else f"ONNX's reference cannot compute it: {said}")


def _sample(tensor: Tensor, whole: int) -> Array:
    if tensor.data is not None:
        return tensor.data
    random = np.random.default_rng(0)
    dtype = np.dtype(tensor.dtype)
    if dtype.kind == "f":
        numbers = random.uniform(size=tensor.shape) if whole else random.standard_normal(tensor.shape)
        return numbers.astype(dtype)
    if dtype.itemsize == 1:
        return random.integers(0, 2, tensor.shape).astype(dtype)
    return np.full(tensor.shape, whole, dtype)


def _agreed(here: bool, wanted: Made, array: Array) -> Known:
    """Type and shape of an output; those of ONNX's reference must be the ones that follow from the inputs."""
    if array.dtype.name != wanted.dtype and array.dtype.kind not in "fiub":
        raise UnsupportedNodeError(f"its output is of type {array.dtype}, which the graph does not have")
    if not array.size:
        raise UnsupportedNodeError("its output has no elements")
    if array.shape != wanted.shape and not here:
        raise UnsupportedNodeError(
            f"ONNX's reference makes shape {list(array.shape)} of it, not {list(wanted.shape or ())}"
        )
    return wanted.dtype, array.shape
