"""Recurrent networks of 1,000 steps compile, and equal the host bit by bit (`make soak`)."""

import numpy as np
import pytest

from compiler.api import compile
from compiler.frontends.onnx import read_onnx
from compiler.reference import evaluate
from tests.frontends.onnx.test_recurrent import sequences, sqnr, trained_like
from tests.support.onnx_models import reference

STEPS, SIZE, HIDDEN = 1000, 16, 32


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_a_thousand_steps(op: str) -> None:
    made = trained_like(op, STEPS, SIZE, HIDDEN)
    network = compile(
        read_onnx(made),
        "n16",
        calibration=sequences(2, STEPS, SIZE, seed=1),
        rounding="reference",
        strict=True,
        cache=False,
    )
    (new,) = sequences(1, STEPS, SIZE, seed=2)
    assert network.graph is not None
    found, host = network(**new), evaluate(network.graph, new, rounding="reference")
    wanted = reference(made, new)
    print(f"{op}: compiled in {network.compile_seconds:.0f} s")
    for name, array in found.items():
        np.testing.assert_array_equal(array, host[name])
        assert sqnr(wanted[name], array) > 30
