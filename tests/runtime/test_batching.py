"""Batches of samples through one network give the same outputs as single samples."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.passes.batch import with_batch
from compiler.reference import evaluate
from compiler.runtime.compiled import stack_batch
from compiler.runtime.run_report import run_samples
from compiler.runtime.session import dram_bytes
from cosim.golden import GoldenDevice
from hw.errors import InputError
from tests.support.graphs import Draft
from tests.support.trained_networks import model

Maker = Callable[[Draft], Tensor]


def _dense(draft: Draft) -> Tensor:
    x = draft.input((3, 8))
    y = draft.node("dense", [x, draft.constant((5, 8))], (3, 5), scale=5.0)
    return draft.node(
        "add", [y, draft.constant((3, 5))], (3, 5), scale=10.0
    )  # repeats the value for each row


def _attention(draft: Draft) -> Tensor:
    def heads(x: Tensor, perm: tuple[int, ...]) -> Tensor:
        split = draft.node("reshape", [x], (1, 6, 2, 4), like=x, shape=(1, 6, 2, 4))
        made = tuple((1, 6, 2, 4)[axis] for axis in perm)
        return draft.node("transpose", [split], made, like=x, perm=perm)

    x = draft.input((1, 6, 8))
    q, k, v = (heads(x, perm) for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
    scores = draft.node("matmul", [q, k], (1, 2, 6, 6), scale=1.0)
    fixed = Tensor("attention", (1, 2, 6, 6), "int8", Quantization.per_tensor(1 / 256, -128))
    mixed = draft.node(
        "matmul", [draft.into("softmax", [scores], fixed, axis=-1, beta=1.0), v], (1, 2, 6, 4), scale=0.1
    )
    back = draft.node("transpose", [mixed], (1, 6, 2, 4), like=mixed, perm=(0, 2, 1, 3))
    y = draft.node("reshape", [back], (6, 8), like=mixed, shape=(6, 8))
    return draft.node("layer_norm", [y], (6, 8), scale=0.05, axis=-1, epsilon=1e-5)


def _moves(draft: Draft) -> Tensor:
    x = draft.input((2, 5, 6, 4))
    part = draft.node(
        "slice", [x], (2, 3, 6, 4), like=x, starts=(0, 1, 0, 0), sizes=(2, 3, 6, 4), steps=(1, 1, 1, 1)
    )
    edges = ((0, 0), (1, 1), (0, 0), (0, 0))
    wide = draft.node("pad", [part], (2, 5, 6, 4), like=x, pads=edges, value=0.0)
    more = draft.constant((2, 5, 6, 4), quantization=x.quantization)
    joined = draft.node("concat", [wide, x, more], (2, 5, 6, 12), like=x, axis=3)
    return draft.node("reduce_max", [joined], (2, 5, 12), like=x, axes=(2,), keep=False)


def _image(draft: Draft) -> Tensor:
    x = draft.input((1, 7, 6, 3))
    weights = draft.constant((8, 3, 3, 3))
    y = draft.node(
        "conv2d",
        [x, weights],
        (1, 7, 6, 8),
        scale=40.0,
        strides=(1, 1),
        dilations=(1, 1),
        pads=(1,) * 4,
        groups=1,
    )
    y = draft.node("mul", [y, draft.constant((8,))], y.shape, scale=30.0)
    return draft.node("reduce_mean", [y], (1, 8), scale=20.0, axes=(1, 2), keep=False)


@pytest.mark.parametrize("target", ["n4", "n16"])
@pytest.mark.parametrize("maker", [_dense, _attention, _moves, _image])
def test_batched_samples_equal_single_samples(rng: np.random.Generator, maker: Maker, target: str) -> None:
    draft, batch = Draft(rng), int(rng.integers(2, 6))
    graph = draft.graph.finish([maker(draft).name])
    count = batch + int(rng.integers(0, batch))
    samples = [draft.random_inputs() for _ in range(count)]
    network = compile(graph, target, batch=batch)
    assert network.batch == batch and network.host == compile(graph, target).host
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        run = run_samples(device, network, samples, lambda text: None)
    (found,) = run.outputs.values()
    assert run.samples == count
    one = compile(graph, target)
    for number, sample in enumerate(samples):
        (wanted,) = one(**sample).values()
        part = found[number : number + 1] if wanted.shape[0] == 1 else found[number]
        np.testing.assert_array_equal(part, wanted)


@pytest.mark.parametrize("maker", [_dense, _attention, _moves, _image])
def test_batched_graph_equals_the_graph(rng: np.random.Generator, maker: Maker) -> None:
    draft = Draft(rng)
    graph = draft.graph.finish([maker(draft).name])
    samples = [draft.random_inputs() for _ in range(3)]
    together = {name: np.concatenate([each[name] for each in samples]) for name in graph.inputs}
    (found,) = evaluate(with_batch(graph, 3), together).values()
    wanted = np.concatenate([next(iter(evaluate(graph, each).values())) for each in samples])
    np.testing.assert_array_equal(found, wanted)


def _single_node(op: str, **attributes: Any) -> Graph:
    draft = Draft(np.random.default_rng(0))
    x = draft.input((4, 4))
    draft.graph.finish([draft.node(op, [x], (4, 4), like=x, **attributes).name])
    return draft.graph


@pytest.mark.parametrize(
    "graph, text",
    [
        (_single_node("transpose", perm=(1, 0)), "(transpose) moves the first axis"),
        (_single_node("softmax", axis=0, beta=1.0), "(softmax) works along the first axis"),
        (_single_node("reduce_max", axes=(0,), keep=True), "(reduce_max) works along the first axis"),
        (_single_node("pad", pads=((1, 0), (0, 0)), value=0.0), "(pad) pads the first axis"),
        (
            _single_node("slice", starts=(1, 0), sizes=(3, 4), steps=(1, 1)),
            "(slice) takes a part of the first axis",
        ),
    ],
)
def test_nodes_that_mix_samples_are_rejected_by_name(graph: Graph, text: str) -> None:
    with pytest.raises(InputError) as refused:
        with_batch(graph, 2)
    assert str(refused.value).startswith("a batch of 2: node 'make t2' (") and text in str(refused.value)


def test_operands_with_different_first_dimensions_are_rejected() -> None:
    for op, shapes, made in (
        ("matmul", ((4, 4), (4, 4)), (4, 4)),
        ("add", ((3, 4), (1, 4)), (3, 4)),
        ("mul", ((1, 4, 4), (4, 4)), (1, 4, 4)),
    ):
        draft = Draft(np.random.default_rng(0))
        inputs = [draft.input(shape) for shape in shapes]
        draft.graph.finish([draft.node(op, inputs, made).name])
        with pytest.raises(InputError, match=f"a batch of 2: node .* \\({op}\\)"):
            with_batch(draft.graph, 2)


def test_batch_of_zero_is_rejected() -> None:
    with pytest.raises(InputError, match="batch must be at least 1, not 0"):
        compile(_single_node("transpose", perm=(0, 1)), batch=0)


def test_last_batch_is_padded() -> None:
    network = compile(model("ad01_int8"), batch=4)
    samples = [{network.inputs[0].name: np.full((1, 640), i, np.int8)} for i in range(2)]
    (whole,) = stack_batch(network, samples).values()
    assert whole[:, 0].tolist() == [0, 1, 1, 1] and network.sample[0].shape == (1, 640)
