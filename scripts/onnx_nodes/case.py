"""One node test of ONNX through the backend: where it ran, and whether its results are right.

What counts as right is said on the page that is made of the results (`page.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from compiler.backend import MlaBackend, MlaBackendRep
from compiler.host import evaluate
from compiler.quantize.plan import EDGE
from hw.errors import InputError, MlaError

Arrays = dict[str, np.ndarray]
#: Steps of its scale by which a quantized result may differ from the real operator's on the same 8-bit numbers.
UNITS = 1
FLOAT_UNITS = {"softmax": 2, "layer_norm": 2, "rms_norm": 2, "gelu": 2}
#: Of a quantized result against the test's numbers: steps, and part of the greatest of them.
STEPS, PART = 2, 0.02
_SHOWN = 160
_RANDOM = (
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
)  # fmt: skip


class Where(IntEnum):
    """Where a test ran, best first."""

    FAILED = 0
    ACCELERATOR = 1
    BOTH = 2
    VIEW = 3
    HOST = 4
    SKIPPED = 5


@dataclass(frozen=True)
class Result:
    """What came of a test.

    Parameters
    ----------
    name : str
        Of the test.
    where : Where
        Where it ran.
    reason : str
        Why on the host, skipped or failed.
    error : float
        Greatest error of a quantized result, as part of the greatest number expected.
    """

    name: str
    where: Where
    reason: str = ""
    error: float = 0.0


class WrongError(Exception):
    """A result that is not right; the text says how."""


def run(test: Any) -> Result:
    """A test with all its inputs flowing, else with those behind the first as constants, whichever needs less host.

    Parameters
    ----------
    test : onnx.backend.test.case.test_case.TestCase
        A node test.
    """
    random = [node.op_type for node in test.model.graph.node if node.op_type in _RANDOM]
    if random:
        return Result(test.name, Where.SKIPPED, f"{random[0]} makes random numbers")
    found = []
    for constants in (False, True):
        found.append(_tried(test, constants))
        if found[-1].where == Where.ACCELERATOR or len(test.model.graph.input) < 2:
            break
    return min(reversed(found), key=lambda result: result.where)  # the later one tells more


def _tried(test: Any, constants: bool) -> Result:
    worst: Result | None = None
    try:
        for inputs, outputs in test.data_sets:
            result = _one(test, inputs, outputs, constants)
            if worst is None or (result.where, result.error) > (worst.where, worst.error):
                worst = result
    except WrongError as error:
        return Result(test.name, Where.FAILED, str(error))
    except MlaError as error:
        if any(
            isinstance(v, np.ndarray) and not v.size for v in (*test.data_sets[0][0], *test.data_sets[0][1])
        ):
            return Result(test.name, Where.SKIPPED, "an input or output without elements")
        text = str(error).removeprefix(f"{test.name!r}: ")
        return Result(test.name, Where.SKIPPED, text[:_SHOWN])
    assert worst is not None
    return worst


def _one(test: Any, inputs: Sequence[Any], outputs: Sequence[Any], constants: bool) -> Result:
    """One set of inputs of a test."""
    names = [value.name for value in test.model.graph.input]
    arrays = {name: _array(value) for name, value in zip(names, inputs, strict=True)}
    if constants:
        names = [n for n in names if n == names[0] or not isinstance(arrays[n], np.ndarray)]
    model = _with_constants(test.model, arrays, names)
    sample = {name: arrays[name] for name in names}
    with _prepared(model, sample) as ready:
        found = [np.asarray(value) for value in ready.run(sample)]
        wanted = [_array(value) for value in outputs]
        if not all(isinstance(value, np.ndarray) for value in wanted):
            raise InputError("its outputs are no arrays")
        error = _checked(test, model, ready, sample, found, wanted)
        return Result(test.name, *_where(ready), error)


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value


def _with_constants(model: onnx.ModelProto, arrays: Arrays, flowing: Sequence[str]) -> onnx.ModelProto:
    """The model with the inputs that do not flow as constants."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for value in list(made.graph.input):
        if value.name not in flowing:
            made.graph.input.remove(value)
            made.graph.initializer.append(numpy_helper.from_array(arrays[value.name], value.name))
    return made


def _prepared(model: onnx.ModelProto, sample: Mapping[str, Any]) -> MlaBackendRep:
    """The model compiled, calibrated with the very sample if it computes in real numbers."""
    sizes = {
        f"{value.name}.{i}": sample[value.name].shape[i]
        for value in model.graph.input
        if isinstance(sample[value.name], np.ndarray)
        for i, size in enumerate(value.type.tensor_type.shape.dim)
        if size.WhichOneof("value") is None
    }
    if not all(isinstance(value, np.ndarray) for value in sample.values()):
        MlaBackend.prepare(model, sizes=sizes)  # says which type there is none for
        raise InputError("its inputs are no arrays")
    numbers = {n: np.where(np.isnan(v), 0, v) if v.dtype.kind == "f" else v for n, v in sample.items()}
    try:
        return MlaBackend.prepare(model, sizes=sizes, calibration=[numbers])
    except InputError as error:
        if "is quantized already" not in str(error):
            raise
        return MlaBackend.prepare(model, sizes=sizes)


def _where(ready: MlaBackendRep) -> tuple[Where, str]:
    network = ready.network
    if network.infos:
        host = [each for each in network.host if each.reason != EDGE]
        return (Where.BOTH, _reasons(host)) if host else (Where.ACCELERATOR, "")
    views = all(each.op == "reshape" for each in network.host)
    return (Where.VIEW, "") if views else (Where.HOST, _reasons(network.host))


def _reasons(host: Sequence[Any]) -> str:
    telling = [each for each in host if each.reason != EDGE and each.op != "reshape"] or host
    return "; ".join(dict.fromkeys(f"{each.op}: {each.reason}" for each in telling))[:_SHOWN]


def _checked(
    test: Any, model: onnx.ModelProto, ready: MlaBackendRep, sample: Arrays, found: list, wanted: list
) -> float:
    """The greatest relative error of quantized results.

    Raises
    ------
    WrongError
        A result is not right.
    """
    graph = ready.network.graph
    assert graph is not None
    host = evaluate(graph, sample, rounding="onnxruntime")
    steps = _steps(graph)
    near = None
    worst = 0.0
    for tensor, got, right in zip(ready.network.outputs, found, wanted, strict=True):
        if got.shape != right.shape or got.dtype != right.dtype:
            raise WrongError(f"{tensor.name}: {got.dtype}{got.shape}, not {right.dtype}{right.shape}")
        if tensor.name not in steps:
            _same(tensor.name, got, right, test)
            continue
        step, units = steps[tensor.name]
        if _off(got, host[tensor.name]) > (units + 0.01) * step:
            raise WrongError(f"{tensor.name}: more than {units} steps from the same operator on the host")
        near = near or _rounded_answers(model, graph, sample)
        greatest = float(np.abs(right[np.isfinite(right)]).max(initial=0))
        off = _off(got, right)
        bound = max(STEPS * step, PART * greatest) + _off(near[tensor.name], right)
        if len(model.graph.node) == 1 and off > bound:
            raise WrongError(f"{tensor.name}: off by {off:.3g} with steps of {step:.3g}")
        worst = max(worst, off / greatest if greatest else 0.0)
    return worst


def _same(name: str, got: np.ndarray, right: np.ndarray, test: Any) -> None:
    """What was not quantized is what the test says."""
    if got.dtype.kind == "f":
        if not np.allclose(got, right, rtol=test.rtol, atol=test.atol, equal_nan=True):
            raise WrongError(f"{name}: off by {_off(got, right):.3g}")
    elif not np.array_equal(got, right):
        raise WrongError(f"{name}: {np.count_nonzero(got != right)} of {got.size} integers differ")


def _off(a: np.ndarray, b: np.ndarray) -> float:
    """Greatest difference; what is infinite, or no number, in both is none."""
    with np.errstate(invalid="ignore"):
        off = np.atleast_1d(np.abs(a.astype(np.float64) - b.astype(np.float64)))
    off[np.atleast_1d((a == b) | (np.isnan(a) & np.isnan(b)))] = 0
    return float(np.nan_to_num(off, nan=np.inf).max(initial=0))


def _steps(graph: Any) -> dict[str, tuple[float, int]]:
    """Of each output that was quantized: its step, and by how many it may be off."""
    units = max((FLOAT_UNITS.get(node.op, UNITS) for node in graph), default=UNITS)
    scales = [
        tensor.quantization.scale[0] for node in graph if (tensor := graph.out(node)).quantization is not None
    ]
    made: dict[str, tuple[float, int]] = {}
    for name in graph.outputs:
        node = graph.producer(name)
        while node is not None and node.op in ("transpose", "reshape") and node.inputs[0] not in graph.inputs:
            node = graph.producer(node.inputs[0])
        if graph.tensors[name].dtype != "float32" or node is None or not scales:
            continue
        if node.op == "dequantize":
            q = graph.ins(node)[0].quantization
            made[name] = (q.scale[0], units)
        elif any(node.op == "quantize" for node in graph):
            made[name] = (max(scales), units)  # computed in float of what was quantized before
    return made


def _rounded_answers(model: onnx.ModelProto, graph: Any, sample: Arrays) -> Arrays:
    """What ONNX's reference makes of the inputs as the machine has them: rounded to their 8 bits."""
    rounded = dict(sample)
    for node in graph:
        x = graph.ins(node)[0] if node.inputs else None
        while x is not None and (maker := graph.producer(x.name)) and maker.op in ("transpose", "reshape"):
            x = graph.ins(maker)[0]
        q = graph.out(node).quantization
        if node.op == "quantize" and x is not None and x.name in rounded and q.whole:
            steps = np.rint(np.nan_to_num(sample[x.name]).astype(np.float64) / q.scale[0]) + q.zero_point[0]
            limits = np.iinfo(graph.out(node).dtype)
            rounded[x.name] = q.dequantized(np.clip(steps, limits.min, limits.max).astype(np.int64))
    names = [value.name for value in model.graph.output]
    with np.errstate(all="ignore"):
        return dict(zip(names, map(np.asarray, ReferenceEvaluator(model).run(None, rounded)), strict=True))
