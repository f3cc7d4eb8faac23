"""Recurrent operators and states of TFLite models, compared with LiteRT over several samples."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from compiler.frontends.tflite import read_tflite
from compiler.ir.graph import Graph
from compiler.reference import evaluate
from hw.errors import InputError
from tests.support import tflite_recurrent as files
from tests.support.one_operator import RESOLVERS
from tests.support.tflite_recurrent import LstmKind, random_kind, steps_in_litert


def read(data: bytes, folder: Path) -> Graph:
    """Write a file and read it as a graph."""
    path = folder / "model.tflite"
    path.write_bytes(data)
    return read_tflite(path)


def samples_of(graph: Graph, rng: np.random.Generator, count: int) -> list[np.ndarray]:
    """Return random samples of the only input."""
    x = graph.tensors[graph.sample_inputs[0]]
    if x.dtype == "float32":
        return [rng.normal(0, 1, x.shape).astype(np.float32) for _ in range(count)]
    return [rng.integers(-128, 128, x.shape).astype(x.dtype) for _ in range(count)]


def in_turn(graph: Graph, samples: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Evaluate a graph on samples in turn, with its states carried over, and return the outputs of each."""
    states, out = {state.input: state.initial for state in graph.states}, []
    for sample in samples:
        values = evaluate(graph, {graph.sample_inputs[0]: sample} | states)
        states = {state.input: values[state.output] for state in graph.states}
        out.append([values[name] for name in graph.sample_outputs])
    return out


def check(data: bytes, folder: Path, rng: np.random.Generator, count: int, within: float = 0) -> None:
    """Compare a file's outputs over several samples with those of LiteRT's reference kernels."""
    graph = read(data, folder)
    samples = samples_of(graph, rng, count)
    wanted, found = steps_in_litert(data, samples, "reference"), in_turn(graph, samples)
    for number, (expected, made) in enumerate(zip(wanted, found, strict=True)):
        for one, other in zip(expected, made, strict=True):
            off = np.abs(one.astype(np.float64) - other.astype(np.float64)).max()
            assert off <= within, f"sample {number}: off by {off}"


@pytest.mark.parametrize("seed", range(40))
def test_int8_lstm_equals_litert(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    check(files.lstm(rng, random_kind(rng)), tmp_path, rng, 4)


@pytest.mark.parametrize("seed", range(20))
def test_int8_svdf_equals_litert(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    check(files.svdf(rng, activation=1, layers=1 + seed % 3), tmp_path, rng, 15)


def test_default_kernels_of_litert_give_the_same_results() -> None:
    rng = np.random.default_rng(1)
    for data in (files.lstm(rng, LstmKind(), steps=2), files.svdf(rng, activation=1)):
        from ai_edge_litert.interpreter import Interpreter

        shape = Interpreter(model_content=data).get_input_details()[0]["shape"]
        samples = [rng.integers(-128, 128, shape).astype(np.int8) for _ in range(5)]
        each = [steps_in_litert(data, samples, rounding) for rounding in RESOLVERS]
        assert all(np.array_equal(a[0], b[0]) for a, b in zip(*each, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_float_lstm_equals_litert(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    check(files.lstm(rng, random_kind(rng), "float32"), tmp_path, rng, 4, 1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_float_svdf_equals_litert(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    check(files.svdf(rng, "float32", seed % 4, 1 + seed % 3), tmp_path, rng, 15, 1e-4)


@pytest.mark.parametrize("merge", (False, True))
@pytest.mark.parametrize("time_major", (False, True))
@pytest.mark.parametrize("kind", ("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_RNN", "LSTM"))
def test_float_rnn_and_bidirectional_lstm_equal_litert(
    kind: str, *, time_major: bool, merge: bool, tmp_path: Path
) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        if kind == "LSTM":
            data = files.bidirectional_lstm(rng, time_major=time_major, merge=merge)
        else:
            data = files.rnn(rng, kind, time_major=time_major, merge=merge and kind.startswith("BI"))
        check(data, tmp_path, rng, 4, 1e-5)


def test_variables_keep_their_contents_from_sample_to_sample(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    check(files.counter(), tmp_path, rng, 5, 1e-6)
    (state,) = read(files.counter(), tmp_path).states
    assert state.input == "total" and (state.initial == 5).all()


def test_variable_without_contents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="variable 'total' is read before it has contents"):
        read(files.counter(initial=False), tmp_path)


def test_int8_svdf_needs_relu_as_in_litert(tmp_path: Path) -> None:
    data = files.svdf(np.random.default_rng(0), activation=0)
    with pytest.raises(InputError, match=r"svdf_0.*activation of an int8 SVDF must be relu"):
        read(data, tmp_path)


@pytest.mark.parametrize("seed", range(150))
def test_damaged_files_are_refused_or_read(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    makers = (
        lambda: files.lstm(rng, random_kind(rng)),
        lambda: files.svdf(rng, activation=1),
        files.counter,
        lambda: files.bidirectional_lstm(rng),
    )
    data = bytearray(makers[seed % len(makers)]())
    for place in rng.integers(8, len(data), 1 + seed % 3):
        data[place] = int(rng.integers(0, 256))
    try:
        read(bytes(data), tmp_path)
    except InputError as error:
        assert str(error)
