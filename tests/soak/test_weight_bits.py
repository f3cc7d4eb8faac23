"""Accuracy of trained networks with bits per layer, on data that calibration has not seen."""

from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.bench.tiny import model_path
from compiler.frontends.model import read_model
from compiler.options import AccuracyBudget
from compiler.reference import evaluate
from scripts.stories_quantization import costs
from tests.support.trained_networks import model


def data(name: str) -> Path:
    """Return a file beside the trained networks; skip the test if it is missing."""
    path = model_path("kws_ref_model").parent / name
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    return path


def test_keyword_spotting_with_three_quarters_of_the_bits() -> None:
    path = model("kws_ref_model")
    stored = np.load(data("data/kws_300.npz"))
    x, y = stored["x"], stored["y"].astype(int)
    graph = read_model(path)
    network = compiler.compile(
        path,
        "n16",
        calibration={graph.inputs[0]: x[:150]},
        accuracy_budget=AccuracyBudget(worse=2, labels=y[:150]),
        cache=False,
        database=False,
    )
    assert network.quantization is not None
    report = network.quantization.weights
    assert report is not None and report.worse is not None
    assert report.worse <= 2 and report.mean_bits <= 0.75 * 8
    (name,) = graph.outputs
    before = [evaluate(graph, {graph.inputs[0]: each[None]})[name].argmax() for each in x[150:]]
    after = [network(**{graph.inputs[0]: each[None]})[name].argmax() for each in x[150:]]
    was, now = np.array(before) == y[150:], np.array(after) == y[150:]
    assert (was & ~now).sum() <= 2


def test_cost_of_quantized_weights_of_a_language_model() -> None:
    found = {(name, round(bits)): (bits, cost) for name, bits, cost in costs(data("stories260K.bin"))}
    assert found["compensated, 4 bits", 4][1] <= 0.065 < 0.8 * found["nearest, 4 bits", 4][1]
    bits, cost = found["compensated, bits per layer", 4]
    assert bits <= 4.3 and cost <= 0.04
    assert found["compensated, 5 bits", 5][1] <= 0.6 * found["nearest, 5 bits", 5][1]
    assert found["tuned, 5 bits", 5][1] <= 0.005
    for name, bits in (("4 bits", 4), ("bits per layer", 4), ("5 bits", 5)):
        assert found[f"tuned, {name}", bits][1] <= 0.6 * found[f"compensated, {name}", bits][1]
