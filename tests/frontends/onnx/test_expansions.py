"""Operators that are expanded into other operators, by conversions or by ONNX's function bodies, equal onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from compiler.frontends.onnx import read_onnx
from compiler.onnx_backend import prepare
from hw.errors import InputError
from tests.support.onnx_models import check, evaluated, model, node, ops, reference, small

MS = {"domain": "com.microsoft"}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Return seeded, normally distributed float32 values around zero."""
    return np.random.default_rng(seed + 7 * sum(shape)).normal(size=shape).astype(np.float32)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    """Return seeded float32 values between 1 and 3."""
    return np.random.default_rng(seed).uniform(1, 3, shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    """Return an int64 constant, such as axes."""
    return np.array(values, np.int64)


def packed(rows: int, columns: int, bits: int, block: int) -> list[np.ndarray]:
    """Return random weights of a few bits, scales and zero points for MatMulNBits."""
    random, blocks = np.random.default_rng(columns), -(-columns // block)
    weights = random.integers(0, 256, (rows, blocks, block * bits // 8)).astype(np.uint8)
    zeros = random.integers(0, 256, rows * -(-blocks * bits // 8)).astype(np.uint8)
    return [weights, random.uniform(0.01, 0.1, rows * blocks).astype(np.float32), zeros]


#: Operator, attributes, run-time inputs, constants.
CASES: dict[str, tuple[str, dict[str, Any], list[np.ndarray], list[np.ndarray]]] = {
    "divide": ("Div", {}, [normal(2, 3, 4), positive(3, 4)], []),
    "divide by rows": ("Div", {}, [normal(2, 3, 4), positive(2, 3, 1)], []),
    "add outer": ("Add", {}, [normal(3, 1), normal(1, 4)], []),
    "l1": ("ReduceL1", {}, [normal(2, 3, 4)], [ints(1)]),
    "l2": ("ReduceL2", {"keepdims": 0}, [normal(2, 3, 4)], [ints(0, 2)]),
    "log of sum": ("ReduceLogSum", {}, [positive(2, 3, 4)], [ints(-1)]),
    "log of sum of exponentials": ("ReduceLogSumExp", {"keepdims": 0}, [normal(2, 3, 4)], [ints(1)]),
    "sum of squares": ("ReduceSumSquare", {}, [normal(2, 3, 4)], []),
    "product": ("ReduceProd", {"keepdims": 0}, [positive(2, 3, 4)], [ints(1)]),
    "triangle": ("Trilu", {"upper": 0}, [normal(2, 4, 5)], [np.array(1)]),
    "embedding": ("Gather", {}, [normal(9, 4)], [ints(2, 0, 2)]),
    "elements": ("GatherElements", {"axis": 1}, [normal(3, 4)], [ints(0, -1, 2, 2).reshape(2, 2)]),
    "slices": ("GatherND", {"batch_dims": 1}, [normal(2, 3, 4, 5)], [ints(2, 0, 1, 3).reshape(2, 2)]),
    "matrix product": ("Einsum", {"equation": "bij,bjk->bik"}, [normal(2, 3, 4), normal(2, 4, 5)], []),
    "outer": ("Einsum", {"equation": "i,j"}, [normal(3), normal(4)], []),
    "Kronecker": ("Einsum", {"equation": "ij,kl->ikjl"}, [normal(2, 3), normal(3, 2)], []),
    "heads": ("Einsum", {"equation": "bqhd,bkhd->bhqk"}, [normal(2, 3, 4, 5), normal(2, 6, 4, 5)], []),
    "ellipsis": ("Einsum", {"equation": "...ij,jk->...k"}, [normal(2, 3, 4), normal(4, 5)], []),
    "diagonal": ("Einsum", {"equation": "bii->bi"}, [normal(2, 3, 3)], []),
    "trace": ("Einsum", {"equation": "ii,i->"}, [normal(3, 3), normal(3)], []),
    "three": ("Einsum", {"equation": "ab,bc,cd->da"}, [normal(2, 3), normal(3, 4), normal(4, 5)], []),
    "kernel": (
        "Conv",
        {"pads": [1, 0, 2, 1], "strides": [2, 1]},
        [normal(2, 4, 7, 6), normal(3, 4, 3, 2)],
        [],
    ),
    "kernel, groups": (
        "Conv",
        {"group": 2, "dilations": [1, 2]},
        [normal(2, 4, 7, 6), normal(6, 2, 3, 2), normal(6)],
        [],
    ),
    "kernel, one dimension": ("Conv", {"auto_pad": "SAME_UPPER"}, [normal(1, 4, 9), normal(3, 4, 4)], []),
    "volume": (
        "Conv",
        {"strides": [2, 1, 1], "pads": [1, 0, 1, 0, 1, 1]},
        [normal(2, 3, 5, 4, 6)],
        [normal(4, 3, 2, 3, 2)],
    ),
    "transposed volume": (
        "ConvTranspose",
        {"strides": [2, 1, 1], "pads": [1, 0, 0, 0, 1, 0], "output_padding": [1, 0, 0]},
        [normal(1, 2, 3, 4, 3)],
        [normal(2, 3, 3, 2, 2), normal(3)],
    ),
    "scaled": ("LayerNormalization", {}, [normal(2, 3, 8), normal(8), normal(8, seed=1)], []),
    "4 bits": (
        "MatMulNBits",
        {**MS, "K": 40, "N": 6, "bits": 4, "block_size": 16},
        [normal(2, 3, 40)],
        packed(6, 40, 4, 16),
    ),
    "4 bits, symmetric": (
        "MatMulNBits",
        {**MS, "K": 64, "N": 5, "bits": 4, "block_size": 32},
        [normal(2, 64)],
        packed(5, 64, 4, 32)[:2],
    ),
    "8 bits": (
        "MatMulNBits",
        {**MS, "K": 32, "N": 6, "bits": 8, "block_size": 16},
        [normal(3, 32)],
        packed(6, 32, 8, 16),
    ),
    "long windows": ("AveragePool", {"kernel_shape": [300], "strides": [100]}, [normal(1, 3, 1200)], []),
    "large padded windows": (
        "AveragePool",
        {"kernel_shape": [17, 18], "strides": [16, 5], "pads": [3, 0, 1, 2], "count_include_pad": 1},
        [normal(1, 2, 33, 40)],
        [],
    ),
    "long sums": ("CumSum", {}, [normal(2, 2500)], [np.array(1)]),
    "long sums, reversed": ("CumSum", {"reverse": 1, "exclusive": 1}, [normal(2100, 3)], [np.array(0)]),
    "long interpolation": (
        "Resize",
        {"mode": "linear"},
        [normal(1, 1, 2, 2500)],
        [np.zeros(0, np.float32), np.array([1, 1, 1, 2], np.float32)],
    ),
    "long outer sum": ("Add", {}, [normal(1, 66000), normal(2, 1)], []),
    "affine grid": ("AffineGrid", {}, [normal(2, 2, 3)], [ints(2, 1, 3, 4)]),
}


def built(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return the model of a case and its inputs."""
    op, attributes, given, constants = CASES[name]
    inputs = {f"x{i}": value for i, value in enumerate(given)}
    fixed = {f"c{i}": value for i, value in enumerate(constants)}
    call = node(op, " ".join([*inputs, *fixed]), "y", **attributes)
    return model([call], inputs, ["y"], fixed, opset=20), inputs


@pytest.mark.parametrize("name", CASES)
def test_expansion_equals_onnxruntime(name: str, tmp_path: Path) -> None:
    made, inputs = built(name)
    assert "onnx" not in ops(check(tmp_path, made, inputs, tolerance=2e-5))


@pytest.mark.parametrize("name", CASES)
def test_expansion_runs_on_the_accelerator(name: str) -> None:
    """Quantized results are within 5% of the range, and the host only converts inputs and outputs."""
    made, inputs = built(name)
    with prepare(made, "MLA:n8", calibration=[inputs]) as ready:
        assert not [each for each in ready.network.host if not each.edge]
        (found,) = ready.run(inputs)
    wanted = reference(made, inputs)["y"]
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()


@pytest.mark.parametrize("constant", [None, "condition", "value", "infinite"])
def test_choice_between_values(constant: str | None, tmp_path: Path) -> None:
    """A choice is a sum of products; infinite constants must be exact, so that a softmax ignores them."""
    random = np.random.default_rng(4)
    values = {"c": random.integers(0, 2, (3, 4)).astype(bool) | (np.arange(4) == 1), "a": normal(3, 4)}
    values["b"] = np.array(-np.inf, np.float32) if constant == "infinite" else normal(3, 4, seed=1)
    fixed = {"condition": "c", "value": "b", "infinite": "b"}.get(constant or "", "")
    held = {fixed: values.pop(fixed)} if fixed else {}
    nodes = [node("Where", "c a b", "z"), node("Softmax", "z", "y")]
    check(tmp_path, model(nodes, values, ["y"], held), values)


def test_choice_that_leaves_out_infinite_values(tmp_path: Path) -> None:
    nodes = [node("Greater", "x zero", "c"), node("Log", "x", "l"), node("Where", "c l zero", "y")]
    x = {"x": normal(3, 4)}
    made = model(nodes, x, ["y"], {"zero": np.array(0, np.float32)})
    check(tmp_path, made, x)
    with prepare(made, "MLA:n8", calibration=[x]) as ready:
        (found,) = ready.run(x)
    np.testing.assert_allclose(found, reference(made, x)["y"], atol=0.1)


def test_embedding_of_tokens_positions_and_segments(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    inputs = {"ids": random.integers(0, 9, (2, 5)).astype(np.int32), "kinds": np.zeros((2, 5), np.int32)}
    held = {"w": normal(9, 8), "p": normal(6, 8), "s": normal(2, 8), "g": normal(8), "b": normal(8, seed=1)}
    call = node("EmbedLayerNormalization", "ids kinds w p s g b", "y m", **MS)
    check(tmp_path, model([call], inputs, ["y"], held), inputs)


def test_scaled_sums_of_rows_with_their_sum(tmp_path: Path) -> None:
    """The fourth output of SkipLayerNormalization is the sum that it normalizes."""
    inputs = {"x": normal(2, 3, 8), "s": normal(2, 3, 8, seed=1)}
    held = {"g": normal(8), "b": normal(8, seed=1), "d": normal(8, seed=2)}
    call = node("SkipLayerNormalization", "x s g b d", "y - - t", **MS)
    check(tmp_path, model([call], inputs, ["y", "t"], held), inputs)


def test_operator_with_a_wrong_function_body_runs_on_the_host(tmp_path: Path) -> None:
    """ONNX's body of AffineGrid squeezes a batch of one sample."""
    theta = {"x": normal(1, 2, 3)}
    made = model([node("AffineGrid", "x n", "y")], theta, ["y"], {"n": ints(1, 1, 3, 4)}, opset=20)
    assert ops(check(tmp_path, made, theta)) == {"onnx": 1}


def test_soft_cap_that_is_written_out_becomes_one_node(tmp_path: Path) -> None:
    nodes = [node("Div", "x c", "d"), node("Tanh", "d", "t"), node("Mul", "t c", "y")]
    inputs = {"x": 20 * normal(3, 4)}
    assert ops(check(tmp_path, model(nodes, inputs, ["y"], {"c": np.array(30, np.float32)}), inputs)) == {
        "softcap": 1
    }


def test_doubles_are_computed_as_float32(tmp_path: Path) -> None:
    x = {"x": np.random.default_rng(0).normal(size=(3, 4))}
    made = model([node("MatMul", "x w", "m"), node("Relu", "m", "y")], x, ["y"], {"w": np.ones((4, 2))})
    check(tmp_path, made, x, tolerance=1e-6)
    with pytest.raises(InputError, match="beyond the range of float32"):
        evaluated(read_onnx(made), {"x": x["x"] * 1e300})


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_unsigned_integers_wrap_as_in_onnxruntime(dtype: str, tmp_path: Path) -> None:
    largest = np.iinfo(dtype).max
    inputs = {"a": np.array([1, largest, largest // 2], dtype), "b": np.array([1, 3, largest], dtype)}
    if dtype == "uint16":  # for which onnxruntime has no arithmetic
        made = model([node("Cast", "a", "y", to=onnx.TensorProto.INT32)], {"a": inputs["a"]}, ["y"])
        check(tmp_path, made, {"a": inputs["a"]})
        return
    check(tmp_path, model([node("Add", "a b", "s"), node("Div", "s b", "y")], inputs, ["y"]), inputs)


def test_sequences_are_resolved_at_compile_time(tmp_path: Path) -> None:
    inputs = {"a": normal(2, 3), "b": normal(2, 3, seed=1)}
    nodes = [
        node("SequenceEmpty", "", "s0"),
        node("SequenceInsert", "s0 a", "s1"),
        node("SequenceInsert", "s1 b zero", "s2"),
        node("ConcatFromSequence", "s2", "joined", axis=1),
        node("SplitToSequence", "joined two", "s3", axis=1),
        node("SequenceErase", "s3 zero", "s4"),
        node("SequenceLength", "s4", "n"),
        node("SequenceAt", "s4 last", "y"),
    ]
    held = {"zero": np.array(0), "two": np.array(2), "last": np.array(-1)}
    check(tmp_path, model(nodes, inputs, ["y", "n"], held), inputs)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (small(node("SequenceAt", "x p", "y"), p=np.array(0)), "input 1 must be a sequence"),
        (
            small(node("SequenceConstruct", "x", "s"), node("SequenceAt", "s p", "y"), p=np.array(1)),
            "position 1 does",
        ),
        (
            small(node("SequenceConstruct", "x", "s"), node("Relu", "s", "y")),
            "it must take tensors, not a sequence",
        ),
        (small(node("Einsum", "x x", "y", equation="ij,ik->l")), "an unknown or a repeated index"),
        (small(node("Einsum", "x x", "y", equation=b"\xff")), "must name the indices of 2 operands"),
        (
            small(node("Attention", "x x x", "y")),
            "queries, keys and values must all have 3 or all 4 dimensions",
        ),
        (
            small(
                node("MatMulNBits", "x w s", "y", K=1 << 40, N=6, bits=4, block_size=16, **MS),
                w=np.zeros((6, 1, 8), np.uint8),
                s=np.ones(6, np.float32),
            ),
            "do not fit",
        ),
    ],
)
def test_invalid_nodes_are_rejected(made: onnx.ModelProto, message: str) -> None:
    made.opset_import[0].version = 23
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(InputError) as caught:
        read_onnx(made)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("block", [0, 4])
@pytest.mark.parametrize("kind", ["INT4", "UINT4"])
@pytest.mark.parametrize("place", ["initializer", "node"])
def test_weights_of_four_bits_are_widened_exactly(kind: str, block: int, place: str, tmp_path: Path) -> None:
    """DequantizeLinear of 4-bit constants, per channel or by blocks, followed by a product."""
    random, low = np.random.default_rng(7), -8 if kind == "INT4" else 0
    number = getattr(onnx.TensorProto, kind)
    count = (2, 6) if block else (6,)
    weights = helper.make_tensor("w", number, (8, 6), random.integers(low, low + 16, 48).tolist())
    zeros = helper.make_tensor(
        "z", number, count, random.integers(low, low + 16, int(np.prod(count))).tolist()
    )
    scales = numpy_helper.from_array(random.uniform(0.1, 0.2, count).astype(np.float32), "s")
    attributes = {"axis": 0, "block_size": block} if block else {"axis": 1}
    nodes = [node("DequantizeLinear", "w s z", "d", **attributes), node("MatMul", "x d", "y")]
    held = [weights, scales, zeros]
    if place == "node":
        nodes = [helper.make_node("Constant", [], ["w"], value=weights), *nodes]
        held = held[1:]
    x = {"x": normal(3, 8)}
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (3, 8))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (3, 6))],
        held,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert ops(check(tmp_path, made, x)) == {"block_dense" if block else "dense": 1}
