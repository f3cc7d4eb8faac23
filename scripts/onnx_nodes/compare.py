"""Comparison of the results of a node test with the expected results.

The criteria are stated on the page generated from the results (`page.py`).
"""

from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from compiler.onnx_backend import MlaBackendRep
from compiler.reference import evaluate

Arrays = dict[str, np.ndarray]
#: Maximum difference of a quantized result from the floating-point operator's on the same 8-bit values, in steps of its
#: scale.
UNITS = 1
FLOAT_UNITS = {"softmax": 2, "layer_norm": 2, "rms_norm": 2, "gelu": 2}
#: Maximum difference of a quantized result from the test's values: in steps, or as a fraction of the largest magnitude.
TOLERANCE_STEPS, RELATIVE_TOLERANCE = 2, 0.02


class MismatchError(Exception):
    """Mismatch of a test's result; the message describes the difference."""


def checked(
    test: Any, model: onnx.ModelProto, ready: MlaBackendRep, sample: Arrays, found: list, wanted: list
) -> float:
    """Check all results and return the maximum relative error of the quantized results.

    Raises
    ------
    MismatchError
        A result differs from the expected one by more than the tolerance.
    """
    graph = ready.network.graph
    assert graph is not None
    host = evaluate(graph, sample, rounding="onnxruntime")
    steps = _steps(graph)
    near = None
    worst = 0.0
    for tensor, got, right in zip(ready.network.outputs, found, wanted, strict=True):
        if got.shape != right.shape or got.dtype != right.dtype:
            raise MismatchError(f"{tensor.name}: {got.dtype}{got.shape}, not {right.dtype}{right.shape}")
        if tensor.name not in steps:
            _same(tensor.name, got, right, test)
            continue
        step, units = steps[tensor.name]
        if _off(got, host[tensor.name]) > (units + 0.01) * step:
            raise MismatchError(f"{tensor.name}: more than {units} steps from the same operator on the host")
        near = near or _rounded_answers(model, graph, sample)
        maximum = float(np.abs(right[np.isfinite(right)]).max(initial=0))
        off = _off(got, right)
        bound = max(TOLERANCE_STEPS * step, RELATIVE_TOLERANCE * maximum) + _off(near[tensor.name], right)
        if len(model.graph.node) == 1 and off > bound:
            raise MismatchError(f"{tensor.name}: off by {off:.3g} with steps of {step:.3g}")
        worst = max(worst, off / maximum if maximum else 0.0)
    return worst


def _same(name: str, got: np.ndarray, right: np.ndarray, test: Any) -> None:
    """Check that an unquantized result equals the expected one."""
    if got.dtype.kind == "f":
        if not np.allclose(got, right, rtol=test.rtol, atol=test.atol, equal_nan=True):
            raise MismatchError(f"{name}: off by {_off(got, right):.3g}")
    elif not np.array_equal(got, right):
        raise MismatchError(f"{name}: {np.count_nonzero(got != right)} of {got.size} integers differ")


def _off(a: np.ndarray, b: np.ndarray) -> float:
    """Return the maximum difference between two arrays, where equal infinities and two NaNs count as equal."""
    with np.errstate(invalid="ignore"):
        off = np.atleast_1d(np.abs(a.astype(np.float64) - b.astype(np.float64)))
    off[np.atleast_1d((a == b) | (np.isnan(a) & np.isnan(b)))] = 0
    return float(np.nan_to_num(off, nan=np.inf).max(initial=0))


def _steps(graph: Any) -> dict[str, tuple[float, int]]:
    """Return the quantization step of each quantized output, and its tolerance in steps."""
    units = max((FLOAT_UNITS.get(node.op, UNITS) for node in graph), default=UNITS)
    scales = [
        tensor.quantization.scale[0] for node in graph if (tensor := graph.out(node)).quantization is not None
    ]
    made: dict[str, tuple[float, int]] = {}
    for name in graph.outputs:
        node, real = graph.producer(name), name
        if node is not None and node.op == "dequantize" and graph.ins(node)[0].dtype == "float32":
            real, node = node.inputs[0], graph.producer(node.inputs[0])  # converted to float16 or double
        while node is not None and node.op in ("transpose", "reshape") and node.inputs[0] not in graph.inputs:
            node = graph.producer(node.inputs[0])
        if graph.tensors[real].dtype != "float32" or node is None or not scales:
            continue
        if node.op == "dequantize":
            q = graph.ins(node)[0].quantization
            made[name] = (q.scale[0], units)
        elif any(node.op == "quantize" for node in graph):
            made[name] = (max(scales), units)  # floating-point computation on quantized values
    return made


def _relays(graph: Any, node: Any) -> bool:
    """Return True if a node only changes the layout of floating-point values, or widens them."""
    floats = graph.ins(node)[:1] and graph.ins(node)[0].dtype.startswith("float")
    return node.op in ("transpose", "reshape") or (node.op == "dequantize" and floats)


def _rounded_answers(model: onnx.ModelProto, graph: Any, sample: Arrays) -> Arrays:
    """Return the results of ONNX's reference implementation for inputs rounded to 8 bits, as on the accelerator."""
    rounded = dict(sample)
    for node in graph:
        x = graph.ins(node)[0] if node.inputs else None
        while x is not None and (maker := graph.producer(x.name)) and _relays(graph, maker):
            x = graph.ins(maker)[0]
        q = graph.out(node).quantization
        if node.op == "quantize" and x is not None and x.name in rounded and q.whole:
            steps = np.rint(np.nan_to_num(sample[x.name]).astype(np.float64) / q.scale[0]) + q.zero_point[0]
            limits = np.iinfo(graph.out(node).dtype)
            near = q.dequantized(np.clip(steps, limits.min, limits.max).astype(np.int64))
            near = np.where(np.isfinite(sample[x.name]), near, sample[x.name])  # such as -inf in masks
            rounded[x.name] = near.astype(sample[x.name].dtype)
    names = [value.name for value in model.graph.output]
    with np.errstate(all="ignore"):
        return dict(zip(names, map(np.asarray, ReferenceEvaluator(model).run(None, rounded)), strict=True))
