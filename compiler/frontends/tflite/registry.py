"""Registry of conversions of TFLite operators to nodes of the graph.

Each takes a `Conversion`: the operator, what it reads (None where an optional input is absent) and what it makes, whose
tensors carry shape, type and quantization but are not yet part of the graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import tflite

from compiler.frontends.builder import ACTIVATIONS, GraphBuilder
from compiler.ir.graph import Graph
from compiler.ir.tensor import Tensor
from hw.errors import InputError

_Options = TypeVar("_Options")
_FUSED = {
    number: name.lower() for name, number in vars(tflite.ActivationFunctionType).items() if name.isupper()
}


@dataclass(frozen=True)
class TfliteOperator:
    """One operator of a file; `subgraph` gives the file's graphs by their number."""

    name: str
    kind: str
    options: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    subgraph: Callable[[int], Graph]


@dataclass(frozen=True)
class TfliteConversion:
    """An operator on its way into a graph.

    Parameters
    ----------
    build : GraphBuilder
        The graph.
    operator : Operator
        The file's.
    inputs : list of Tensor or None
        None: absent.
    outputs : list of Tensor
        Not yet in the graph.
    """

    build: GraphBuilder
    operator: TfliteOperator
    inputs: list[Tensor | None]
    outputs: list[Tensor]

    @property
    def kind(self) -> str:
        """The format's name of the operator."""
        return self.operator.kind

    @property
    def output(self) -> Tensor:
        """The first thing it makes."""
        if not self.outputs:
            raise self.error("has no output")
        return self.outputs[0]

    def error(self, text: str) -> InputError:
        """An error that names the operator."""
        return InputError(f"operator {self.operator.name!r}: {text}")

    def given(self, count: int) -> list[Tensor]:
        """The inputs that are there.

        Raises
        ------
        InputError
            They are fewer than `count`.
        """
        given = [tensor for tensor in self.inputs if tensor is not None]
        if len(given) < count:
            raise InputError(f"operator {self.operator.name!r} must have {count} inputs, not {len(given)}")
        return given

    def options(self, kind: type[_Options]) -> _Options:
        """The operator's options, as the format's schema has them."""
        options = kind()
        if self.operator.options is None:
            raise InputError(f"operator {self.operator.name!r} lacks its options")
        options.Init(self.operator.options.Bytes, self.operator.options.Pos)  # type: ignore[attr-defined]
        return options

    def numbers(self, tensor: Tensor, what: str, count: int | None = None) -> tuple[int, ...]:
        """The integers of a constant.

        Raises
        ------
        InputError
            It is none, or has not `count` of them.
        """
        if tensor.data is None or tensor.data.dtype.kind not in "iu":
            raise self.error(f"its {what} must be constants and integers")
        found = tuple(int(value) for value in tensor.data.reshape(-1))
        if count is not None and len(found) != count:
            raise self.error(f"its {what} must be {count} numbers, not {len(found)}")
        return found

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= axis < rank:
            raise self.error(f"axis must be within {-rank}..{rank - 1}, not {axis}")
        return axis % rank

    def expect(self, shape: Sequence[int], output: Tensor | None = None) -> None:
        """Refuse an output of another shape."""
        made = self.output if output is None else output
        if made.shape != tuple(shape):
            raise self.error(f"makes shape {list(shape)}, but {made.name!r} is {list(made.shape)}")

    def step(
        self, part: str, op: str, inputs: list[Tensor], shape: tuple[int, ...], **attributes: Any
    ) -> Tensor:
        """A node on the way, whose result means what its first input does; no attribute may be called `shape`."""
        between = self.build.between(inputs[0], f"{self.output.name}:{part}", shape)
        return self.build.node(f"{self.operator.name}:{part}", op, inputs, between, **attributes)

    def rows(
        self, part: str, x: Tensor, axis: int, indices: Sequence[int], output: Tensor | None = None
    ) -> Tensor:
        """Rows of x along an axis, by their numbers: on the way, or an output."""
        numbers = self.build.constant(f"{self.operator.name}:{part} numbers", np.array(indices, np.int32))
        if output is not None:
            self.make("gather", [x, numbers], output, axis=axis)
            return output
        shape = (*x.shape[:axis], len(indices), *x.shape[axis + 1 :])
        return self.step(part, "gather", [x, numbers], shape, axis=axis)

    def make_rows(self, x: Tensor, chosen: Sequence[tuple[int, Sequence[int]]]) -> None:
        """The output, which is rows of x along one axis after the other."""
        for number, (axis, indices) in enumerate(chosen, 1):
            last = number == len(chosen)
            x = self.rows(f"axis{axis}", x, axis, indices, self.output if last else None)
        if not chosen:
            self.make_shaped(x)

    def reshaped(self, part: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The same elements in another shape."""
        if x.shape == shape:
            return x
        between = self.build.between(x, f"{self.output.name}:{part}", shape)
        return self.build.node(f"{self.operator.name}:{part}", "reshape", [x], between, shape=shape)

    def make(self, op: str, inputs: list[Tensor], output: Tensor | None = None, **attributes: Any) -> None:
        """The node that makes an output, by default the first."""
        self.build.node(
            self.operator.name, op, inputs, self.output if output is None else output, **attributes
        )

    def make_shaped(self, x: Tensor, output: Tensor | None = None) -> None:
        """An output that is a tensor in another shape."""
        made = self.output if output is None else output
        if x.elements != made.elements:
            raise self.error(f"{list(x.shape)} cannot become {list(made.shape)}")
        self.make("reshape", [x], made, shape=made.shape)

    def make_activated(
        self, op: str, inputs: list[Tensor], activation: int, output: Tensor | None = None, **attributes: Any
    ) -> None:
        """The node that makes an output, and the activation that is fused into it as a node of its own."""
        made, name = self.output if output is None else output, _FUSED.get(activation, "?")
        if name not in ACTIVATIONS:
            raise self.error(f"activation must be one of {', '.join(ACTIVATIONS)}, not {name}")
        limits = ACTIVATIONS[name]
        if limits is None:
            self.make(op, inputs, made, **attributes)
            return
        before = self.build.node(
            self.operator.name, op, inputs, self.build.between(made, f"{made.name}:before"), **attributes
        )
        self.build.node(f"{self.operator.name}:{name}", "clip", [before], made, low=limits[0], high=limits[1])


Converter = Callable[[TfliteConversion], None]
#: By the format's name of the operator.
CONVERTERS: dict[str, Converter] = {}


def converts(*kinds: str) -> Callable[[Converter], Converter]:
    """Register a function as the converter of operators."""

    def enter(function: Converter) -> Converter:
        CONVERTERS.update(dict.fromkeys(kinds, function))
        return function

    return enter
