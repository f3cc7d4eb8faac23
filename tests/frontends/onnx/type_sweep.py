"""The operators of ONNX's node tests with other element types, compared with onnxruntime.

Each node test with float32 inputs gives two families of models: the same node on integers (`plain`), if ONNX allows the
type, and the node between DequantizeLinear and QuantizeLinear (`qdq`). Each model is compiled with all inputs variable,
and with all inputs but the first as constants.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from compiler.api import compile
from hw.errors import MlaError
from scripts.onnx_nodes.scope import RANDOM
from tests.support.onnx_models import reference

PLAIN, QDQ = ("int8", "uint8", "int16", "int32"), ("int8", "uint8", "int16")
#: Tests with larger inputs are left out, so that the sweep takes about a minute.
MAX_ELEMENTS = 20_000
#: Operators without one right answer: docs/numerics.md gives the difference between ONNX's definition, which the
#: compiler follows, and onnxruntime.
UNDEFINED = {
    "OneHot": "indices that are not integers",
    "Resize": "sizes that are not integers, with aligned corners",
    "Mod": "quantized NaN and infinity",
}


@dataclass(frozen=True)
class Variant:
    """A model of one node, and the contents of its inputs."""

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, NDArray]
    operator: str


@dataclass(frozen=True)
class Outcome:
    """Result of a variant.

    Attributes
    ----------
    differences : dict
        Largest difference from the reference of each output; None if the model was rejected or has no reference.
    message : str
        The compiler's message, if it rejected the model.
    """

    differences: Mapping[str, float] | None
    message: str = ""


def variants(test: Any) -> Iterator[Variant]:
    """Yield the variants of a node test that ONNX considers valid; none for a test that is out of scope."""
    model = test.model
    inputs, outputs = (
        [np.asarray(each) if isinstance(each, np.generic) else each for each in part]
        for part in test.data_sets[0]
    )
    if (
        len(model.graph.node) != 1
        or model.graph.node[0].op_type in RANDOM
        or not all(isinstance(each, np.ndarray) and each.size for each in inputs)
        or not all(isinstance(each, np.ndarray) for each in outputs)
        or any(each.size > MAX_ELEMENTS for each in inputs)
    ):
        return
    named = {value.name: each for value, each in zip(model.graph.input, inputs, strict=True)}
    floats = [name for name, each in named.items() if each.dtype == np.float32]
    if not floats:
        return
    seed = zlib.crc32(test.name.encode())
    for family, types in (("plain", PLAIN), ("qdq", QDQ)):
        for dtype in types:
            rng = np.random.default_rng(seed)
            made, arrays = (
                _plain(model, named, floats, dtype, rng)
                if family == "plain"
                else _quantized(model, named, floats, outputs, dtype)
            )
            if _valid(made):
                name = f"{test.name} {family} {dtype} (seed {seed})"
                yield Variant(name, made, arrays, model.graph.node[0].op_type)


def _valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def _plain(
    model: onnx.ModelProto,
    named: Mapping[str, NDArray],
    floats: list[str],
    dtype: str,
    rng: np.random.Generator,
) -> tuple[onnx.ModelProto, dict[str, NDArray]]:
    """Return the model on random integers: over the whole range of the type, or small ones."""
    made, limits = onnx.ModelProto(), np.iinfo(dtype)
    made.CopyFrom(model)
    arrays = dict(named)
    for name in floats:
        small = not named[name].ndim or rng.integers(2)
        low, high = (max(limits.min, -9), 9) if small else (limits.min, limits.max)
        arrays[name] = np.asarray(rng.integers(low, high, named[name].shape, dtype, endpoint=True))
    for value in made.graph.input:
        if value.name in floats:
            value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return made, arrays


def _quantized(
    model: onnx.ModelProto,
    named: Mapping[str, NDArray],
    floats: list[str],
    outputs: list[NDArray],
    dtype: str,
) -> tuple[onnx.ModelProto, dict[str, NDArray]]:
    """Return the node between DequantizeLinear and QuantizeLinear, on the test's own inputs, quantized."""
    constants: dict[str, NDArray] = {}
    arrays = dict(named)
    nodes = []
    for name in floats:
        scale, zero = _quantization(named[name], dtype)
        constants |= {f"{name}_s": scale, f"{name}_z": zero}
        limits = np.iinfo(dtype)
        finite = np.where(np.isfinite(named[name]), named[name], 0)
        arrays[f"{name}_q"] = np.clip(np.round(finite / scale) + zero, limits.min, limits.max).astype(dtype)
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [name]))
    arrays = {
        f"{name}_q" if name in floats else name: arrays[f"{name}_q" if name in floats else name]
        for name in named
    }
    nodes.append(model.graph.node[0])
    results = []
    for value, wanted in zip(model.graph.output, outputs, strict=True):
        if wanted.dtype != np.float32:
            results.append(value)
            continue
        name = value.name
        constants[f"{name}_s"], constants[f"{name}_z"] = _quantization(wanted, dtype)
        nodes.append(helper.make_node("QuantizeLinear", [name, f"{name}_s", f"{name}_z"], [f"{name}_q"]))
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        results.append(helper.make_tensor_value_info(f"{name}_q", kind, wanted.shape))
    graph = helper.make_graph(
        nodes,
        "qdq",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
            for name, each in arrays.items()
        ],
        results,
        [numpy_helper.from_array(each, name) for name, each in constants.items()],
    )
    # DequantizeLinear and QuantizeLinear of int16 need operator set 21.
    opsets = [
        helper.make_opsetid(each.domain, max(each.version, 21) if dtype == "int16" else each.version)
        for each in model.opset_import
    ]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), arrays


def _quantization(array: NDArray, dtype: str) -> tuple[NDArray, NDArray]:
    """Return the scale and zero point that cover an array's finite values."""
    finite, limits = array[np.isfinite(array)], np.iinfo(dtype)
    low, high = min(float(finite.min(initial=0)), 0.0), max(float(finite.max(initial=0)), 0.0)
    if dtype == "int16":
        return np.array(max(-low, high, 1e-3) / limits.max, np.float32), np.array(0, dtype)
    scale = np.float32(max(high - low, 1e-3) / (limits.max - limits.min))
    return np.array(scale), np.array(
        np.clip(np.round(limits.min - low / scale), limits.min, limits.max), dtype
    )


def outcome(variant: Variant, constants: bool, folder: Path) -> Outcome:
    """Compile and run a variant on the golden model, and compare its outputs with the reference.

    Parameters
    ----------
    constants : bool
        All inputs but the first are constants.
    """
    wanted = _reference(variant)
    if wanted is None:
        return Outcome(None)
    model, feed = onnx.ModelProto(), dict(variant.inputs)
    model.CopyFrom(variant.model)
    for value in list(model.graph.input)[1:] if constants else ():
        model.graph.input.remove(value)
        model.graph.initializer.append(numpy_helper.from_array(feed.pop(value.name), value.name))
    for value in model.graph.output:
        array = wanted[value.name]
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, array.shape))
    path = folder / "model.onnx"
    onnx.save(model, path)
    try:
        try:
            network = compile(path, "n8", cache=False)
        except MlaError as error:
            if "calibration" not in str(error):
                raise
            network = compile(path, "n8", cache=False, calibration={k: v[None] for k, v in feed.items()})
        found = network(**feed)
    except MlaError as error:
        return Outcome(None, str(error))
    assert all(node.reason for node in network.host), variant.name
    return Outcome({name: _difference(variant, found[name], wanted[name]) for name in wanted})


def _reference(variant: Variant) -> dict[str, NDArray] | None:
    """Return the outputs of onnxruntime, or else of ONNX's reference; None if neither has a kernel."""
    try:
        return reference(variant.model, variant.inputs)
    except Exception:  # noqa: BLE001 - onnxruntime has exceptions of its own, without a common base
        pass
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(variant.model).run(None, dict(variant.inputs))
    except Exception:  # noqa: BLE001 - an operator that neither implements for the type
        return None
    names = [value.name for value in variant.model.graph.output]
    return {name: np.asarray(array) for name, array in zip(names, found, strict=True)}


def _difference(variant: Variant, found: NDArray, wanted: NDArray) -> float:
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), variant.name
    if found.dtype.kind == "f":
        close = np.isclose(found, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
        return 0.0 if close.all() else float(np.nanmax(np.abs(found - wanted), initial=0.0))
    return float(np.abs(found.astype(np.int64) - wanted.astype(np.int64)).max(initial=0))
