"""What ONNX's reference leaves out without saying so: nodes that it must not be asked to compute."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from hw.errors import InputError, shown

#: Activations of one direction that the reference computes, whatever the attribute says.
_USUAL = {"LSTM": (b"Sigmoid", b"Tanh", b"Tanh"), "GRU": (b"Sigmoid", b"Tanh"), "RNN": (b"Tanh",)}


class LeftOutError(InputError):
    """The reference would compute a node as if it said something else; the message names the attribute or input."""


class Given(NamedTuple):
    """What is known of an input of a node: its contents only if it is constant."""

    shape: tuple[int, ...]
    data: NDArray | None


def check_reference(proto: onnx.NodeProto, inputs: Sequence[Given | None]) -> None:
    """Refuse a node that ONNX's reference would compute as if it said something else.

    Raises
    ------
    LeftOutError
        The message names the attribute or input.
    """
    if proto.op_type in _USUAL:
        _check_recurrent(proto, inputs)
    elif proto.op_type in ("QLinearConv", "ConvInteger"):
        _check_channels(proto, inputs)
    elif proto.op_type in ("QLinearMatMul", "MatMulInteger"):
        _check_rows(proto, inputs)


def _check_recurrent(proto: onnx.NodeProto, inputs: Sequence[Given | None]) -> None:
    """LSTM, GRU and RNN: all sequences run to their end, through the usual functions."""
    given = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
    usual = _USUAL[proto.op_type]
    wanted = tuple(given.get("activations", usual))
    if wanted not in (usual, 2 * usual):
        names = ", ".join(name.decode(errors="replace") for name in wanted)
        raise LeftOutError(f"activations {shown(names)} (only {b', '.join(usual).decode()})")
    if "clip" in given:
        raise LeftOutError(f"clip of {given['clip']:.6g}")
    if given.get("input_forget", 0):
        raise LeftOutError("input_forget, the coupling of gates,")
    lengths = inputs[4] if len(inputs) > 4 else None
    steps = inputs[0].shape[1 if given.get("layout", 0) else 0] if inputs[0] is not None else 0
    if lengths is not None and (lengths.data is None or not np.all(lengths.data == steps)):
        raise LeftOutError(f"sequence_lens other than the {steps} steps of all sequences")


def _check_channels(proto: onnx.NodeProto, inputs: Sequence[Given | None]) -> None:
    """Convolutions of integers: numbers for each channel only go to channels of images."""
    given = [*inputs, *[None] * 9][:9]
    x, each = given[0], given[4:6] if proto.op_type == "QLinearConv" else given[3:4]
    several = any(value is not None and np.prod(value.shape) > 1 for value in each)
    if several and x is not None and len(x.shape) != 4:
        raise LeftOutError(f"scales or zero points of channels with x of {len(x.shape)} dimensions")


def _check_rows(proto: onnx.NodeProto, inputs: Sequence[Given | None]) -> None:
    """Products of integers: numbers for each row of the first factor only go to rows if they stand in a column."""
    each = inputs[1:3] if proto.op_type == "QLinearMatMul" else inputs[2:3]
    if any(value is not None and len(value.shape) == 1 and value.shape[0] > 1 for value in each):
        raise LeftOutError("scales or zero points for each row")
