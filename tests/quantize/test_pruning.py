"""Pruning of weights: the patterns, the accuracy of pruned networks, and the cycles that zero tiles save."""

import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import compiler
from compiler.ir.graph import Graph
from compiler.quantize import WeightNarrower, group_weights, prune_mask, quantize
from compiler.quantize.weights import output_error, pruned
from compiler.reference import evaluate
from compiler.runtime.session import Session, dram_bytes
from cosim.rtl.rtl_device import RtlDevice
from hw.errors import InputError
from scripts.networks.digits import Digits, load_digits_split
from tests.support.float_graphs import BLOCK, IMAGE, WITHIN, graph_of, numbers
from tests.support.onnx_models import model, node, read

SIZES = (64, 128, 128, 10)
Layers = list[tuple[NDArray[np.float32], NDArray[np.float32]]]


def is_2_of_4(weights: NDArray) -> bool:
    """Return True if at most two of four consecutive inputs are not zero."""
    rows = weights.reshape(-1, weights.shape[-1])
    starts = range(0, rows.shape[1], 4)
    return all(np.count_nonzero(rows[:, start : start + 4], axis=1).max() <= 2 for start in starts)


@pytest.mark.parametrize("shape", [(24, 32), (7, 30), (16, 3, 3, 18)])
def test_two_of_four_largest_weights_remain(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    weights = rng.normal(size=shape)
    mask = prune_mask(weights, "2:4")
    assert is_2_of_4(mask)
    for row, kept in zip(weights.reshape(-1, shape[-1]), mask.reshape(-1, shape[-1]), strict=True):
        for start in range(0, shape[-1], 4):
            group, remain = np.abs(row[start : start + 4]), kept[start : start + 4]
            assert remain.sum() == min(2, len(group))
            assert not (~remain).any() or group[remain].min() >= group[~remain].max()


@pytest.mark.parametrize(("shape", "share"), [((64, 48), 0.5), ((30, 50), 0.25), ((32, 3, 3, 32), 0.75)])
def test_tiles_are_zero_as_a_whole(shape: tuple[int, ...], share: float, rng: np.random.Generator) -> None:
    mask = prune_mask(rng.normal(size=shape), "tiles", share=share, tile=16)
    tiles = [
        mask[o : o + 16, ..., i : i + 16].reshape(mask[o : o + 16].shape[0], -1, min(16, shape[-1] - i))
        for o in range(0, shape[0], 16)
        for i in range(0, shape[-1], 16)
    ]
    positions = [tile[:, k] for tile in tiles for k in range(tile.shape[1])]
    assert all(each.all() or not each.any() for each in positions)
    assert sum(not each.any() for each in positions) == round(share * len(positions))


@pytest.mark.parametrize("pattern", ["2:4", "tiles"])
def test_compensation_reduces_the_error_of_outputs(pattern: str, rng: np.random.Generator) -> None:
    weights = rng.normal(size=(32, 64))
    x = rng.normal(size=(500, 64)) @ rng.normal(size=(64, 64))
    moments = x.T @ x / len(x)
    plain, better = (pruned(weights, pattern, moments=each) for each in (None, moments))
    errors = [output_error(each - weights, moments) for each in (plain, better)]
    print(f"{pattern}: error {errors[0]:.1f} without, {errors[1]:.1f} with compensation")
    assert errors[1] < 0.8 * errors[0]
    assert np.count_nonzero(better) == np.count_nonzero(plain)


def test_narrower_weights_keep_the_pattern(tmp_path: Path) -> None:
    samples = [{"x": numbers(*IMAGE, seed=i)} for i in range(6)]
    graph = compiler.prune(graph_of(tmp_path, BLOCK, WITHIN, IMAGE), "2:4", samples=samples)
    integers, _ = quantize(graph, samples)
    narrower = WeightNarrower(integers, samples, "reference")
    narrow = narrower.narrowed(dict.fromkeys(narrower.layers, 4))
    assert narrower.layers
    for made in (graph, integers, narrow):
        weights = [made.tensors[each.inputs[1]].data for each in made if each.op in ("conv2d", "dense")]
        assert sum(is_2_of_4(each) for each in weights if each is not None and each.shape[-1] >= 4)
        assert all(is_2_of_4(each) for each in weights if each is not None and each.shape[-1] >= 4)


def trained(data: Digits, layers: Layers, masks: list[NDArray[np.bool_]] | None, epochs: int) -> Layers:
    """Train a network of dense layers with Adam; weights that a mask excludes stay zero."""
    rng = np.random.default_rng(0)
    x, wanted = data.images.reshape(len(data.images), -1) / np.float32(16), np.eye(10)[data.labels]
    values = [np.array(each, np.float64) for pair in layers for each in pair]
    moments = [(np.zeros_like(each), np.zeros_like(each)) for each in values]
    step = 0
    for epoch in range(epochs):
        for batch in np.array_split(rng.permutation(len(x)), len(x) // 32):
            if masks is not None:
                for i, mask in enumerate(masks):
                    values[2 * i] *= mask
            rows = [x[batch]]
            for i in range(len(layers)):
                sums = rows[-1] @ values[2 * i].T + values[2 * i + 1]
                rows.append(np.maximum(sums, 0) if i + 1 < len(layers) else sums)
            power = np.exp(rows[-1] - rows[-1].max(1, keepdims=True))
            slope = (power / power.sum(1, keepdims=True) - wanted[batch]) / len(batch)
            step += 1
            for i in reversed(range(len(layers))):
                changes = slope.T @ rows[i] + 1e-4 * values[2 * i], slope.sum(0)
                slope = (slope @ values[2 * i]) * (rows[i] > 0)
                for j, change in enumerate(changes, 2 * i):
                    first, second = moments[j]
                    first += 0.1 * (change - first)
                    second += 0.001 * (np.square(change) - second)
                    scale = np.sqrt(second / (1 - 0.999**step)) + 1e-8
                    values[j] -= 2e-3 * 0.97**epoch * (first / (1 - 0.9**step)) / scale
    if masks is not None:
        for i, mask in enumerate(masks):
            values[2 * i] *= mask
    return [
        (w.astype(np.float32), b.astype(np.float32)) for w, b in zip(values[::2], values[1::2], strict=True)
    ]


def network(folder: Path, layers: Layers) -> Graph:
    """Return the float graph of a network of dense layers."""
    nodes, within, last = [], {}, "x"
    for i, (weights, bias) in enumerate(layers):
        within |= {f"w{i}": weights, f"b{i}": bias}
        made = "y" if i + 1 == len(layers) else f"s{i}"
        nodes.append(node("Gemm", f"{last} w{i} b{i}", made, transB=1))
        if made != "y":
            nodes.append(node("Relu", made, f"r{i}"))
        last = f"r{i}"
    folder.mkdir(exist_ok=True)
    return read(folder, model(nodes, {"x": np.zeros((1, 64), np.float32)}, ["y"], within))


def inputs_of(data: Digits) -> list[dict[str, NDArray]]:
    return [{"x": each.reshape(1, 64) / np.float32(16)} for each in data.images]


def accuracy(graph: Graph, data: Digits) -> float:
    found = [evaluate(graph, each)[graph.outputs[0]].argmax() for each in inputs_of(data)]
    return float(np.mean(np.array(found) == data.labels))


@pytest.fixture(scope="module")
def dense() -> Layers:
    rng = np.random.default_rng(1)
    start = [
        ((rng.normal(size=(b, a)) * np.sqrt(2 / a)).astype(np.float32), np.zeros(b, np.float32))
        for a, b in pairwise(SIZES)
    ]
    return trained(load_digits_split()[0], start, None, 25)


@pytest.mark.parametrize(("pattern", "share", "loss"), [("2:4", 0.5, 0.01), ("tiles", 0.5, 0.02)])
def test_digits_after_training_with_a_mask(
    pattern: str, share: float, loss: float, dense: Layers, tmp_path: Path
) -> None:
    train, held = load_digits_split()
    samples = inputs_of(train)[:100]
    before = network(tmp_path / "dense", dense)
    once = compiler.prune(before, pattern, share=share, samples=samples)
    masks = [prune_mask(weights, pattern, share=share) for weights, _ in dense[:2]]
    masks.append(np.ones_like(dense[2][0], np.bool_))
    if pattern == "2:4":
        masks[2] = prune_mask(dense[2][0], pattern)
    layers = trained(train, [(w * mask, b) for (w, b), mask in zip(dense, masks, strict=True)], masks, 15)
    after = quantize(network(tmp_path / "masked", layers), samples)[0]
    found = [accuracy(each, held) for each in (before, quantize(once, samples)[0], after)]
    print(f"{pattern}: dense {found[0]:.3f}, pruned {found[1]:.3f}, trained and int8 {found[2]:.3f}")
    assert found[0] >= 0.96 and found[2] >= found[0] - loss
    if pattern == "2:4":
        weights = [after.tensors[each.inputs[1]].data for each in after if each.op == "dense"]
        assert len(weights) == 3 and all(each is not None and is_2_of_4(each) for each in weights)


def test_cycles_fall_with_the_share_of_tiles(tmp_path: Path, rng: np.random.Generator) -> None:
    sizes = [(512, 256), (256, 512)]
    layers: Layers = [
        (rng.normal(size=size).astype(np.float32), np.zeros(size[0], np.float32)) for size in sizes
    ]
    nodes = [node("Gemm", "x w0 b0", "s", transB=1), node("Gemm", "s w1 b1", "y", transB=1)]
    within = {
        f"{kind}{i}": each for i, pair in enumerate(layers) for kind, each in zip("wb", pair, strict=True)
    }
    graph = read(tmp_path, model(nodes, {"x": np.zeros((32, 256), np.float32)}, ["y"], within))
    samples = [{"x": rng.normal(size=(32, 256)).astype(np.float32)} for _ in range(2)]
    cycles = []
    for share in (0.0, 0.5, 0.75):
        made = compiler.prune(graph, "tiles", share=share, samples=samples)
        compiled = compiler.compile(made, "n16", calibration=samples, cache=False)
        with RtlDevice(compiled.config, dram_bytes(compiled)) as device:
            cycles.append(Session(device, compiled).measure(samples[0])[1])
    print(f"cycles with 0%, 50% and 75% of the tiles zero: {cycles}")
    assert cycles[1] < 0.6 * cycles[0] and cycles[2] < 0.36 * cycles[0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"pattern": "1:2"}, "pattern must be '2:4' or 'tiles'"),
        ({"pattern": "tiles", "share": 1.5}, "share must be a number from 0 to 1"),
        ({"pattern": "tiles", "share": "0.5"}, "share must be a number from 0 to 1, not '0.5'"),
        ({"tile": 0}, "tile must be at least 1, not 0"),
        (
            {"samples": 4},
            "samples must be a dict of arrays by the names of the inputs, or a list of samples, not 4",
        ),
        ({"keep": "conv2d"}, "keep must be a list of names, not 'conv2d'"),
        ({"keep": ["nothing"]}, "there is no layer 'nothing'"),
        ({"train": print}, "only a torch.nn.Module can be trained"),
    ],
)
def test_wrong_arguments(arguments: dict, text: str, tmp_path: Path) -> None:
    graph = graph_of(tmp_path, BLOCK, WITHIN, IMAGE)
    with pytest.raises(InputError, match=text):
        compiler.prune(graph, **arguments)


def test_layers_that_are_kept(dense: Layers, tmp_path: Path) -> None:
    graph = network(tmp_path / "dense", dense)
    names = [each.name for each in graph if each.op == "dense"]
    made = compiler.prune(graph, keep=names[:1])
    assert np.array_equal(*(each.tensors[graph.nodes[names[0]].inputs[1]].data for each in (graph, made)))  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=f"no dense layer or convolution to prune; '{names[0]}' has a name in keep"
    ):
        compiler.prune(graph, keep=names)


@pytest.mark.parametrize("given", [5, None, onnx.ModelProto()])
def test_models_that_are_not_models(given: object) -> None:
    with pytest.raises(
        InputError, match="a model must be a file, module:function, a graph or a PyTorch module"
    ):
        compiler.prune(given)


def test_reasons_why_there_is_nothing_to_prune(dense: Layers, tmp_path: Path) -> None:
    graph = network(tmp_path / "dense", dense)
    with pytest.raises(InputError, match="has integer weights with scales for blocks, which are not float32"):
        compiler.prune(group_weights(graph))
    samples = [{"x": numbers(1, 64, seed=i)} for i in range(2)]
    with pytest.raises(InputError, match=r"to prune; '.*' has weights of int8, not float32"):
        compiler.prune(quantize(graph, samples)[0])
    with pytest.raises(InputError, match=r"to prune; '.*' has no more than one tile of weights"):
        compiler.prune(graph, "tiles", tile=128)


@pytest.mark.parametrize(
    ("weights", "arguments", "text"),
    [
        (
            np.ones((4, 8)),
            {"pattern": "tiles", "share": None},
            "share must be a number from 0 to 1, not None",
        ),
        (
            np.ones((4, 8)),
            {"importance": np.ones(3)},
            r"importance of shape \[3\] must fit weights of shape \[4, 8\]",
        ),
        ([["a"]], {}, "weights must be an array of numbers"),
        (np.full((4, 8), np.nan), {}, "weights must be finite numbers"),
        (np.ones(4), {}, "weights must have two or four dimensions"),
    ],
)
def test_wrong_arguments_of_masks(weights: NDArray, arguments: dict, text: str) -> None:
    given: dict[str, Any] = {"pattern": "2:4"} | arguments
    with pytest.raises(InputError, match=text):
        prune_mask(weights, **given)


def test_masks_of_lists() -> None:
    assert prune_mask([[1, 4, 3, 2], [5, 0, 1, 6]], "2:4").tolist() == [
        [False, True, True, False],
        [True, False, False, True],
    ]


@pytest.mark.parametrize("pattern", ["2:4", "tiles", "groups"])
@pytest.mark.parametrize(
    ("size", "text"),
    [
        (np.inf, "samples: input 'x' must be finite, but has infinite values"),
        (1e38, "samples: .* which .* multiplies, must be finite, but has infinite values"),
    ],
)
def test_samples_with_infinite_values(
    size: float, text: str, pattern: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    weights = {name: numbers(64, 64, seed=seed, scale=50) for seed, name in enumerate("ab")}
    x = rng.normal(size=(4, 1, 64)).astype(np.float32)
    x[1, 0, 3] = size
    nodes = [node("MatMul", "x a", "h"), node("MatMul", "h b", "y")]
    graph = read(tmp_path, model(nodes, {"x": x[0]}, ["y"], weights))
    with warnings.catch_warnings(), pytest.raises(InputError, match=text):
        warnings.simplefilter("error")
        if pattern == "groups":
            group_weights(graph, samples={"x": x})
        else:
            compiler.prune(graph, pattern, samples={"x": x})
