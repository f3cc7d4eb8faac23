"""Registry of conversions of TFLite operators to nodes of the graph.

Each conversion function receives a `TfliteConversion`, which holds the operator, its inputs (None for an omitted
optional input) and its outputs. The outputs have shape, type and quantization but are not yet part of the graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tflite
from numpy.typing import NDArray

from compiler.frontends.builder import ACTIVATIONS, GraphBuilder
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor, same_values
from hw.errors import InputError

if TYPE_CHECKING:
    from compiler.frontends.tflite.state import TfliteStates

_Options = TypeVar("_Options")
_FUSED = {
    number: name.lower() for name, number in vars(tflite.ActivationFunctionType).items() if name.isupper()
}


@dataclass(frozen=True)
class TfliteOperator:
    """An operator of a TFLite file.

    Parameters
    ----------
    name : str
        Unique name of the operator, for nodes and messages.
    kind : str
        TFLite name of the operator.
    options : object
        Table with the operator's options, or None.
    inputs, outputs : tuple of int
        Indices of the operands and results among the tensors of the graph.
    subgraph : function
        Function that returns the converted graph with a given index in the file.
    initialized : function
        Function that returns the contents that a graph with a given index assigns to resource variables, by container
        and name.
    intermediates : tuple of Quantization or None
        Quantizations of the intermediate results of a recurrent operator.
    """

    name: str
    kind: str
    options: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    subgraph: Callable[[int], Graph]
    initialized: "Callable[[int], dict[tuple[str, str], NDArray]]"
    intermediates: tuple[Quantization | None, ...] = ()


@dataclass(frozen=True)
class TfliteConversion:
    """An operator that is being converted, with helpers that check operands and add nodes.

    Parameters
    ----------
    build : GraphBuilder
        Builder of the graph.
    operator : TfliteOperator
        The operator that is being converted.
    inputs : list of Tensor or None
        Inputs of the operator; None for an omitted input.
    outputs : list of Tensor
        Output tensors, which are not yet in the graph.
    states : TfliteStates
        States of the graph.
    variables : frozenset of int
        Indices of the tensors that keep their contents between samples.
    """

    build: GraphBuilder
    operator: TfliteOperator
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    states: "TfliteStates"
    variables: frozenset[int]

    @property
    def kind(self) -> str:
        """TFLite name of the operator."""
        return self.operator.kind

    @property
    def output(self) -> Tensor:
        """The first output."""
        if not self.outputs:
            raise self.error("has no output")
        return self.outputs[0]

    def error(self, text: str) -> InputError:
        """Return an InputError whose message names the operator."""
        return InputError(f"operator {self.operator.name!r}: {text}")

    def given(self, count: int) -> list[Tensor]:
        """Return the inputs that are not omitted.

        Raises
        ------
        InputError
            Fewer than `count` inputs are given.
        """
        given = [tensor for tensor in self.inputs if tensor is not None]
        if len(given) < count:
            raise InputError(f"operator {self.operator.name!r} must have {count} inputs, not {len(given)}")
        return given

    def options(self, kind: type[_Options]) -> _Options:
        """Return the operator's options as an instance of `kind`, a class of the TFLite schema."""
        options = kind()
        if self.operator.options is None:
            raise InputError(f"operator {self.operator.name!r} lacks its options")
        options.Init(self.operator.options.Bytes, self.operator.options.Pos)  # type: ignore[attr-defined]
        return options

    def numbers(self, tensor: Tensor, what: str, count: int | None = None) -> tuple[int, ...]:
        """Return the integers of a constant; `what` names the constant in errors.

        Raises
        ------
        InputError
            The tensor is not a constant of integers, or does not have `count` elements.
        """
        if tensor.data is None or tensor.data.dtype.kind not in "iu":
            raise self.error(f"its {what} must be constants and integers")
        found = tuple(int(value) for value in tensor.data.reshape(-1))
        if count is not None and len(found) != count:
            raise self.error(f"its {what} must be {count} numbers, not {len(found)}")
        return found

    def axis(self, axis: int, rank: int) -> int:
        """Return a possibly negative axis as a non-negative index."""
        if not -rank <= axis < rank:
            raise self.error(f"axis must be within {-rank}..{rank - 1}, not {axis}")
        return axis % rank

    def expect(self, shape: Sequence[int], output: Tensor | None = None) -> None:
        """Raise InputError unless an output, by default the first, has the given shape."""
        checked = self.output if output is None else output
        if checked.shape != tuple(shape):
            raise self.error(f"makes shape {list(shape)}, but {checked.name!r} is {list(checked.shape)}")

    def expect_equal_scales(self, *tensors: Tensor) -> None:
        """Raise InputError if quantized tensors of one type differ in scale or zero point.

        Scales may differ by rounding, provided that this changes no int16 number when it is rescaled.
        """
        quantized = [(tensor, tensor.quantization) for tensor in tensors if tensor.quantization is not None]
        for tensor, q in quantized[1:]:
            first, wanted = quantized[0]
            if wanted is None or q is None or first.dtype != tensor.dtype or same_values(q, wanted):
                continue
            if q.zero_point != wanted.zero_point or not np.allclose(
                q.scale, wanted.scale, rtol=_SAME_SCALE, atol=0
            ):
                raise self.error(
                    f"LiteRT uses the stored integers of {first.name!r} and {tensor.name!r} without conversion, which "
                    f"is correct only if both have the same scale and zero point; insert a QUANTIZE"
                )

    def step(
        self, part: str, op: str, inputs: list[Tensor], shape: tuple[int, ...], **attributes: Any
    ) -> Tensor:
        """Add an intermediate node, whose output has the type and quantization of its first input.

        The node cannot have an attribute named `shape`, because this function has a parameter of that name.
        """
        between = self.build.between(inputs[0], f"{self.output.name}:{part}", shape)
        return self.build.node(f"{self.operator.name}:{part}", op, inputs, between, **attributes)

    def rows(
        self, part: str, x: Tensor, axis: int, indices: Sequence[int], output: Tensor | None = None
    ) -> Tensor:
        """Add a gather of x along an axis and return its result: `output` if given, else an intermediate tensor."""
        numbers = self.build.constant(f"{self.operator.name}:{part} numbers", np.array(indices, np.int32))
        if output is not None:
            self.make("gather", [x, numbers], output, axis=axis)
            return output
        shape = (*x.shape[:axis], len(indices), *x.shape[axis + 1 :])
        return self.step(part, "gather", [x, numbers], shape, axis=axis)

    def make_rows(self, x: Tensor, selected: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Add gathers of x that compute the output; `selected` holds the axis and the indices of each gather."""
        for number, (axis, indices) in enumerate(selected, 1):
            last = number == len(selected)
            x = self.rows(f"axis{axis}", x, axis, indices, self.output if last else None)
        if not selected:
            self.make_shaped(x)

    def reshaped(self, part: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return x reshaped, or x itself if it already has the shape."""
        if x.shape == shape:
            return x
        between = self.build.between(x, f"{self.output.name}:{part}", shape)
        return self.build.node(f"{self.operator.name}:{part}", "reshape", [x], between, shape=shape)

    def make(self, op: str, inputs: list[Tensor], output: Tensor | None = None, **attributes: Any) -> None:
        """Add the node that computes an output, by default the first."""
        self.build.node(
            self.operator.name, op, inputs, self.output if output is None else output, **attributes
        )

    def make_shaped(self, x: Tensor, output: Tensor | None = None) -> None:
        """Add a node that reshapes x to an output, by default the first."""
        target = self.output if output is None else output
        if x.elements != target.elements:
            raise self.error(f"{list(x.shape)} cannot become {list(target.shape)}")
        self.make("reshape", [x], target, shape=target.shape)

    def make_activated(
        self, op: str, inputs: list[Tensor], activation: int, output: Tensor | None = None, **attributes: Any
    ) -> None:
        """Add the node that computes an output, and a separate node for its fused activation."""
        target, name = self.output if output is None else output, _FUSED.get(activation, "?")
        if name not in ACTIVATIONS:
            raise self.error(f"activation must be one of {', '.join(ACTIVATIONS)}, not {name}")
        limits = ACTIVATIONS[name]
        if limits is None:
            self.make(op, inputs, target, **attributes)
            return
        before = self.build.node(
            self.operator.name, op, inputs, self.build.between(target, f"{target.name}:before"), **attributes
        )
        self.build.node(
            f"{self.operator.name}:{name}", "clip", [before], target, low=limits[0], high=limits[1]
        )


#: Relative difference of scales that changes no result: half a step of 32,768.
_SAME_SCALE = 2.0**-17

Converter = Callable[[TfliteConversion], None]
#: Conversions by TFLite name of the operator.
CONVERTERS: dict[str, Converter] = {}


def converts(*kinds: str, stored: bool = False) -> Callable[[Converter], Converter]:
    """Register the decorated function as the conversion of the operators `kinds`.

    Parameters
    ----------
    stored : bool
        LiteRT copies or compares stored integers without conversion, so that operands and results of one type must
        have the same scale and zero point.
    """

    def register(function: Converter) -> Converter:
        @wraps(function)
        def checked(c: TfliteConversion) -> None:
            function(c)  # which reports damage of the operator first
            for output in c.outputs:
                c.expect_equal_scales(*(tensor for tensor in (*c.inputs, output) if tensor is not None))

        CONVERTERS.update(dict.fromkeys(kinds, checked if stored else function))
        return function

    return register
