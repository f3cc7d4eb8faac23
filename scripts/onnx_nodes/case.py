"""Execution of one ONNX node test with the backend; `compare.py` checks the results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from compiler.frontends.builder import WHERE_LISTED
from compiler.frontends.onnx.values import INTERFACE
from compiler.onnx_backend import MlaBackend, MlaBackendRep
from hw.errors import InputError, MlaError, shown
from scripts.onnx_nodes.compare import Arrays, MismatchError, checked
from scripts.onnx_nodes.scope import RANDOM, obstacle

_SHOWN = 160
#: Errors after which a model is compiled with another calibration sample: the finite part of the sample, then none.
_NOT_FLOAT = "calibration is for float models"
_CALIBRATION_ERRORS = ((_NOT_FLOAT, "infinite values", "not NaN"), (_NOT_FLOAT,))


class Placement(IntEnum):
    """Outcome of a test: failure, or where its node ran, in order from the best to the worst successful outcome."""

    FAILED = 0
    ACCELERATOR = 1
    BOTH = 2
    VIEW = 3
    HOST = 4
    REFUSED = 5
    SKIPPED = 6


@dataclass(frozen=True)
class Result:
    """Result of a test.

    Parameters
    ----------
    name : str
        Name of the test.
    where : Placement
        Outcome of the test.
    reason : str
        Reason why the test ran on the host, was rejected or skipped, or failed.
    error : float
        Maximum error of a quantized result, relative to the largest expected magnitude.
    exact : bool
        True if all results equal the expected ones.
    """

    name: str
    where: Placement
    reason: str = ""
    error: float = 0.0
    exact: bool = False


def run(test: Any) -> Result:
    """Run a test with all inputs at run time, and with all but the first as constants; return the better result.

    Parameters
    ----------
    test : onnx.backend.test.case.test_case.TestCase
        Node test to run.
    """
    if any(node.op_type in RANDOM for node in test.model.graph.node):
        return Result(test.name, Placement.SKIPPED, obstacle(test))
    found = []
    for constants in (False, True):
        found.append(_tried(test, constants))
        if found[-1].where == Placement.ACCELERATOR or len(test.model.graph.input) < 2:
            break
    # Of two equal outcomes, the later one has the more specific reason.
    return min(reversed(found), key=lambda result: result.where)


def _tried(test: Any, constants: bool) -> Result:
    worst: Result | None = None
    try:
        for inputs, outputs in test.data_sets:
            result = _one(test, inputs, outputs, constants)
            if worst is None or (result.where, result.error) > (worst.where, worst.error):
                worst = result
    except MismatchError as error:
        return Result(test.name, Placement.FAILED, str(error))
    except MlaError as error:
        why = obstacle(test)
        if why:
            return Result(test.name, Placement.SKIPPED, why)
        text = str(error).removeprefix(f"{shown(test.model.graph.name)}: ").removesuffix(WHERE_LISTED)
        return Result(test.name, Placement.REFUSED, text[:_SHOWN])
    assert worst is not None
    return worst


def _one(test: Any, inputs: Sequence[Any], outputs: Sequence[Any], constants: bool) -> Result:
    """Run a test with one selection of run-time inputs."""
    names = [value.name for value in test.model.graph.input]
    arrays = {name: _array(value) for name, value in zip(names, inputs, strict=True)}
    # Arrays without elements have only one value.
    variable = [n for n in names if not isinstance(arrays[n], np.ndarray) or arrays[n].size]
    if constants:
        variable = [n for n in variable if n == names[0] or not isinstance(arrays[n], np.ndarray)]
    model = _with_constants(test.model, arrays, variable)
    sample = {name: arrays[name] for name in variable}
    with _prepared(model, sample) as ready:
        found = [np.asarray(value) for value in ready.run(sample)]
        wanted = [_array(value) for value in outputs]
        if not all(isinstance(value, np.ndarray) for value in wanted):
            raise InputError("its outputs are not arrays")
        error = checked(test, model, ready, sample, found, wanted)
        exact = all(map(_equal, found, wanted))
        return Result(test.name, *_where(ready), error, exact)


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Return True if two arrays are equal, where two NaNs count as equal."""
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _array(value: Any) -> Any:
    """Return an input or output as an array, unless it is a sequence or an optional value."""
    if isinstance(value, onnx.TensorProto) and value.data_type in INTERFACE:
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _with_constants(model: onnx.ModelProto, arrays: Arrays, variable: Sequence[str]) -> onnx.ModelProto:
    """Return the model in which all inputs except those in `variable` are constants."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for value in list(made.graph.input):
        if value.name not in variable:
            made.graph.input.remove(value)
            made.graph.initializer.append(numpy_helper.from_array(arrays[value.name], value.name))
    return made


def _prepared(model: onnx.ModelProto, sample: Mapping[str, Any]) -> MlaBackendRep:
    """Compile the model; a float model is calibrated with the sample itself."""
    sizes = {
        f"{value.name}.{i}": sample[value.name].shape[i]
        for value in model.graph.input
        if isinstance(sample[value.name], np.ndarray)
        for i, size in enumerate(value.type.tensor_type.shape.dim)
        if size.WhichOneof("value") is None
    }
    if not all(isinstance(value, np.ndarray) for value in sample.values()):
        MlaBackend.prepare(model, sizes=sizes)  # raises an error that names the unsupported type
        raise InputError("its inputs are not arrays")
    finite = {n: np.where(np.isfinite(v), v, 0) if v.dtype.kind == "f" else v for n, v in sample.items()}
    calibrations: list[dict[str, Any]] = [{"calibration": [sample]}, {"calibration": [finite]}, {}]
    for known, arguments in zip(_CALIBRATION_ERRORS, calibrations, strict=False):
        try:
            return MlaBackend.prepare(model, sizes=sizes, **arguments)
        except InputError as error:
            if not any(text in str(error) for text in known):
                raise
    return MlaBackend.prepare(model, sizes=sizes)


def _where(ready: MlaBackendRep) -> tuple[Placement, str]:
    network = ready.network
    if network.infos:
        host = [each for each in network.host if not each.edge]
        return (Placement.BOTH, _reasons(host)) if host else (Placement.ACCELERATOR, "")
    views = all(each.op == "reshape" for each in network.host)
    return (Placement.VIEW, "") if views else (Placement.HOST, _reasons(network.host))


def _reasons(host: Sequence[Any]) -> str:
    specific = [each for each in host if not each.edge and each.op != "reshape"] or host
    return "; ".join(dict.fromkeys(f"{each.op}: {each.reason}" for each in specific))[:_SHOWN]
