"""TFLite files of a few operators, and comparison of LiteRT's outputs with those of the accelerator."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from compiler.api import compile
from compiler.frontends.tflite import read_tflite
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization
from compiler.runtime.compiled import CompiledNetwork
from tests.support.one_operator import RESOLVERS
from tests.support.tflite_graphs import FileGraph, Operator, packed

Shape = tuple[int, ...]
#: Operators whose first version LiteRT does not support.
_VERSIONS = {"BROADCAST_TO": 2}


class Draft:
    """A TFLite file under construction.

    Parameters
    ----------
    rng : Generator
        Source of constants and quantizations.
    dtype : str
        Default type of tensors: int8, uint8, int16, int32 (not quantized) or float32.
    """

    def __init__(self, rng: np.random.Generator, dtype: str):
        self.rng, self.dtype = rng, dtype
        self.tensors: dict[str, Any] = {}
        self.meaning: dict[str, tuple[float, int] | Quantization] = {}
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.operators: list[Operator] = []
        self.positive = False  # draw only positive floats
        self.limit: int | None = None  # largest magnitude of the integers to be drawn
        self.loose = False  # give results that should have the quantization of an operand another one
        self.int4: set[str] = set()  # constants stored as int4
        self.subgraphs: list[FileGraph] = []  # graphs of control flow and initializations
        self.variables: list[str] = []  # tensors that keep their contents

    def input(self, shape: Sequence[int], **meaning: Any) -> str:
        """Add an input of the model."""
        name = self._new(f"x{len(self.inputs)}", tuple(shape), **meaning)
        self.inputs.append(name)
        return name

    def held(self, values: Any, name: str = "c") -> str:
        """Add a constant of the given integers, such as axes."""
        name = f"{name}{len(self.tensors)}"
        self.tensors[name] = np.array(values, np.int32)
        return name

    def constant(self, shape: Sequence[int], **meaning: Any) -> str:
        """Add a random constant."""
        name = self._new(f"c{len(self.tensors)}", tuple(shape), **meaning)
        self.tensors[name] = self.values(name)
        return name

    def weights(self, shape: Shape, axis: int, of: str | None = None) -> tuple[str, str]:
        """Add random weights with a scale for each index of an axis (a single scale in uint8), and a bias.

        The bias has the scale of the products with the tensor `of`, by default the first input.
        """
        name, count = f"w{len(self.tensors)}", shape[axis]
        x = self.meaning.get(of or self.inputs[0])
        if self.dtype == "float32":
            self.tensors[name] = self.rng.normal(0, 0.3, shape).astype(np.float32)
            self.tensors[f"{name}:b"] = self.rng.normal(0, 1, count).astype(np.float32)
            return name, f"{name}:b"
        if self.dtype == "int32":
            self.tensors[name] = self.rng.integers(-9, 10, shape).astype(np.int32)
            self.tensors[f"{name}:b"] = self.rng.integers(-99, 100, count).astype(np.int32)
            return name, f"{name}:b"
        assert isinstance(x, tuple)
        if self.dtype != "uint8":
            scales = tuple(float(np.float32(s)) for s in self.rng.uniform(0.002, 0.02, count))
            self.meaning[name] = Quantization(scales, (0,) * count, axis)
            self.tensors[name] = self.rng.integers(-127, 128, shape).astype(np.int8)
            products = tuple(float(np.float32(x[0]) * np.float32(s)) for s in scales)
            self.meaning[f"{name}:b"] = Quantization(products, (0,) * count, 0)
        else:
            scale = float(np.float32(self.rng.uniform(0.002, 0.02)))
            self.meaning[name] = (scale, int(self.rng.integers(100, 156)))
            self.tensors[name] = self.rng.integers(0, 256, shape).astype(np.uint8)
            self.meaning[f"{name}:b"] = (float(np.float32(x[0]) * np.float32(scale)), 0)
        wide = np.int64 if self.dtype == "int16" else np.int32
        self.tensors[f"{name}:b"] = self.rng.integers(-2000, 2000, count).astype(wide)
        return name, f"{name}:b"

    def op(
        self,
        kind: str,
        inputs: Sequence[str],
        shape: Sequence[int],
        options: tuple[int, object] | None = None,
        **meaning: Any,
    ) -> str:
        """Add an operator with one result, whose quantization is random or that of `like`."""
        return self.ops(kind, inputs, [shape], options, **meaning)[0]

    def ops(
        self,
        kind: str,
        inputs: Sequence[str],
        shapes: Sequence[Sequence[int]],
        options: tuple[int, object] | None = None,
        **meaning: Any,
    ) -> list[str]:
        """Add an operator with several results."""
        if self.loose and meaning.get("like") in self.inputs:
            meaning = {"dtype": self.tensors[meaning["like"]][1]}
        names = [self._new(f"t{len(self.tensors)}", tuple(shape), **meaning) for shape in shapes]
        self.operators.append(Operator(kind, list(inputs), names, options, _VERSIONS.get(kind, 1)))
        self.outputs = [*self.outputs, *names]
        return names

    def then(self, name: str) -> None:
        """Make this tensor the model's only output."""
        self.outputs = [name]

    def values(self, name: str) -> np.ndarray:
        """Return random contents of a tensor."""
        given = self.tensors[name]
        shape, dtype = given if isinstance(given, tuple) else (given.shape, given.dtype.name)
        if dtype == "float32":
            numbers = self.rng.normal(0, 1.5, shape)
            return np.asarray(np.abs(numbers) + 0.1 if self.positive else numbers).astype(np.float32)
        if dtype == "bool":
            return np.asarray(self.rng.integers(2, size=shape)).astype(bool)
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        if self.limit is not None:
            low, high = max(low, -self.limit), min(high, self.limit)
        return np.asarray(self.rng.integers(low, high, shape, endpoint=True)).astype(dtype)

    def file(self) -> bytes:
        """Return the file's contents."""
        parts = (self.tensors, self.operators, self.inputs, self.outputs, self.meaning)
        return packed([FileGraph(*parts, self.variables, self.int4), *self.subgraphs])

    def narrow(self, name: str) -> None:
        """Store random weights as int4, with newly drawn values."""
        self.tensors[name] = self.rng.integers(-8, 8, self.tensors[name].shape).astype(np.int8)
        self.int4.add(name)

    def _new(
        self,
        name: str,
        shape: Shape,
        *,
        like: str | None = None,
        scale: float | None = None,
        zero: int | None = None,
        dtype: str | None = None,
    ) -> str:
        if like is not None:
            given = self.tensors[like]
            dtype = dtype or (given[1] if isinstance(given, tuple) else given.dtype.name)
        dtype = dtype or self.dtype
        self.tensors[name] = (tuple(int(size) for size in shape), dtype)
        if dtype in ("int8", "uint8", "int16"):
            if like is not None:
                self.meaning[name] = self.meaning[like]
                return name
            real = float(np.exp(self.rng.uniform(np.log(0.01), np.log(0.2)))) if scale is None else scale
            if scale is None and self.rng.integers(2):
                real = 2.0 ** round(np.log2(real))
            low = np.iinfo(dtype).min
            meaning = int(self.rng.integers(low, low + 256)) if zero is None else zero
            if dtype == "int16":  # TFLite's int16 has no zero point
                real, meaning = (real / 256 if scale is None else real), 0
            self.meaning[name] = (float(np.float32(real)), meaning)
        return name


def litert(data: bytes, inputs: Sequence[np.ndarray], rounding: str) -> list[np.ndarray]:
    """Run a file in LiteRT and return the outputs."""
    interpreter = Interpreter(
        model_content=data, experimental_op_resolver_type=RESOLVERS[rounding], num_threads=1
    )
    interpreter.allocate_tensors()
    for details, array in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(details["index"], array)
    interpreter.invoke()
    return [interpreter.get_tensor(details["index"]) for details in interpreter.get_output_details()]


def read(draft: Draft, folder: Path) -> Graph:
    """Write the draft to a file and read it as a graph."""
    path = folder / "model.tflite"
    path.write_bytes(draft.file())
    return read_tflite(path)


def check(
    draft: Draft, folder: Path, rounding: str, *, target: str = "n8", within: int = 0
) -> CompiledNetwork:
    """Compare the outputs of the golden model with those of LiteRT."""
    path, data = folder / "model.tflite", draft.file()
    path.write_bytes(data)
    inputs = [draft.values(name) for name in draft.inputs]
    wanted = litert(data, inputs, rounding)
    network = compile(path, target, rounding=rounding)
    found = network(*inputs)
    assert [tensor.name for tensor in network.outputs] == draft.outputs
    for name, array in zip(draft.outputs, wanted, strict=True):
        made = found[name]
        assert (made.shape, made.dtype) == (array.shape, array.dtype)
        off = np.abs(made.astype(np.float64) - array.astype(np.float64))
        meanings = {key: draft.meaning.get(key) for key in draft.tensors}
        assert off.max() <= within, f"{name}: {int((off > 0).sum())} differ, by {off.max()}: {meanings}"
    return network
