"""Subgraphs that exporters write become single nodes, and layouts change only where an operator requires it."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support.onnx_models import check, model, node, ops, read

ROWS = (2, 3, 8)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Return seeded, normally distributed float32 values around zero."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def constant(value: float) -> np.ndarray:
    """Return a float32 constant with a single element."""
    return np.array(value, np.float32)


NUMBERS = {
    "half": constant(0.5),
    "one": constant(1),
    "two": constant(2),
    "three": constant(3),
    "six": constant(6),
    "zero": constant(0),
    "root": constant(np.sqrt(2)),
    "inverse": constant(np.sqrt(0.5)),
    "eps": constant(1e-3),
    "k": constant(np.sqrt(2 / np.pi)),
    "cube": constant(0.044715),
    "gamma": normal(8, seed=1),
    "wide_gamma": normal(1, 1, 8, seed=1),
    "column": normal(3, 1, seed=4),
    "minus_half": constant(-0.5),
    "seven": constant(7),
    "eight": constant(8),
    "eighth": constant(0.125),
    "twice_k": constant(2 * np.sqrt(2 / np.pi)),
    "last": np.array([-1]),
    "beta": normal(8, seed=2),
}
_MEAN = {"axes": [-1]}

#: Nodes that compute y from x, and the expected nodes.
PATTERNS: dict[str, tuple[list[onnx.NodeProto], dict[str, int]]] = {
    "gelu_torch": (
        [
            node("Div", "x root", "a"),
            node("Erf", "a", "b"),
            node("Add", "b one", "c"),
            node("Mul", "x c", "d"),
            node("Mul", "d half", "y"),
        ],
        {"gelu": 1},
    ),
    "gelu_halved": (
        [
            node("Mul", "inverse x", "a"),
            node("Erf", "a", "b"),
            node("Add", "one b", "c"),
            node("Mul", "x half", "d"),
            node("Mul", "d c", "y"),
        ],
        {"gelu": 1},
    ),
    "gelu_scaled_sum": (
        [
            node("Mul", "x inverse", "a"),
            node("Erf", "a", "b"),
            node("Add", "b one", "c"),
            node("Mul", "c half", "d"),
            node("Mul", "x d", "y"),
        ],
        {"gelu": 1},
    ),
    "gelu_tanh": (
        [
            node("Pow", "x three", "a"),
            node("Mul", "a cube", "b"),
            node("Add", "x b", "c"),
            node("Mul", "c k", "d"),
            node("Tanh", "d", "e"),
            node("Add", "e one", "f"),
            node("Mul", "x half", "g"),
            node("Mul", "g f", "y"),
        ],
        {"gelu": 1},
    ),
    "gelu_tanh_even": (
        [
            node("Mul", "x x", "a"),
            node("Mul", "a cube", "b"),
            node("Add", "b one", "c"),
            node("Mul", "x k", "u"),
            node("Mul", "u c", "d"),
            node("Tanh", "d", "e"),
            node("Add", "e one", "f"),
            node("Mul", "f x", "g"),
            node("Mul", "g half", "y"),
        ],
        {"gelu": 1},
    ),
    "silu": ([node("Sigmoid", "x", "a"), node("Mul", "x a", "y")], {"silu": 1}),
    "hard_swish": (
        [
            node("Add", "x three", "a"),
            node("Clip", "a zero six", "b"),
            node("Mul", "x b", "c"),
            node("Div", "c six", "y"),
        ],
        {"hard_swish": 1},
    ),
    "hard_swish_gate": (
        [node("HardSigmoid", "x", "a", alpha=1 / 6), node("Mul", "a x", "y")],
        {"hard_swish": 1},
    ),
    "hard_swish_not": (
        [node("HardSigmoid", "x", "a", alpha=0.2), node("Mul", "a x", "y")],
        {"mul": 2, "add": 1, "clip": 1},
    ),
    "hard_swish_narrow": (
        [
            node("Add", "x three", "a"),
            node("Clip", "a zero two", "b"),
            node("Mul", "x b", "c"),
            node("Div", "c six", "y"),
        ],
        {"add": 1, "clip": 1, "mul": 2},
    ),
    "layer_norm": (
        [
            node("ReduceMean", "x", "m", **_MEAN),
            node("Sub", "x m", "d"),
            node("Pow", "d two", "s"),
            node("ReduceMean", "s", "v", **_MEAN),
            node("Add", "v eps", "e"),
            node("Sqrt", "e", "r"),
            node("Div", "d r", "n"),
            node("Mul", "n gamma", "g"),
            node("Add", "g beta", "y"),
        ],
        {"layer_norm": 1},
    ),
    "layer_norm_twice": (
        [
            node("ReduceMean", "x", "m", **_MEAN),
            node("Sub", "x m", "d"),
            node("Sub", "x m", "d2"),
            node("Mul", "d2 d2", "s"),
            node("ReduceMean", "s", "v", **_MEAN),
            node("Add", "eps v", "e"),
            node("Sqrt", "e", "r"),
            node("Reciprocal", "r", "i"),
            node("Mul", "d i", "y"),
        ],
        {"layer_norm": 1},
    ),
    "layer_norm_middle": (
        [
            node("ReduceMean", "x", "m", axes=[1]),
            node("Sub", "x m", "d"),
            node("Pow", "d two", "s"),
            node("ReduceMean", "s", "v", axes=[1]),
            node("Add", "v eps", "e"),
            node("Sqrt", "e", "r"),
            node("Div", "d r", "y"),
        ],
        {"transpose": 2, "layer_norm": 1},
    ),
    "rms_norm": (
        [
            node("Pow", "x two", "s"),
            node("ReduceMean", "s", "v", **_MEAN),
            node("Add", "v eps", "e"),
            node("Sqrt", "e", "r"),
            node("Div", "one r", "i"),
            node("Mul", "x i", "n"),
            node("Mul", "gamma n", "y"),
        ],
        {"rms_norm": 1},
    ),
    "layer_norm_power": (
        [
            node("ReduceMean", "x", "m", **_MEAN),
            node("Sub", "x m", "d"),
            node("Mul", "d d", "s"),
            node("ReduceMean", "s", "v", **_MEAN),
            node("Add", "v eps", "e"),
            node("Pow", "e minus_half", "i"),
            node("Mul", "i d", "n"),
            node("Mul", "n wide_gamma", "g"),
            node("Add", "g beta", "y"),
        ],
        {"layer_norm": 1},
    ),
    "layer_norm_sums": (  # with the variance of a sample, whose divisor is smaller by 1
        [
            node("ReduceSum", "x last", "t"),
            node("Div", "t eight", "m"),
            node("Sub", "x m", "d"),
            node("ReduceSumSquare", "d", "s", axes=[-1]),
            node("Div", "s seven", "v"),
            node("Add", "v eps", "e"),
            node("Sqrt", "e", "r"),
            node("Div", "d r", "n"),
            node("Mul", "n gamma", "g"),
            node("Add", "g beta", "y"),
        ],
        {"layer_norm": 1},
    ),
    "layer_norm_squares": (
        [
            node("Mul", "x x", "s"),
            node("ReduceMean", "s", "q", **_MEAN),
            node("ReduceMean", "x", "m", **_MEAN),
            node("Mul", "m m", "p"),
            node("Sub", "q p", "u"),
            node("Max", "u zero", "v"),
            node("Add", "v eps", "e"),
            node("Sqrt", "e", "r"),
            node("Sub", "x m", "d"),
            node("Div", "d r", "y"),
        ],
        {"layer_norm": 1},
    ),
    "layer_norm_tensorflow": (
        [
            node("ReduceMean", "x", "m", **_MEAN),
            node("Sub", "x m", "d"),
            node("Mul", "d d", "s"),
            node("ReduceMean", "s", "v", **_MEAN),
            node("Add", "v eps", "e"),
            node("Sqrt", "e", "r"),
            node("Reciprocal", "r", "i"),
            node("Mul", "i gamma", "g"),
            node("Mul", "x g", "a"),
            node("Mul", "m g", "b"),
            node("Sub", "beta b", "c"),
            node("Add", "a c", "y"),
        ],
        {"layer_norm": 1},
    ),
    "layer_norm_all": (  # over two of three dimensions, scaled along one of them
        [
            node("ReduceMean", "x", "m", axes=[1, 2]),
            node("Sub", "x m", "d"),
            node("Pow", "d two", "s"),
            node("ReduceMean", "s", "v", axes=[1, 2]),
            node("Add", "v eps", "e"),
            node("Sqrt", "e", "r"),
            node("Div", "d r", "n"),
            node("Mul", "n column", "g"),
            node("Add", "g beta", "y"),
        ],
        {"reshape": 2, "layer_norm": 1},
    ),
    "layer_norm_first": (  # over dimensions that are not the last, scaled along the last one
        [
            node("ReduceMean", "x", "m", axes=[0, 1]),
            node("Sub", "x m", "d"),
            node("Pow", "d two", "s"),
            node("ReduceMean", "s", "v", axes=[0, 1]),
            node("Add", "v eps", "e"),
            node("Sqrt", "e", "r"),
            node("Div", "d r", "n"),
            node("Mul", "n gamma", "g"),
            node("Add", "g beta", "y"),
        ],
        {"transpose": 2, "reshape": 2, "layer_norm": 1, "mul": 1, "add": 1},
    ),
    "rms_norm_sums": (
        [
            node("ReduceSumSquare", "x", "s", axes=[-1]),
            node("Mul", "s eighth", "v"),
            node("Add", "v eps", "e"),
            node("Sqrt", "e", "r"),
            node("Div", "x r", "y"),
        ],
        {"rms_norm": 1},
    ),
    "gelu_sigmoid": (
        [
            node("Pow", "x three", "a"),
            node("Mul", "a cube", "b"),
            node("Add", "x b", "c"),
            node("Mul", "c twice_k", "d"),
            node("Sigmoid", "d", "e"),
            node("Mul", "e x", "y"),
        ],
        {"gelu": 1},
    ),
    "mish": ([node("Softplus", "x", "a"), node("Tanh", "a", "b"), node("Mul", "x b", "y")], {"mish": 1}),
    "softmax": (
        [
            node("ReduceMax", "x", "m", **_MEAN),
            node("Sub", "x m", "d"),
            node("Exp", "d", "e"),
            node("ReduceSum", "e last", "s"),
            node("Div", "e s", "y"),
        ],
        {"softmax": 1},
    ),
    "linear": ([node("MatMul", "x square", "m"), node("Add", "beta m", "y")], {"dense": 1}),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_becomes_one_node(tmp_path: Path, name: str) -> None:
    nodes, wanted = PATTERNS[name]
    inputs = {"x": 2 * normal(*ROWS)}
    made = model(nodes, inputs, ["y"], NUMBERS | {"square": normal(8, 8, seed=3)})
    assert ops(check(tmp_path, made, inputs, tolerance=1e-5)) == wanted


def test_variance_of_another_tensor_is_not_a_normalization(tmp_path: Path) -> None:
    nodes = [
        node("ReduceMean", "x", "m", **_MEAN),
        node("Sub", "x m", "d"),
        node("ReduceMean", "z", "n", **_MEAN),
        node("Sub", "z n", "o"),
        node("Mul", "o o", "s"),
        node("ReduceMean", "s", "v", **_MEAN),
        node("Add", "v eps", "e"),
        node("Sqrt", "e", "r"),
        node("Div", "d r", "y"),
    ]
    made = model(nodes, {"x": normal(*ROWS), "z": normal(*ROWS)}, ["y"], NUMBERS)
    found = {each.op for each in read(tmp_path, made)}
    assert "function" in found and not {"layer_norm", "rms_norm"} & found


def test_reductions_of_an_image(tmp_path: Path) -> None:
    """The results of two successive reductions keep the layout of the file."""
    nodes = [
        node("Conv", "x w", "a"),
        node("ReduceMean", "a", "b", axes=[2], keepdims=0),
        node("ReduceMax", "b", "y", axes=[1], keepdims=0),
    ]
    inputs = {"x": normal(2, 3, 5, 6)}
    made = model(nodes, inputs, ["y", "b"], {"w": normal(4, 3, 2, 2)})
    assert ops(check(tmp_path, made, inputs))["transpose"] == 2


def test_intermediate_value_of_a_pattern_remains_if_read(tmp_path: Path) -> None:
    nodes, inputs = [node("Sigmoid", "x", "a"), node("Mul", "x a", "y")], {"x": normal(*ROWS)}
    graph = check(tmp_path, model(nodes, inputs, ["y", "a"]), inputs)
    assert ops(graph) == {"silu": 1, "sigmoid": 1}


def test_images_are_transposed_at_the_ends_only(tmp_path: Path) -> None:
    """Networks of convolutions and other image operators need transposes only at their inputs and outputs."""
    held = {
        f"w{i}": normal(*shape, seed=i) for i, shape in enumerate([(6, 3, 3, 3), (6, 6, 1, 1), (4, 12, 3, 3)])
    }
    held |= {
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "from": np.array([1]),
        "to": np.array([9]),
        "axis": np.array([2]),
        "bias": normal(6, 1, 1),
        "mean_axes": np.array([2, 3]),
    }
    nodes = [
        node("Conv", "x w0", "a", pads=[1, 1, 1, 1]),
        node("Add", "a bias", "b"),
        node("Relu", "b", "c"),
        node("MaxPool", "c", "d", kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1]),
        node("GlobalAveragePool", "d", "e"),
        node("Conv", "e w1", "f"),
        node("Sigmoid", "f", "g"),
        node("Mul", "d g", "h"),
        node("Add", "h c", "i"),
        node("Concat", "i h", "j", axis=1),
        node("Pad", "j pads", "k"),
        node("Slice", "k from to axis", "l"),
        node("Conv", "l w2", "m"),
        node("Softmax", "m", "n", axis=1),
        node("ReduceMean", "n", "y", axes=[2, 3], keepdims=0),
    ]
    inputs = {"x": normal(2, 3, 8, 8)}
    counts = ops(check(tmp_path, model(nodes, inputs, ["y"], held), inputs))
    assert counts["transpose"] == 1  # the result has no spatial dimensions left
    assert (counts["conv2d"], counts["softmax"], "reshape" in counts) == (3, 1, False)


@pytest.mark.parametrize("read_again", [False, True])
def test_flattened_images_are_not_transposed(tmp_path: Path, read_again: bool) -> None:
    """Flattened images are not transposed: the next weights are permuted, unless another node reads the flat image
    too.
    """
    held = {"w": normal(4, 3, 3, 3), "dense": normal(5, 4 * 6 * 5), "b": normal(5)}
    nodes = [
        node("Conv", "x w", "a"),
        node("Relu", "a", "c"),
        node("Flatten", "c", "f"),
        node("Gemm", "f dense b", "y", transB=1),
    ]
    inputs = {"x": normal(2, 3, 8, 7)}
    made = model(nodes, inputs, ["y", "f"] if read_again else ["y"], held)
    assert ops(check(tmp_path, made, inputs)) == {
        "transpose": 1 + read_again,
        "conv2d": 1,
        "clip": 1,
        "reshape": 1 + read_again,
        "dense": 1,
    }


def test_signals_stay_images_between_convolutions(tmp_path: Path) -> None:
    """One-dimensional convolutions, a residual connection and activations need reshapes only at inputs and outputs."""
    held = {"w": normal(4, 4, 3), "b": normal(1, 4, 1)}
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1]),
        node("Add", "a b", "c"),
        node("Relu", "c", "d"),
        node("Conv", "d w", "e", pads=[1, 1]),
        node("Add", "e d", "f"),
        node("Sigmoid", "f", "g"),
        node("Mul", "f g", "h"),
        node("Conv", "h w", "y", pads=[1, 1]),
    ]
    inputs = {"x": normal(2, 4, 9)}
    assert ops(check(tmp_path, model(nodes, inputs, ["y"], held), inputs)) == {
        "transpose": 2,
        "reshape": 2,
        "conv2d": 3,
        "clip": 1,
        "add": 1,
        "silu": 1,
    }


def test_patches_as_tokens_need_no_transpose(tmp_path: Path) -> None:
    """The first layers of a vision transformer (Conv, Reshape, Transpose, MatMul) need no transposes in between."""
    held = {"w": normal(8, 3, 4, 4), "sizes": np.array([0, 8, -1]), "square": normal(8, 8)}
    nodes = [
        node("Conv", "x w", "a", strides=[4, 4]),
        node("Reshape", "a sizes", "b"),
        node("Transpose", "b", "c", perm=[0, 2, 1]),
        node("MatMul", "c square", "y"),
    ]
    inputs = {"x": normal(2, 3, 8, 12)}
    graph = check(tmp_path, model(nodes, inputs, ["y"], held), inputs)
    assert [n.op for n in graph] == ["transpose", "conv2d", "reshape", "dense"]


def test_channel_shuffle_is_one_transpose(tmp_path: Path) -> None:
    held = {"w": normal(6, 6, 1, 1), "split": np.array([2, 2, 3, 4, 5]), "joined": np.array([2, 6, 4, 5])}
    nodes = [
        node("Conv", "x w", "a"),
        node("Reshape", "a split", "b"),
        node("Transpose", "b", "c", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "c joined", "d"),
        node("Conv", "d w", "y"),
    ]
    inputs = {"x": normal(2, 6, 4, 5)}
    assert ops(check(tmp_path, model(nodes, inputs, ["y"], held), inputs)) == {
        "transpose": 3,
        "conv2d": 2,
        "reshape": 2,
    }


def test_attention(tmp_path: Path) -> None:
    """Heads that are split and joined around two batched products become transposes and matrix products."""
    held = {f"w{i}": normal(8, 8, seed=i) for i in range(4)}
    held |= {"heads": np.array([0, 0, 2, 4]), "joined": np.array([0, 0, 8]), "scale": constant(0.5)}
    nodes = []
    for i, perm in enumerate([(0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)]):
        nodes += [
            node("MatMul", f"x w{i}", f"p{i}"),
            node("Reshape", f"p{i} heads", f"h{i}"),
            node("Transpose", f"h{i}", f"t{i}", perm=perm),
        ]
    nodes += [
        node("MatMul", "t0 t1", "a"),
        node("Mul", "a scale", "b"),
        node("Softmax", "b", "c", axis=-1),
        node("MatMul", "c t2", "d"),
        node("Transpose", "d", "e", perm=[0, 2, 1, 3]),
        node("Reshape", "e joined", "f"),
        node("MatMul", "f w3", "y"),
    ]
    inputs = {"x": normal(2, 5, 8)}
    counts = ops(check(tmp_path, model(nodes, inputs, ["y"], held), inputs))
    assert counts == {"dense": 4, "reshape": 4, "transpose": 4, "matmul": 2, "mul": 1, "softmax": 1}


_CENTRED = [node("ReduceMean", "x", "m", **_MEAN), node("Sub", "x m", "d")]
_VARIANCE = [*_CENTRED, node("Mul", "d d", "s"), node("ReduceMean", "s", "v", **_MEAN)]
_NORM_OF_X = node("ReduceL2", "x", "l", **_MEAN)
#: Nodes of float models that compute y from x, the expected operator, and whether a difference is stated.
_FLOAT_PATTERNS: dict[str, tuple[list[onnx.NodeProto], str, bool]] = {
    "maximum": (
        [*_VARIANCE, node("Max", "v tiny", "e"), node("Sqrt", "e", "r"), node("Div", "d r", "y")],
        "layer_norm",
        True,
    ),
    "clip": (
        [*_VARIANCE, node("Clip", "v tiny", "e"), node("Pow", "e half", "r"), node("Div", "d r", "y")],
        "layer_norm",
        True,
    ),
    "outside": (
        [*_VARIANCE, node("Sqrt", "v", "r"), node("Add", "r tiny", "e"), node("Div", "d e", "y")],
        "layer_norm",
        True,
    ),
    "none": ([*_VARIANCE, node("Sqrt", "v", "r"), node("Div", "d r", "y")], "layer_norm", False),
    "scale_over_root": (
        [
            *_VARIANCE,
            node("Add", "v eps", "e"),
            node("Sqrt", "e", "r"),
            node("Div", "gamma r", "g"),
            node("Mul", "g d", "n"),
            node("Add", "n beta", "y"),
        ],
        "layer_norm",
        False,
    ),
    "centred_norm": (
        [*_CENTRED, node("ReduceL2", "d", "l", **_MEAN), node("Div", "d l", "y")],
        "layer_norm",
        False,
    ),
    "norm": ([_NORM_OF_X, node("Div", "x l", "y")], "rms_norm", False),
    "rms_by_norm": (
        [_NORM_OF_X, node("Mul", "l eighth", "n"), node("Add", "n tiny", "e"), node("Div", "x e", "y")],
        "rms_norm",
        True,
    ),
    "norm_at_least": ([_NORM_OF_X, node("Clip", "l tiny", "e"), node("Div", "x e", "y")], "rms_norm", True),
    "sum_of_squares": (
        [
            node("ReduceSumSquare", "x", "l", **_MEAN),
            node("Sqrt", "l", "r"),
            node("Reciprocal", "r", "q"),
            node("Mul", "x q", "y"),
        ],
        "rms_norm",
        False,
    ),
    "mish": (
        [
            node("Exp", "x", "a"),
            node("Add", "one a", "b"),
            node("Log", "b", "c"),
            node("Tanh", "c", "t"),
            node("Mul", "t x", "y"),
        ],
        "mish",
        False,
    ),
    "silu": (
        [node("Neg", "x", "n"), node("Exp", "n", "a"), node("Add", "a one", "b"), node("Div", "x b", "y")],
        "silu",
        False,
    ),
    "silu_by_reciprocal": (
        [
            node("Mul", "x minus_one", "n"),
            node("Exp", "n", "a"),
            node("Add", "a one", "b"),
            node("Reciprocal", "b", "c"),
            node("Mul", "x c", "y"),
        ],
        "silu",
        False,
    ),
}


@pytest.mark.parametrize("name", _FLOAT_PATTERNS)
def test_pattern_of_a_float_model(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    nodes, wanted, stated = _FLOAT_PATTERNS[name]
    inputs = {"x": 2 * normal(*ROWS)}
    made = model(nodes, inputs, ["y"], NUMBERS | {"tiny": constant(1e-6), "minus_one": constant(-1)})
    assert ops(check(tmp_path, made, inputs, tolerance=1e-5)) == {wanted: 1}
    assert ("with epsilon outside of the square root, or as a lower bound" in caplog.text) == stated


def test_large_epsilon_outside_of_the_root_is_kept(tmp_path: Path) -> None:
    nodes = [*_VARIANCE, node("Sqrt", "v", "r"), node("Add", "r half", "e"), node("Div", "d e", "y")]
    inputs = {"x": 2 * normal(*ROWS)}
    graph = check(tmp_path, model(nodes, inputs, ["y"], NUMBERS), inputs, tolerance=1e-5)
    assert "layer_norm" not in ops(graph)
