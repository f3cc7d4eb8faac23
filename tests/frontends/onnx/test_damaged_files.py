"""Damaged files, files of other formats, and files that need too much memory give a message with the location."""

import random
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.frontends.model import read_model
from compiler.frontends.onnx import UnsupportedNodesError, read_onnx
from compiler.reference import evaluate
from compiler.reference.evaluate import OPERATORS
from hw.errors import InputError
from scripts.networks.digits import MODEL
from tests.support.onnx_models import node, small

#: Maximum additional memory, in bytes, for reading any file of these tests.
_MEMORY_LIMIT = 1 << 30


def rejection(folder: Path, made: onnx.ModelProto | bytes, **sizes: int) -> str:
    """Return the message with which a model is rejected."""
    path = folder / "model.onnx"
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    with pytest.raises(InputError) as caught:
        read_onnx(path, sizes)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and "\n" not in text and len(text) < 2000
    return text.removeprefix(f"{path}: ")


def test_damaged_files_are_graphs_or_messages(tmp_path: Path) -> None:
    """A truncated file, or one with changed or inserted bytes, gives a graph or a message, never another error."""
    whole, path, refused = MODEL.read_bytes(), tmp_path / "model.onnx", 0
    # The file consists mostly of weights; damage to the rest of it reaches more code.
    structure = [i for i in range(len(whole)) if not 900 < i < len(whole) - 8000 or i % 37 == 0]
    for seed in range(400):
        rng, data = random.Random(seed), bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            place = rng.choice(structure)
            data[place : place + rng.randrange(2)] = [rng.getrandbits(8)]
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        path.write_bytes(bytes(data))
        try:
            read_onnx(path)
        except InputError as error:
            assert str(error).startswith(f"{path}: "), f"seed {seed}"
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert refused > 100


def _with(change: Callable[[onnx.ModelProto], None]) -> onnx.ModelProto:
    made = onnx.load(MODEL)
    change(made)
    return made


def _set(name: str, array: np.ndarray) -> Callable[[onnx.ModelProto], None]:
    def change(made: onnx.ModelProto) -> None:
        (place,) = (t for t in made.graph.initializer if t.name == name)
        place.CopyFrom(numpy_helper.from_array(array, name))

    return change


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (
            "conv1_scale",
            np.float32(np.nan),
            "node 'conv1_int8': a scale must be finite and positive, not nan",
        ),
        ("add_scale", np.float32(-1), "node 'add_int8': a scale must be finite and positive, not -1.0"),
        ("add_zero_point", np.float32(0), "node 'add_int8': 1 scales need as many integers as zero points"),
        (
            "conv2_weight_scale",
            np.ones(5, np.float32),
            "node 'conv2_weight_real': 5 scales need as many integers",
        ),
        (
            "conv2_weight",
            np.zeros((32, 3, 3, 3), np.int8),
            "node 'conv2_sum': weights for 1 groups of 3 channels and 32 outputs do not match",
        ),
        ("conv1_bias", np.zeros(16, np.int8)[:0], "node 'conv1_bias_real': 16 scales do not fit"),
        (
            "scores_weight",
            np.zeros((10, 5), np.int8),
            r"node 'scores_sum': weights [5, 10] do not fit x [1, 128]",
        ),
    ],
)
def test_invalid_constants(tmp_path: Path, name: str, array: np.ndarray, message: str) -> None:
    assert rejection(tmp_path, _with(_set(name, array))).startswith(message)


def test_not_onnx(tmp_path: Path) -> None:
    assert rejection(tmp_path, b"") == "is not an ONNX file: it has no graph with outputs"
    assert rejection(tmp_path, b"TFL3 or so, no protocol buffer") == "is not an ONNX file, or is damaged"
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_model(tmp_path / "absent.onnx")


def test_all_unknown_operators_are_named_in_one_message(tmp_path: Path) -> None:
    made = small(
        node("Warp", "x", "a"),
        node("Relu", "a", "b"),
        node("Wonder", "b", "c", domain="my.own"),
        node("NonZero", "x", "d"),
        node("Concat", "c d", "y", axis=0),
    )
    text = rejection(tmp_path, made)
    assert text == (
        "there is no conversion for node 'Warp:a' (Warp), 'Wonder:c' (my.own.Wonder), 'NonZero:d' (NonZero: "
        "the shape of its output depends on the values of its inputs and must be known at compile time); "
        "docs/operators.md lists the operators"
    )
    with pytest.raises(UnsupportedNodesError) as caught:
        read_onnx(tmp_path / "model.onnx")
    assert [(name, op) for name, op, _ in caught.value.nodes] == [
        ("Warp:a", "Warp"),
        ("Wonder:c", "my.own.Wonder"),
        ("NonZero:d", "NonZero"),
    ]


def test_types_sizes_and_operators_are_named_in_one_message(tmp_path: Path) -> None:
    made = small(
        node("Warp", "x", "a"),
        node("Relu", "a", "y"),
        node("Wonder", "z", "w", domain="my.own"),
        shape=("n", "width"),
    )
    made.graph.input.append(helper.make_tensor_value_info("z", TensorProto.BFLOAT16, [2]))
    made.graph.output.append(helper.make_tensor_value_info("w", TensorProto.COMPLEX64, [2]))
    unknown = "there is no conversion for node 'Warp:a' (Warp), 'Wonder:w' (my.own.Wonder); "
    listed = "docs/operators.md lists the operators"
    sizes = "dimension 1 of input 'x' has no size; give it as --size width=N; "
    assert rejection(tmp_path, made) == (
        "tensor 'z': type bfloat16 is not supported, tensor 'w': type complex64 is not supported (convert the model to "
        f"float32, int8 or int32); {sizes}{unknown}{listed}"
    )
    del made.graph.input[-1], made.graph.output[-1], made.graph.node[-1]
    assert rejection(tmp_path, made) == f"{sizes}there is no conversion for node 'Warp:a' (Warp); {listed}"


def test_unsupported_variants_run_on_the_host_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    cut = np.array([-1, 0, 0, 1])
    made = small(node("Hardmax", "x", "a"), node("Pad", "a pads", "y", mode="reflect"), pads=cut)
    path.write_bytes(made.SerializeToString())
    whys = {n.operator: n.attributes["why"] for n in read_onnx(path) if n.op == "onnx"}
    assert whys == {
        "Hardmax": "not supported on the accelerator",
        "Pad": "padding dimension 0 by reflect with -1 and 0",
    }


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            small(node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "b", "y")),
            "node 'Add:a' waits for its own output: there is a cycle",
        ),
        (small(node("Relu", "z", "y")), "node 'Relu:y': no node computes its input 'z'"),
        (small(node("Relu", "x", "z")), "no node computes the output 'y'"),
        (
            small(node("Relu", "x", "y"), node("Exp", "x", "y")),
            "node 'Exp:y': its output 'y' already has a producer",
        ),
        (small(node("Relu", "x", "-"), node("Exp", "x", "y")), "node 'Relu:' has no outputs"),
        (small(node("Relu", "-", "y")), "node 'Relu:y': must have 1 input, not 0"),
        (small(node("Relu", "x x", "y")), "node 'Relu:y': must have 1 input, not 2"),
        (small(node("Concat", "", "y", axis=0)), "node 'Concat:y': must have at least 1 input, not 0"),
        (small(node("Gemm", "x x x x", "y")), "node 'Gemm:y': must have 2 or 3 inputs, not 4"),
        (small(node("Clip", "x x x x", "y")), "node 'Clip:y': must have 1 to 3 inputs, not 4"),
        (small(node("Gemm", "- x", "y")), "node 'Gemm:y': input 1 must not be omitted"),
        (
            small(node("Flatten", "x", "y", axis=[1, 2])),
            "node 'Flatten:y': attribute axis must be an integer, not (1, 2)",
        ),
        (
            small(node("Transpose", "x", "y", perm=[0, 0])),
            "node 'Transpose:y': perm must order the 2 dimensions, not [0, 0]",
        ),
        (
            small(node("Reshape", "x s", "y"), s=np.array([4, 2])),
            "node 'Reshape:y': shape [2, 3] cannot be reshaped to [4, 2]: the numbers of elements differ",
        ),
        (
            small(node("Concat", "x c", "y", axis=1), c=np.zeros((3, 3), np.float32)),
            "node 'Concat:y': shapes [2, 3], [3, 3] do not join along axis 1",
        ),
        (small(node("Softmax", "x", "y", axis=7)), "node 'Softmax:y': axis must be within -2..1, not 7"),
        (
            small(node("Relu", "x", "y"), shape=(2, 1 << 40)),
            "input 'x': shape [2, 1099511627776] has more than 2,147,483,648 elements",
        ),
        (
            small(node("ConstantOfShape", "s", "c"), node("Add", "x c", "y"), s=np.array([1 << 20, 1 << 20])),
            "node 'ConstantOfShape:c': its constant result would have shape [1048576, 1048576], more than 16,777,216 "
            "elements",
        ),
        (
            small(
                node("Range", "a b d", "r"),
                node("Add", "x r", "y"),
                a=np.array(0),
                b=np.array(1 << 50),
                d=np.array(1),
            ),
            "node 'Range:r': its constant result would have shape [1125899906842624], more than 16,777,216 elements",
        ),
        (
            small(node("Pad", "x p", "y"), p=np.array([0, 0, 1 << 40, 0])),
            "node 'Pad:y': widths [0, 0, 1099511627776, 0] do not fit shape [2, 3]; each must be less than "
            "2,147,483,648",
        ),
        (
            small(node("Relu", "x", "y"), kind=TensorProto.BFLOAT16),
            "tensor 'x': type bfloat16 is not supported, tensor 'y': type bfloat16 is not supported (convert the model "
            "to float32, int8 or int32)",
        ),
        (
            small(node("Relu", "x", "y"), shape=("n", "width")),
            "dimension 1 of input 'x' has no size; give it as --size width=N",
        ),
        (
            small(node("Relu", "x", "y"), shape=("n", None)),
            "dimension 1 of input 'x' has no size; give it as --size x.1=N",
        ),
        (
            small(node("Transpose", "x", "y"), shape=("n", "height", None)),
            "dimension 1 of input 'x' and dimension 2 of input 'x' have no size; give them as --size height=N "
            "--size x.2=N",
        ),
    ],
)
def test_invalid_nodes_are_rejected(tmp_path: Path, made: onnx.ModelProto, message: str) -> None:
    assert rejection(tmp_path, made) == message


def test_wrong_declared_shape_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """A declared output shape that differs from the inferred one is ignored with a warning, as in
    onnxruntime.
    """
    made = small(node("Relu", "x", "y"))
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, 2)))
    graph = read_onnx(made)
    assert graph.tensors["y"].shape == (2, 3)
    assert caplog.messages == [
        "output 'y' is declared as [3, 2], but has shape [2, 3]; the declaration is ignored"
    ]


@pytest.mark.parametrize(
    ("each", "kind", "declared", "computed"),
    [
        (node("Relu", "x", "y"), TensorProto.INT64, "int64", "float32"),
        (node("Relu", "x", "y"), TensorProto.BOOL, "bool", "float32"),
        (node("ArgMax", "x", "y"), TensorProto.FLOAT, "float32", "int64"),
    ],
)
def test_wrong_declared_type_is_ignored(
    each: onnx.NodeProto, kind: int, declared: str, computed: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = small(each)
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", kind, None))
    assert read_onnx(made).tensors["y"].dtype == computed
    assert caplog.messages == [
        f"output 'y' is declared as {declared}, but is {computed}; the declaration is ignored"
    ]


@pytest.mark.parametrize(
    ("nodes", "array", "message"),
    [
        (
            [node("Concat", f"c{i} c{i}", f"c{i + 1}", axis=0) for i in range(40)],
            np.zeros((1 << 20, 3), np.float32),
            "its constant result would have shape [25165824], more than 16,777,216 elements",
        ),
        (
            [node("Expand", "c0 wide", f"c{i}") for i in range(1, 40)]
            + [node("Sum", " ".join(f"c{i}" for i in range(40)), "c40")],
            np.zeros((1, 3), np.float32),
            "the results of nodes with constant inputs, up to this one, are too large in sum",
        ),
        (
            [node("Gemm", "x c0", f"c{i}", alpha=1.5 + i) for i in range(1, 120)]
            + [node("Sum", " ".join(f"c{i}" for i in range(1, 120)), "c120")],
            np.ones((3, 1 << 18), np.float32),
            "the constants of the nodes up to this one are too large in sum",
        ),
    ],
    ids=["concatenated", "expanded", "scaled"],
)
def test_large_expanded_constants_are_rejected_without_allocation(
    tmp_path: Path, nodes: list, array: np.ndarray, message: str
) -> None:
    wide = np.array([1 << 22, 3])
    made = small(*nodes, node("Mul", f"x {nodes[-1].output[0]}", "y"), c0=array, wide=wide)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert message in rejection(tmp_path, made)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < _MEMORY_LIMIT


IMAGE = (1, 4, 6, 6)
FILTERS = np.ones((4, 4, 3, 3), np.float32)


def _sizes(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


#: Models in which the given integer is a size.
FAR: dict[str, Callable[[int], onnx.ModelProto]] = {
    "Reshape": lambda n: small(node("Reshape", "x s", "y"), s=_sizes(n, n)),
    "Expand": lambda n: small(node("Expand", "x s", "y"), shape=(1, 1), s=_sizes(n, n)),
    "Tile": lambda n: small(node("Tile", "x s", "y"), s=_sizes(n, n)),
    "Pad": lambda n: small(node("Pad", "x s", "y"), s=_sizes(n, n, n, n)),
    "ConstantOfShape": lambda n: small(node("ConstantOfShape", "s", "y"), s=_sizes(n, n)),
    "Resize": lambda n: small(node("Resize", "x - - s", "y"), shape=IMAGE, s=_sizes(1, 4, n, n)),
    "Conv": lambda n: small(node("Conv", "x w", "y", pads=[n] * 4), shape=IMAGE, w=FILTERS),
    "ConvTranspose": lambda n: small(
        node("ConvTranspose", "x w", "y", strides=[n, n]), shape=IMAGE, w=FILTERS
    ),
    "MaxPool": lambda n: small(node("MaxPool", "x", "y", kernel_shape=[n, n], pads=[n - 1] * 4), shape=IMAGE),
    "LpPool": lambda n: small(node("LpPool", "x", "y", kernel_shape=[2, 2], pads=[n] * 4), shape=IMAGE),
    "HannWindow": lambda n: small(node("HannWindow", "s", "y"), s=np.array(n)),
    "OneHot": lambda n: small(
        node("OneHot", "x s v", "y"), kind=TensorProto.INT64, s=np.array(n), v=_sizes(0, 1)
    ),
}


@pytest.mark.parametrize("number", [1 << 28, 1 << 40, 1 << 62, (1 << 63) - 1])
@pytest.mark.parametrize("op", FAR)
def test_huge_sizes_are_rejected_without_allocation(tmp_path: Path, op: str, number: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = rejection(tmp_path, FAR[op](number))
    assert text.startswith(f"node '{op}:y': ") and "damaged" not in text
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < _MEMORY_LIMIT


def test_out_of_memory_names_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> np.ndarray:
        raise MemoryError

    monkeypatch.setitem(OPERATORS, "exp", none_left)
    graph = read_onnx(small(node("Exp", "x", "y")))
    with pytest.raises(InputError, match=r"'Exp:y' \(exp\): there is too little memory to compute float32"):
        evaluate(graph, {"x": np.zeros((2, 3), np.float32)})


def test_sizes_of_free_dimensions(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(small(node("Relu", "x", "y"), shape=("n", "width", None)).SerializeToString())
    assert read_onnx(path, {"width": 5, "x.2": 6}).tensors["y"].shape == (1, 5, 6)
    with pytest.raises(InputError, match="no input has a dimension 'height' without a size"):
        read_onnx(path, {"width": 5, "x.2": 6, "height": 3})
    assert read_onnx(path, {"width": 5, "x.2": 6, "n": 3}).tensors["y"].shape == (3, 5, 6)
