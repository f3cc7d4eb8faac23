"""Streams of 1,000 steps, many random LSTM and SVDF operators, and a long LSTM equal LiteRT (`make soak`)."""

import sys
from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.runtime.session import dram_bytes
from cosim.rtl.rtl_device import RtlDevice
from tests.frontends.tflite.test_recurrent import check
from tests.soak.test_tflite import generator
from tests.support import tflite_recurrent as files
from tests.support.tflite_recurrent import LstmKind, random_kind, steps_in_litert

_STEPS = 1000
_MODELS = 300
#: Time steps, and inputs and cells, of the LSTM whose cycles are measured, and their ceiling.
_LSTM_STEPS, _LSTM_SIZE, _LSTM_CYCLES = 50, 256, 940_000


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


def test_cycles_of_an_lstm_of_many_cells(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The weights of the input are read once for all steps, those of the hidden state once per step, by the bus."""
    rng, path = generator(), tmp_path / "model.tflite"
    data = files.lstm(rng, LstmKind(), steps=_LSTM_STEPS, sizes=(1, _LSTM_SIZE, _LSTM_SIZE))
    path.write_bytes(data)
    network = compiler.compile(path, "n16", cache=False, database=False)
    (x,), (y,) = network.inputs, network.outputs
    sample = rng.integers(-128, 128, x.shape).astype(np.int8)
    with RtlDevice(network.config, dram_bytes(network)) as device:
        found, cycles = compiler.Session(device, network).measure({x.name: sample})
    ((wanted,),) = steps_in_litert(data, [sample], "reference")
    assert np.array_equal(found[y.name], wanted)
    n, weights = network.config.n, 4 * _LSTM_SIZE * _LSTM_SIZE
    macs, bound = 2 * weights * _LSTM_STEPS, max(2 * weights // n**2, 2 * weights // (2 * n)) * _LSTM_STEPS
    with capfd.disabled():
        print(
            f"\n{_LSTM_STEPS} steps of an LSTM of {_LSTM_SIZE}: {cycles:,} cycles, {cycles / macs * n**2:.2f} times "
            f"{macs:,} MACs / {n**2}, {cycles / bound:.2f} times all weights / {2 * n} per step, "
            f"{2 * cycles / bound:.2f} times those of the hidden state",
            file=sys.stderr,
            flush=True,
        )
    assert cycles <= _LSTM_CYCLES
