"""Models of single operators, each as a graph of the compiler and as a TFLite file."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor
from compiler.reference import evaluate
from tests.numerics.litert import DEFAULT, REFERENCE, pack, run, tensor

#: LiteRT's operator resolver for each of the host's rounding modes.
RESOLVERS = {"reference": REFERENCE, "xnnpack": DEFAULT}
TYPES = {
    name: getattr(schema.TensorType, name.upper())
    for name in ("int8", "uint8", "int16", "int32", "int64", "float32")
}


def quantized(
    rng: np.random.Generator,
    name: str,
    shape: Sequence[int],
    dtype: str,
    *,
    ties: bool = False,
    scale: float | None = None,
    zero: int | None = None,
) -> Tensor:
    """Return a tensor whose scale and zero point are random unless given; with `ties` the scale is a power of two."""
    limits = np.iinfo(dtype)
    real = float(np.exp(rng.uniform(np.log(0.005), np.log(0.2)))) if scale is None else scale
    if ties:
        real = 2.0 ** round(np.log2(real))
    if zero is None:
        zero = 0 if dtype == "int16" else int(rng.integers(limits.min, limits.max + 1))
    return Tensor(name, tuple(int(size) for size in shape), dtype, Quantization.per_tensor(real, zero))


def random_values(rng: np.random.Generator, tensor: Tensor) -> np.ndarray:
    """Return random contents: integers with frequent extremes, or normally distributed floats."""
    if tensor.dtype == "float32":
        return rng.normal(0, 3, tensor.shape).astype(np.float32)
    limits = np.iinfo(tensor.dtype)
    values = rng.integers(limits.min, limits.max, tensor.shape, endpoint=True)
    extreme = rng.choice([limits.min, limits.max], tensor.shape)
    return np.where(rng.random(tensor.shape) < 0.05, extreme, values).astype(tensor.dtype)


def options(name: str, **fields: Any) -> tuple[int, object]:
    """Return TFLite's options with the given name."""
    result = getattr(schema, f"{name}OptionsT")()
    for key, value in fields.items():
        setattr(result, key, value)
    return getattr(schema.BuiltinOptions, f"{name}Options"), result


def scale_of(tensor: Tensor) -> float:
    """Return a tensor's scale."""
    assert tensor.quantization is not None
    return tensor.quantization.scale[0]


def constant(name: str, values: np.ndarray, quantization: Quantization | None = None) -> Tensor:
    """Return a constant tensor."""
    return Tensor(name, values.shape, values.dtype.name, quantization, values)


@dataclass
class OneOperator:
    """An operator in both representations.

    Parameters
    ----------
    kind, options, version
        Operator code, options and version in TFLite.
    op, attributes
        Operator and attributes in the graph.
    inputs, constants : list of Tensor
        Operands in both representations.
    output : Tensor
        Result in both representations.
    parameters : list of Tensor
        Constants of the file that are attributes of the node, such as axes.
    stored : list of Tensor or None
        Constants of the file, if their layout differs from `constants`.
    order : list of int or None
        Order of the operands in the file; by default inputs, constants, parameters.
    """

    kind: int
    options: tuple[int, object] | None
    op: str
    inputs: list[Tensor]
    output: Tensor
    attributes: dict[str, Any] = field(default_factory=dict)
    constants: list[Tensor] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)
    version: int = 2
    stored: list[Tensor] | None = None
    order: list[int] | None = None

    def graph(self) -> Graph:
        """Return the graph."""
        graph = Graph("one")
        for each in self.inputs:
            graph.add_input(each)
        for each in (*self.constants, self.output):
            graph.add_tensor(each)
        names = tuple(each.name for each in (*self.inputs, *self.constants))
        graph.add_node(Node(self.op, self.op, names, (self.output.name,), self.attributes))
        return graph.finish([self.output.name])

    def file(self) -> bytes:
        """Return the contents of the TFLite file."""
        stored = [*(self.constants if self.stored is None else self.stored), *self.parameters]
        tensors = [_entry(each) for each in self.inputs]
        tensors += [_entry(each, number) for number, each in enumerate(stored, 1)]
        contents = [each.data for each in stored if each.data is not None]
        return pack(
            self.kind,
            self.options,
            [*tensors, _entry(self.output)],
            len(self.inputs),
            contents,
            version=self.version,
            order=self.order,
        )

    def both(self, rng: np.random.Generator, kernels: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the results of the host's operator and of LiteRT for the same random inputs."""
        values = [random_values(rng, each) for each in self.inputs]
        named = {each.name: value for each, value in zip(self.inputs, values, strict=True)}
        want = run(self.file(), RESOLVERS[kernels], *values)
        return evaluate(self.graph(), named, rounding=kernels)[self.output.name], want


def _entry(each: Tensor, buffer: int = 0) -> schema.TensorT:
    q = each.quantization
    scales, zeros, axis = ([], [], 0) if q is None else (q.scale, q.zero_point, q.axis or 0)
    return tensor(each.name, each.shape, TYPES[each.dtype], scales, zeros, buffer, axis)
