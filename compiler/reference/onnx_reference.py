"""Nodes of ONNX that the host must not be asked to compute."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from compiler.reference.onnx_ops import Asked
from compiler.reference.onnx_ops.op_cost import MOST_STEPS, steps
from hw.errors import InputError, shown

#: Activations of one direction that the reference computes, whatever the attribute says.
_USUAL = {"LSTM": (b"Sigmoid", b"Tanh", b"Tanh"), "GRU": (b"Sigmoid", b"Tanh"), "RNN": (b"Tanh",)}


class LeftOutError(InputError):
    """The reference would compute a node as if it said something else; the message names the attribute or input."""


class Given(NamedTuple):
    """Static facts about an input of a node: its contents only if it is constant."""

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


def check_work(asked: Asked, inputs: Sequence[Given | None], outputs: Sequence[tuple[int, ...]]) -> int:
    """Steps that a node takes, about.

    Raises
    ------
    InputError
        It takes more than the host may.
    """
    count = steps(asked, [value and value.shape for value in inputs], outputs)
    if count > MOST_STEPS:
        raise InputError(f"it takes the host {count:,} steps, more than {MOST_STEPS:,}")
    return count


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
        raise LeftOutError("input_forget, the coupling of gates")
    lengths = inputs[4] if len(inputs) > 4 else None
    steps = inputs[0].shape[1 if given.get("layout", 0) else 0] if inputs[0] is not None else 0
    if lengths is not None and (lengths.data is None or not np.all(lengths.data == steps)):
        raise LeftOutError(f"sequence_lens other than the {steps} steps of all sequences")
