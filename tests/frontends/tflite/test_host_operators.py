"""TFLite operators without an accelerator form run on the host for a stated reason; constant operators are folded."""

import zlib
from pathlib import Path

import numpy as np
import pytest

from compiler.api import compile
from compiler.reference import evaluate
from hw.errors import InputError
from tests.support.one_operator import options
from tests.support.tflite_models import Draft, check, litert, read

ROWS = (3, 5, 8)


def arg_extreme(kind: str):
    def case(d: Draft) -> None:
        settings = options("ArgMax" if kind == "ARG_MAX" else "ArgMin", outputType=2)
        d.op(kind, [d.input(ROWS), d.held(-1)], ROWS[:2], settings, dtype="int32")

    return case


def division(d: Draft) -> None:
    d.positive = True
    d.op("DIV", [d.input(ROWS), d.input(ROWS)], ROWS, options("Div", fusedActivationFunction=0))


def power(d: Draft) -> None:
    d.positive = True
    d.op("POW", [d.input(ROWS), d.input(ROWS)], ROWS)


def select(d: Draft) -> None:
    a, b = d.input(ROWS), d.input(ROWS)
    chosen = d.op("LESS", [a, b], ROWS, options("Less"), dtype="bool")
    d.then(d.op("SELECT_V2", [chosen, a, b], ROWS))


def gather_nd(d: Draft) -> None:
    indices = d.rng.integers(0, 3, (4, 2))
    d.op("GATHER_ND", [d.input(ROWS), d.held(indices)], (4, 8))


def cast(d: Draft) -> None:
    d.op("CAST", [d.input(ROWS)], ROWS, dtype="int32")


def unary(kind: str, scale: float | None = None):
    def case(d: Draft) -> None:
        d.op(kind, [d.input(ROWS)], ROWS, scale=scale)

    return case


CASES = {
    "div": (division, "DIV"),
    "pow": (power, "POW"),
    "select": (select, "SELECT_V2"),
    "gather_nd": (gather_nd, "GATHER_ND"),
    "cast": (cast, "CAST"),
    "log_softmax": (unary("LOG_SOFTMAX"), "LOG_SOFTMAX"),
    "l2": (unary("L2_NORMALIZATION"), "L2_NORMALIZATION"),
}


@pytest.mark.parametrize("name", CASES)
def test_host_operators_have_a_reason(name: str, tmp_path: Path) -> None:
    draft = Draft(np.random.default_rng(zlib.crc32(name.encode())), "float32")
    case, kind = CASES[name]
    case(draft)
    inputs = [draft.values(each) for each in draft.inputs]
    network = compile(read(draft, tmp_path), "n8")
    assert f"the accelerator has no {kind}: " in " ".join(node.reason for node in network.host)
    found = network(*inputs)
    for output, wanted in zip(draft.outputs, litert(draft.file(), inputs, "xnnpack"), strict=True):
        np.testing.assert_allclose(found[output], wanted, rtol=1e-5, atol=1e-5)


def test_quantized_operands(tmp_path: Path) -> None:
    draft = Draft(np.random.default_rng(3), "int8")
    CASES["cast"][0](draft)
    network = check(draft, tmp_path, "reference")
    assert any("CAST" in node.reason for node in network.host)


@pytest.mark.parametrize("kind", ["ARG_MAX", "ARG_MIN"])
def test_indices_of_float_extremes(kind: str, tmp_path: Path) -> None:
    draft = Draft(np.random.default_rng(5), "float32")
    arg_extreme(kind)(draft)
    inputs = [draft.values(each) for each in draft.inputs]
    network = compile(read(draft, tmp_path), "n8")
    assert [node.reason for node in network.host] == ["the host orders float32 values"]
    (found,) = network(*inputs).values()
    np.testing.assert_array_equal(found, litert(draft.file(), inputs, "xnnpack")[0])


def test_shape_arithmetic_is_folded(tmp_path: Path) -> None:
    """Shape arithmetic whose result is read by a reshape or pad is folded."""
    draft = Draft(np.random.default_rng(4), "int8")
    x = draft.input((2, 3, 4))
    shape = draft.op("SHAPE", [x], (3,), options("Shape", outType=2), dtype="int32")
    settings = {"beginMask": 0, "endMask": 0, "ellipsisMask": 0, "newAxisMask": 0, "offset": False}
    cut = [draft.held([number]) for number in (0, 1, 1)]
    first = draft.op(
        "STRIDED_SLICE",
        [shape, *cut],
        (),
        options("StridedSlice", shrinkAxisMask=1, **settings),
        dtype="int32",
    )
    packed = draft.op(
        "PACK", [first, draft.held(12)], (2,), options("Pack", axis=0, valuesCount=2), dtype="int32"
    )
    y = draft.op("RESHAPE", [x, packed], (2, 12), like=x)
    pads = draft.op("PACK", [packed, packed], (2, 2), options("Pack", axis=0, valuesCount=2), dtype="int32")
    draft.then(draft.op("PAD", [y, pads], (16, 26), like=x))
    assert [node.op for node in read(draft, tmp_path)] == ["reshape", "pad"]
    assert not check(draft, tmp_path, "reference").host


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "float32"])
def test_floor_division(dtype: str, tmp_path: Path) -> None:
    """Division rounds down for either sign; quantized operands are divided as stored integers."""
    rng = np.random.default_rng(zlib.crc32(dtype.encode()))
    for shape in ((3, 5, 8), (8,), ()):
        draft = Draft(rng, dtype)
        x = draft.input(ROWS)
        divisor = draft.constant(shape, like=x)
        numbers = draft.tensors[divisor]
        draft.tensors[divisor] = np.where(numbers == 0, 3, numbers).astype(dtype)
        draft.op("FLOOR_DIV", [x, divisor], ROWS, options("FloorDiv"), like=x)
        inputs = [draft.values(x)]
        (want,) = litert(draft.file(), inputs, "reference")
        graph = read(draft, tmp_path)
        np.testing.assert_array_equal(evaluate(graph, {x: inputs[0]})[graph.outputs[0]], want)


def test_division_by_zero_is_named(tmp_path: Path) -> None:
    draft = Draft(np.random.default_rng(0), "int32")
    draft.op("FLOOR_DIV", [draft.input((4,)), draft.input((4,))], (4,), options("FloorDiv"))
    (tmp_path / "model.tflite").write_bytes(draft.file())
    network = compile(tmp_path / "model.tflite", "n8")
    assert [node.reason for node in network.host] == ["floor_div is not supported on the accelerator"]
    with pytest.raises(InputError, match="divides by zero"):
        network(np.ones(4, np.int32), np.zeros(4, np.int32))
