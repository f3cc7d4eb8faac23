"""TFLite operators of every kind with all types of tensors, compared with LiteRT."""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from compiler.api import compile
from compiler.frontends.tflite import read_tflite
from compiler.reference import evaluate
from compiler.reference.node_invocation import Kernels
from hw.errors import MlaError
from tests.support import tflite_recurrent as files
from tests.support.tflite_cases import Case
from tests.support.tflite_kinds import KINDS
from tests.support.tflite_models import Draft, litert

TYPES = ("int8", "uint8", "int16", "int32", "float32")
ROUNDINGS: tuple[Kernels, ...] = ("reference", "xnnpack")
_Maker = Callable[[np.random.Generator, str], bytes]


def _lstm_of_one_step(rng: np.random.Generator, dtype: str) -> bytes:
    """Return a file with an LSTM, made of a UNIDIRECTIONAL_SEQUENCE_LSTM of one time step."""
    kind = files.random_kind(rng)
    model = schema.ModelT.InitFromPackedBuf(files.lstm(rng, kind, dtype, steps=1))
    code, (graph,) = model.operatorCodes[0], model.subgraphs
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.LSTM
    operator = graph.operators[0]
    given, operator.builtinOptions = operator.builtinOptions, schema.LSTMOptionsT()
    operator.builtinOptionsType = schema.BuiltinOptions.LSTMOptions
    for name in ("fusedActivationFunction", "cellClip", "projClip"):
        setattr(operator.builtinOptions, name, getattr(given, name))
    for index in (*graph.inputs, *graph.outputs):
        shape = list(graph.tensors[index].shape)
        graph.tensors[index].shape = shape[1:] if kind.time_major else [shape[0], shape[2]]
    return _packed(model)


#: Functions that return files of recurrent operators, of int8 or float32 if LiteRT has both, by kind of operator.
RECURRENT: dict[str, tuple[_Maker, tuple[str, ...]]] = {
    "LSTM": (_lstm_of_one_step, ("int8", "float32")),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (
        lambda rng, dtype: files.lstm(rng, files.random_kind(rng), dtype),
        ("int8", "float32"),
    ),
    "SVDF": (lambda rng, dtype: files.svdf(rng, dtype, activation=1), ("int8", "float32")),
    "BIDIRECTIONAL_SEQUENCE_LSTM": (lambda rng, _: files.bidirectional_lstm(rng), ("float32",)),
    **{
        kind: (lambda rng, _, kind=kind: files.rnn(rng, kind), ("float32",))
        for kind in ("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_RNN")
    },
}


@dataclass(frozen=True)
class Trial:
    """A file of one operator, the contents of its inputs, and the resolver of LiteRT with which it is compared."""

    name: str
    kind: str
    dtype: str
    rounding: Kernels
    data: bytes
    inputs: tuple[NDArray, ...]


@dataclass(frozen=True)
class Outcome:
    """Result of a trial.

    Attributes
    ----------
    differences : dict or None
        Largest difference from LiteRT of each output; None if the model was rejected or LiteRT has no kernel.
    message : str
        The compiler's message, if it rejected the model.
    """

    differences: Mapping[str, float] | None
    message: str = ""


def trials(kind: str, seeds: Sequence[int]) -> Iterator[Trial]:
    """Yield random models of a kind of operator, with each type of tensor and each resolver."""
    for dtype in TYPES:
        for rounding in ROUNDINGS:
            for number, case in enumerate(KINDS.get(kind, (None,))):
                for each in seeds:
                    seed = zlib.crc32(f"{kind}{number}{dtype}{rounding}{each}".encode())
                    rng = np.random.default_rng(seed)
                    data, inputs = (
                        _recurrent(kind, dtype, rng) if case is None else _drafted(case, dtype, rng)
                    )
                    name = f"{kind} case {number} {dtype} {rounding} (seed {seed})"
                    yield Trial(name, kind, dtype, rounding, data, tuple(inputs))


def _drafted(case: Case, dtype: str, rng: np.random.Generator) -> tuple[bytes, list[NDArray]]:
    draft = Draft(rng, dtype)
    draft.limit = 9 if dtype == "int32" and rng.integers(2) else None
    draft.loose = rng.integers(6) == 0
    case(draft)
    return draft.file(), [draft.values(each) for each in draft.inputs]


def _recurrent(kind: str, dtype: str, rng: np.random.Generator) -> tuple[bytes, list[NDArray]]:
    """Return a file of a recurrent operator; types for which LiteRT has no kernel replace those that it has."""
    make, types = RECURRENT[kind]
    made = dtype if dtype in types else types[0]
    model = schema.ModelT.InitFromPackedBuf(make(rng, made))
    old, new = (getattr(schema.TensorType, name.upper()) for name in (made, dtype))
    (graph,) = model.subgraphs
    for tensor in graph.tensors:
        constant = model.buffers[tensor.buffer].data is not None
        if tensor.type == old and not (constant and np.dtype(made).itemsize != np.dtype(dtype).itemsize):
            tensor.type = new
            if (made, dtype) == ("int8", "uint8"):
                tensor.quantization.zeroPoint = [zero + 128 for zero in tensor.quantization.zeroPoint]
    shape = [int(size) for size in graph.tensors[graph.inputs[0]].shape]
    if dtype == "float32":
        x = rng.normal(0, 1, shape).astype(np.float32)
    else:
        x = rng.integers(0, 100, shape).astype(dtype)
    return _packed(model), [x]


def _packed(model: schema.ModelT) -> bytes:
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def outcome(trial: Trial, folder: Path) -> Outcome:
    """Compile and run a model on the golden model, and compare its outputs with those of LiteRT.

    Float models are compared before they are quantized.
    """
    path = folder / "model.tflite"
    path.write_bytes(trial.data)
    try:
        wanted: list[NDArray] | None = litert(trial.data, trial.inputs, trial.rounding)
    except (RuntimeError, ValueError):  # LiteRT has no kernel
        wanted = None
    try:
        graph = read_tflite(path)
        named = dict(zip(graph.sample_inputs, trial.inputs, strict=True))
        settings = {"rounding": trial.rounding, "cache": False}
        try:
            network = compile(graph, "n8", **settings)
        except MlaError as error:
            if "calibration" not in str(error):
                raise
            calibration = {key: value[None] for key, value in named.items()}
            network = compile(graph, "n8", **settings, calibration=calibration)
        found = network(*trial.inputs)
        if trial.dtype == "float32":
            states = {state.input: state.initial for state in graph.states}
            found = evaluate(graph, named | states, rounding=trial.rounding)
    except MlaError as error:
        return Outcome(None, str(error))
    assert all(node.reason for node in network.host), trial.name
    if wanted is None:
        return Outcome(None)
    pairs = zip(graph.sample_outputs, wanted, strict=True)
    return Outcome({name: _difference(trial, found[name], array) for name, array in pairs})


def _difference(trial: Trial, found: NDArray, wanted: NDArray) -> float:
    """Return the largest difference; 0 for float32 numbers that differ by rounding only."""
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), trial.name
    if found.dtype.kind == "f":
        close = np.isclose(found, wanted, rtol=2e-5, atol=2e-5, equal_nan=True)
        with np.errstate(invalid="ignore"):
            return 0.0 if close.all() else float(np.nan_to_num(np.abs(found - wanted), nan=np.inf).max())
    return float(np.abs(found.astype(np.int64) - wanted.astype(np.int64)).max(initial=0))
