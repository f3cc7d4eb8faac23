"""Rewritten models in onnxruntime compute integer products exactly like numpy's int64, at the limits of the types."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.exact_products import exact_products
from tests.support.onnx_models import node

Arrays = dict[str, np.ndarray]
#: (rows, terms of a sum, columns): a single row uses a separate kernel, and odd sizes leave remainders.
SIZES = [(1, 64, 16), (5, 33, 7), (16, 130, 32)]
INTEGER = ["MatMulInteger", "ConvInteger"]
QLINEAR = ["QLinearMatMul", "QLinearConv", "QGemm"]
TYPES = [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")]
#: Scale of quantized results: a power of two, so that dequantized values are exact before rounding.
STEP = 4096.0


def extremes(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """Return integers at a type's limits, which saturate most easily."""
    limits = np.iinfo(dtype)
    near = [limits.min, limits.min + 1, limits.max - 1, limits.max, limits.max]
    return rng.choice(near, shape).astype(dtype)


def zero_point(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """Return a random zero point."""
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def wide(values: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """Return values minus their zero point, as int64."""
    return values.astype(np.int64) - zero.astype(np.int64)


def built(
    nodes: list[onnx.NodeProto],
    inputs: Arrays,
    held: Arrays,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    """Return a model that computes y."""
    graph = helper.make_graph(
        nodes,
        "products",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in inputs.items()
        ],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    opsets = [helper.make_opsetid(*each) for each in (("", 17), ("com.microsoft", 1), ("own", 1))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions or [])


def run(made: onnx.ModelProto, inputs: Arrays) -> np.ndarray:
    """Run the rewritten model and assert that the original model is unchanged."""
    before = made.SerializeToString()
    exact = exact_products(made)
    assert made.SerializeToString() == before
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(exact.SerializeToString(), options, ["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(inputs))[0])


def operands(rng: np.random.Generator, op: str, size: tuple[int, int, int], types: tuple[str, str]) -> Arrays:
    """Return operands a and b with zero points az and bz; for convolutions, a is an image and b has 3x1 filters."""
    rows, sums, columns = size
    conv = op.endswith(("Conv", "ConvInteger"))
    return {
        "a": extremes(rng, types[0], *((1, sums, 4, rows) if conv else (rows, sums))),
        "az": zero_point(rng, types[0]),
        "b": extremes(rng, types[1], *((columns, sums, 3, 1) if conv else (sums, columns))),
        "bz": zero_point(rng, types[1]),
    }


def sums(op: str, given: Arrays) -> np.ndarray:
    """Return the sums of products in int64."""
    a, b = wide(given["a"], given["az"]), wide(given["b"], given["bz"])
    if "Conv" not in op:
        return a @ b
    windows = np.lib.stride_tricks.sliding_window_view(a, 3, axis=2)
    return np.einsum("ncyxk,ock->noyx", windows, b[:, :, :, 0])


def split(given: Arrays, constant: bool) -> tuple[Arrays, Arrays]:
    """Split operands into inputs and constants; b is a constant if `constant` is True."""
    inputs = {name: array for name, array in given.items() if name == "a" or (name == "b" and not constant)}
    return inputs, {name: array for name, array in given.items() if name not in inputs}


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("types", [*TYPES, ("int8", "uint8")])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", INTEGER)
def test_sums(
    rng: np.random.Generator, op: str, size: tuple[int, int, int], types: tuple[str, str], constant: bool
) -> None:
    given = operands(rng, op, size, types)
    inputs, held = split(given, constant)
    found = run(built([node(op, "a b az bz", "y")], inputs, held), inputs)
    np.testing.assert_array_equal(found, sums(op, given))


@pytest.mark.parametrize("types", [*TYPES, ("int8", "uint8")])
@pytest.mark.parametrize("op", INTEGER)
def test_sums_without_zero_points(rng: np.random.Generator, op: str, types: tuple[str, str]) -> None:
    given = operands(rng, op, SIZES[1], types)
    zeros = {name: np.zeros_like(given[name]) for name in ("az", "bz")}
    inputs, held = split({name: given[name] for name in "ab"}, True)
    found = run(built([node(op, "a b", "y")], inputs, held), inputs)
    np.testing.assert_array_equal(found, sums(op, {**given, **zeros}))


def test_padding_uses_shifted_zero_point(rng: np.random.Generator) -> None:
    given = operands(rng, "ConvInteger", SIZES[1], ("int8", "uint8"))
    inputs, held = split(given, True)
    found = run(built([node("ConvInteger", "a b az bz", "y", pads=[1, 0, 1, 0])], inputs, held), inputs)
    around = ((0, 0), (0, 0), (1, 1), (0, 0))
    padded = np.pad(given["a"], around, constant_values=given["az"].item())
    np.testing.assert_array_equal(found, sums("ConvInteger", {**given, "a": padded}))


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", QLINEAR)
def test_quantized_sums(
    rng: np.random.Generator, op: str, size: tuple[int, int, int], types: tuple[str, str], constant: bool
) -> None:
    given = operands(rng, op, size, types)
    inputs, held = split(given, constant)
    held = held | {
        "s": np.array(1, np.float32),
        "ys": np.array(STEP, np.float32),
        "yz": np.array(9, types[0]),
    }
    names = "a s az b s bz - ys yz" if op == "QGemm" else "a s az b s bz ys yz"
    domain = "com.microsoft" if op == "QGemm" else ""
    found = run(built([node(op, names, "y", domain=domain)], inputs, held), inputs)
    limits = np.iinfo(types[0])
    wanted = np.clip(np.rint(sums(op, given) / STEP) + 9, limits.min, limits.max)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("op", ["MatMulIntegerToFloat", "DynamicQuantizeMatMul"])
def test_float_results(rng: np.random.Generator, op: str, dtype: str) -> None:
    given = operands(rng, op, SIZES[1], ("uint8", dtype))
    one = np.array(1, np.float32)
    if op == "MatMulIntegerToFloat":
        inputs, names = {"a": given["a"]}, "a b s s az bz"
    else:  # the range is 255 and includes 0, so the operator quantizes with step 1
        real = wide(given["a"], given["az"]).astype(np.float32)
        real[0, :2] = 0.0 - given["az"], 255.0 - given["az"]
        inputs, names = {"a": real}, "a b s bz"
        given = {**given, "a": (real + given["az"]).astype(np.uint8)}
    held = {"s": one, **{name: given[name] for name in ("az", "b", "bz")}}
    made = built([node(op, names, "y", domain="com.microsoft")], inputs, held)
    np.testing.assert_array_equal(run(made, inputs), sums(op, given).astype(np.float32))


def test_zero_points_per_column(rng: np.random.Generator) -> None:
    given = operands(rng, "MatMulInteger", SIZES[1], ("uint8", "int8"))
    given = {**given, "bz": zero_point(rng, "int8", SIZES[1][2])}
    inputs, held = split(given, True)
    found = run(built([node("MatMulInteger", "a b az bz", "y")], inputs, held), inputs)
    np.testing.assert_array_equal(found, sums("MatMulInteger", given))


@pytest.mark.parametrize("reader", ["twice", "as it is", "Constant"])
def test_constants_with_other_readers(rng: np.random.Generator, reader: str) -> None:
    given = operands(rng, "MatMulInteger", SIZES[1], ("uint8", "int8"))
    inputs, held = split(given, True)
    nodes, other = [node("MatMulInteger", "a b az bz", "p")], sums("MatMulInteger", given)
    if reader == "twice":
        nodes.append(node("MatMulInteger", "a b az bz", "o"))
    elif reader == "as it is":
        nodes.append(node("Cast", "b", "c", to=TensorProto.INT32))
        nodes.append(node("ReduceSum", "c", "o", keepdims=0))
        other = given["b"].astype(int).sum()
    else:
        stored = numpy_helper.from_array(held["b"])
        held = {name: array for name, array in held.items() if name != "b"}
        nodes = [node("Constant", "", "b", value=stored), *nodes, node("Identity", "p", "o")]
    made = built([*nodes, node("Add", "p o", "y")], inputs, held)
    np.testing.assert_array_equal(run(made, inputs), sums("MatMulInteger", given) + other)


@pytest.mark.parametrize("outside", [True, False])
def test_branches(rng: np.random.Generator, outside: bool) -> None:
    """Products in branches are exact for operands from the enclosing graph and from the branch itself."""
    given = operands(rng, "MatMulInteger", SIZES[1], ("uint8", "int8"))
    inputs, held = split(given, False)
    stored = [numpy_helper.from_array(array, name) for name, array in held.items()]
    branches = [
        helper.make_graph(
            [node("Identity", "b", f"{name}b"), node("MatMulInteger", f"a {name}b az bz", f"{name}y")],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}y", TensorProto.INT32, None)],
            [] if outside else stored,
        )
        for name in ("then", "else")
    ]
    choice = node("If", "which", "y", then_branch=branches[0], else_branch=branches[1])
    held = {"which": np.array(True)} | (dict(held) if outside else {})
    np.testing.assert_array_equal(run(built([choice], inputs, held), inputs), sums("MatMulInteger", given))


def test_loops(rng: np.random.Generator) -> None:
    """Products in loops are exact for a loop-carried operand whose type the body does not declare."""
    given = operands(rng, "MatMulInteger", SIZES[1], ("uint8", "int8"))
    inputs, held = split(given, False)
    body = helper.make_graph(
        [
            node("MatMulInteger", "a carried az bz", "row"),
            node("Identity", "carried", "same"),
            node("Identity", "on", "still"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            onnx.ValueInfoProto(name="carried"),
        ],
        [onnx.ValueInfoProto(name=name) for name in ("still", "same", "row")],
    )
    nodes = [node("Loop", "count - b", "last y", body=body)]
    found = run(built(nodes, inputs, {**held, "count": np.array(2)}), inputs)
    np.testing.assert_array_equal(found, [sums("MatMulInteger", given)] * 2)


def test_functions(rng: np.random.Generator) -> None:
    given = operands(rng, "MatMulInteger", SIZES[1], ("uint8", "int8"))
    inputs, held = split(given, True)
    product = [node("MatMulInteger", "p q pz qz", "r")]
    function = helper.make_function(
        "own", "Product", ["p", "q", "pz", "qz"], ["r"], product, [helper.make_opsetid("", 17)]
    )
    made = built([node("Product", "a b az bz", "y", domain="own")], inputs, held, [function])
    np.testing.assert_array_equal(run(made, inputs), sums("MatMulInteger", given))


def test_unknown_type_raises(rng: np.random.Generator) -> None:
    given = operands(rng, "MatMulInteger", SIZES[1], ("uint8", "int8"))
    nodes = [node("Unknown", "a", "u", domain="own"), node("MatMulInteger", "u b", "y")]
    made = built(nodes, {"a": given["a"]}, {"b": given["b"]})
    with pytest.raises(
        ValueError, match="MatMulInteger 'MatMulInteger:y': the type of input 'u' is not known"
    ):
        exact_products(made)


def test_other_products_are_not_rewritten(rng: np.random.Generator) -> None:
    given = operands(rng, "MatMulInteger", SIZES[1], ("int8", "int8"))
    inputs, held = split(given, True)
    made = built([node("MatMulInteger", "a b az bz", "y")], inputs, held)
    assert exact_products(made) == made
