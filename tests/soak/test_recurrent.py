"""Streaming models over 1,000 steps, and many random LSTM and SVDF operators, equal LiteRT (`make soak`)."""

from pathlib import Path

import numpy as np
import pytest

import compiler
from tests.frontends.tflite.test_recurrent import check
from tests.soak.test_tflite import generator
from tests.support import tflite_recurrent as files
from tests.support.tflite_recurrent import LstmKind, random_kind, steps_in_litert

_STEPS = 1000
_MODELS = 300


@pytest.mark.parametrize("kind", ("lstm", "projected", "svdf", "filter"))
def test_streams_of_many_steps(kind: str, tmp_path: Path) -> None:
    rng, path = generator(), tmp_path / "model.tflite"
    if kind == "svdf":
        data = files.svdf(rng, activation=1, layers=3)
    elif kind == "filter":
        data = files.streaming_filter(rng)
    else:
        data = files.lstm(rng, LstmKind(projection=kind == "projected", norm=kind == "projected"), steps=1)
    path.write_bytes(data)
    network = compiler.compile(path, "n8", cache=False)
    (x,), (y,) = network.inputs, network.outputs
    samples = [rng.integers(-128, 128, x.shape).astype(np.int8) for _ in range(_STEPS)]
    wanted = steps_in_litert(data, samples, "reference")
    with compiler.open_device(network, "golden") as device:
        session = compiler.Session(device, network)
        for number, (sample, expected) in enumerate(zip(samples, wanted, strict=True)):
            assert np.array_equal(session.run({x.name: sample})[y.name], expected[0]), f"step {number}"


def test_random_operators(tmp_path: Path) -> None:
    rng = generator()
    for _ in range(_MODELS):
        check(files.lstm(rng, random_kind(rng)), tmp_path, rng, 5)
        check(files.svdf(rng, activation=1, layers=int(rng.integers(1, 4))), tmp_path, rng, 20)
