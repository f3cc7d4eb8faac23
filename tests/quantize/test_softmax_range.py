"""In attention with masks, masked scores do not widen the range of the other scores."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

from compiler.api import compile
from compiler.frontends.onnx import read_onnx
from compiler.quantize import quantize
from compiler.quantize.report import quality_warnings
from tests.support.float_graphs import numbers
from tests.support.onnx_models import Arrays, model, node, read, reference

ROWS, WIDTH = 6, 16
LEAST = float(np.finfo(np.float32).min)
HIDDEN = np.triu(np.ones((ROWS, ROWS), bool), 1)
PROJECTIONS = {
    name: numbers(WIDTH, WIDTH, seed=i, scale=0.3) for i, name in enumerate(("wq", "wk", "wv", "wo"))
}
SCORES = [
    node("MatMul", "x wq", "q"),
    node("MatMul", "x wk", "k"),
    node("MatMul", "x wv", "v"),
    node("Transpose", "k", "t", perm=[0, 2, 1]),
    node("MatMul", "q t", "a"),
    node("Mul", "a quarter", "s"),
]
MIXED = [node("Softmax", "m", "p", axis=-1), node("MatMul", "p v", "o"), node("MatMul", "o wo", "y")]
CONSTANTS = PROJECTIONS | {"quarter": np.array(0.25, np.float32)}
#: Nodes that apply a mask, and their constants.
MASKS: dict[str, tuple[list[onnx.NodeProto], Arrays]] = {
    "none": ([node("Identity", "s", "m")], {}),
    **{
        f"added {number}": (
            [node("Add", "s mask", "m")],
            {"mask": np.where(HIDDEN, number, 0).astype(np.float32)},
        )
        for number in (-1e4, -1e9, LEAST, -np.inf)
    },
    **{
        f"put in {number}": (
            [node("Where", "seen s low", "m")],
            {"seen": ~HIDDEN, "low": np.array(number, np.float32)},
        )
        for number in (-1e4, LEAST, -np.inf)
    },
    "maximum before and after": (
        [node("Max", "s low", "u"), node("Add", "u mask", "f"), node("Max", "f low", "m")],
        {"mask": np.where(HIDDEN, -1e4, 0).astype(np.float32), "low": np.array(-3.4e38, np.float32)},
    ),
    "reshaped": (
        [
            node("Add", "s mask", "u"),
            node("Reshape", "u flat", "f"),
            node("Clip", "f low", "g"),
            node("Reshape", "g square", "m"),
        ],
        {
            "mask": np.where(HIDDEN, LEAST, 0).astype(np.float32),
            "low": np.array(LEAST, np.float32),
            "flat": np.array([1, ROWS * ROWS]),
            "square": np.array([1, ROWS, ROWS]),
        },
    ),
}


def _decibels(made: onnx.ModelProto, network, given: Sequence[Arrays]) -> float:
    wanted = [reference(made, each)["y"].astype(float) for each in given]
    noise = sum(
        np.square(network(**each)["y"] - right).sum() for each, right in zip(given, wanted, strict=True)
    )
    return 10 * np.log10(sum(np.square(right).sum() for right in wanted) / noise)


@pytest.mark.parametrize("name", MASKS)
def test_masked_attention_is_accurate(tmp_path, name):
    nodes, constants = MASKS[name]
    given = [{"x": numbers(1, ROWS, WIDTH, seed=50 + i)} for i in range(6)]
    made = model([*SCORES, *nodes, *MIXED], given[0], ["y"], {**CONSTANTS, **constants})
    network = compile(read(tmp_path, made), "n8", calibration=given)
    assert network.quantization is not None and (network.quantization.outputs[0].sqnr_db or 0) >= 30
    assert _decibels(made, network, given[:2]) >= 30
    assert {each.op for each in network.host if not each.edge} <= {"Where"}
    assert "softmax" in {op for info in network.infos for op in info.ops}


@pytest.mark.parametrize("low", [-1e4, LEAST])
def test_variable_masks(tmp_path, low):
    """A variable mask as in BERT, (1 - mask) times a large value that is added to the scores, does not widen the
    range.
    """
    nodes = [
        node("Cast", "mask", "f", to=onnx.TensorProto.FLOAT),
        node("Sub", "one f", "g"),
        node("Mul", "g low", "h"),
        node("Add", "s h", "m"),
    ]
    constants = CONSTANTS | {"one": np.array(1, np.float32), "low": np.array(low, np.float32)}
    given = [
        {
            "x": numbers(1, ROWS, WIDTH, seed=50 + i),
            "mask": (np.arange(ROWS) < 3 + i % 4).astype(np.int64)[None, None],
        }
        for i in range(6)
    ]
    made = model([*SCORES, *nodes, *MIXED], given[0], ["y"], constants)
    network = compile(read(tmp_path, made), "n8", calibration=given)
    assert _decibels(made, network, given[:3]) >= 30
    assert {"softmax", "mul", "add"} <= {op for info in network.infos for op in info.ops}


def test_fully_masked_rows_do_not_widen_the_range(tmp_path):
    hidden = HIDDEN.copy()
    hidden[-1] = True
    nodes, constants = [node("Add", "s mask", "m")], {"mask": np.where(hidden, -1e4, 0).astype(np.float32)}
    given = [{"x": numbers(1, ROWS, WIDTH, seed=50 + i)} for i in range(6)]
    made = model([*SCORES, *nodes, *MIXED], given[0], ["y"], {**CONSTANTS, **constants})
    network = compile(read(tmp_path, made), "n8", calibration=given)
    found, wanted = network(**given[0])["y"][:, :-1], reference(made, given[0])["y"][:, :-1]
    assert 10 * np.log10(np.square(wanted).sum() / np.square(found - wanted).sum()) >= 30


def test_scores_with_other_readers_keep_their_range(tmp_path):
    """Masked scores keep their full range if they are an output or if an operator other than softmax reads them."""
    mask = {"mask": np.where(HIDDEN, -1e4, 0).astype(np.float32)}
    for other, more in ("m", []), ("z", [node("Relu", "m", "z")]), ("z", [node("Neg", "m", "z")]):
        given = {"x": numbers(1, ROWS, WIDTH)}
        made = model(
            [*SCORES, node("Add", "s mask", "m"), *MIXED, *more], given, ["y", other], {**CONSTANTS, **mask}
        )
        network = compile(read(tmp_path, made), "n8", calibration=[given])
        found, wanted = network(**given), reference(made, given)
        assert np.abs(found[other] - wanted[other]).max() < 1e4 / 100


def test_noisy_outputs_cause_a_warning(tmp_path):
    path = tmp_path / "noisy.onnx"
    weights = numbers(16, 16, scale=0.25)
    weights[0, 0] = 300
    given = [{"x": numbers(1, 16, seed=i)} for i in range(4)]
    given[0]["x"][0, 0] = 100
    nodes = [node("MatMul", "x w", "h"), node("Abs", "h", "a"), node("Mul", "a row", "y")]
    row = np.ones(16, np.float32)
    row[0] = 0
    path.write_bytes(model(nodes, given[0], ["y"], {"w": weights, "row": row}).SerializeToString())
    _, report = quantize(read_onnx(path), given)
    db = report.outputs[0].sqnr_db
    assert db is not None and db < 20
    (line,) = quality_warnings(report.document())
    assert "output y has a signal-to-noise ratio below 20 dB" in line
    _, made_up = quantize(read_onnx(path), given, random=True)
    assert quality_warnings(made_up.document()) == []


def test_an_infinite_mask_may_be_an_input(tmp_path):
    mask = np.where(HIDDEN, -np.inf, 0).astype(np.float32)
    given = [{"x": numbers(1, ROWS, WIDTH, seed=50 + i), "mask": mask} for i in range(6)]
    made = model([*SCORES, node("Add", "s mask", "m"), *MIXED], given[0], ["y"], CONSTANTS)
    network = compile(read(tmp_path, made), "n8", calibration=given)
    assert _decibels(made, network, given[:2]) >= 30


def test_limit_beyond_the_integer_range_has_no_effect(tmp_path):
    """A limit beyond the integer range has no effect and causes no overflow warning."""
    given, constants = {"x": numbers(3, 8)}, {"w": numbers(8, 5), "low": np.array(-3.4e38, np.float32)}
    made = model([node("MatMul", "x w", "s"), node("Max", "s low", "y")], given, ["y"], constants)
    assert _decibels(made, compile(read(tmp_path, made), "n8", calibration=[given]), [given]) >= 35
