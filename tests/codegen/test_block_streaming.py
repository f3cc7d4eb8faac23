"""Tests of results streamed in channel blocks to a depthwise convolution, and in blocks of rows through a softmax:
outputs, rejected schedules, cycles.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compiler.api import compile
from compiler.initial_schedule.block_streaming import apply, attentions, streaming_pairs
from compiler.initial_schedule.initial import attention_tilings, initial_schedule, tiling_contexts
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization
from compiler.options import CompileOptions, DramTiming, MemoryLimits
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from compiler.schedule.schedule import Schedule
from compiler.tuning.measure.measurer import Measurer
from cosim.golden import GoldenDevice
from hw.config import load_target
from hw.errors import InputError
from tests.support.graphs import Draft, attention

OPTIONS = CompileOptions(rounding="reference")
EVEN = Quantization.per_tensor(0.05, 0)


def pair(
    seed: int, size: tuple[int, int], channels: tuple[int, int], kernel: int, stride: int, own: int = 1
) -> Draft:
    """Build a convolution with a kernel of `own` x `own`, followed by a depthwise convolution."""
    draft = Draft(np.random.default_rng(seed))
    (h, w), (c, wide) = size, channels
    plain: dict[str, Any] = {"strides": (1, 1), "pads": (own // 2,) * 4, "dilations": (1, 1), "groups": 1}
    x = draft.input((1, h, w, c))
    t = draft.node("conv2d", [x, draft.constant((wide, own, own, c))], (1, h, w, wide), **plain)
    pad = kernel // 2
    out = (1, (h + 2 * pad - kernel) // stride + 1, (w + 2 * pad - kernel) // stride + 1, wide)
    window: dict[str, Any] = {"strides": (stride, stride), "pads": (pad,) * 4, "dilations": (1, 1)}
    y = draft.node(
        "depthwise_conv2d", [t, draft.constant((kernel, kernel, wide), quantization=EVEN)], out, **window
    )
    draft.graph.finish([y.name])
    return draft


def outputs(network: CompiledNetwork, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        return Session(device, network).run(inputs)


SHAPES = [
    ((9, 7), (8, 40), 3, 1, 1),
    ((12, 10), (5, 24), 3, 2, 1),
    ((8, 8), (3, 33), 5, 1, 3),
    ((11, 5), (16, 64), 3, 1, 3),
    ((6, 6), (4, 7), 3, 2, 1),
    ((9, 12), (6, 10), 7, 1, 1),
    ((13, 9), (4, 20), 5, 2, 1),
]


@pytest.mark.parametrize("target", ["n4", "n8", "n16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_equal_the_host(shape: tuple, target: str) -> None:
    draft, config = pair(7, *shape), load_target(target)
    prepared = ModelCompiler(draft.graph, config, OPTIONS)
    first = prepared.network().schedule
    (lowered,) = prepared.lowered(first.fusions)
    pairs = streaming_pairs(lowered, tiling_contexts(config, lowered))
    assert list(pairs) == [0]
    candidates = pairs[0].candidates()
    inputs = draft.random_inputs()
    wanted = evaluate(draft.graph, inputs, rounding="reference")
    ran = 0
    for fused in candidates[:: max(len(candidates) // 6, 1)]:
        try:
            network = prepared.network(apply(first, pairs[0], fused))
        except InputError as error:
            assert "does not fit" in str(error)
            continue
        ran += 1
        found = outputs(network, inputs)
        for name, array in wanted.items():
            assert np.array_equal(found[name], array), f"{shape} {target}: {fused}"
    assert ran


def schedule_of(draft: Draft, **changes: Any) -> tuple[Graph, Schedule]:
    """Return a graph and a schedule that streams channel blocks; `changes` apply to the first layer."""
    network = compile(draft.graph, "n8")
    first, second = (layer.name for layer in network.layers[:2])
    layers = dict(network.schedule.layers)
    layers[first] = replace(
        layers[first], **({"order": "channels", "columns": 1, "stream_channel_blocks": 1} | changes)
    )
    layers[second] = replace(layers[second], columns=1)
    return draft.graph, replace(network.schedule, layers=layers)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": "rows"}, 'its order must be "channels"'),
        ({"columns": 2, "stream_channel_blocks": 2}, "columns of both layers must be equal"),
        ({"interleave": True}, "an interleaved schedule"),
    ],
)
def test_invalid_schedules_are_rejected_with_a_reason(changes: dict[str, Any], message: str) -> None:
    graph, schedule = schedule_of(pair(3, (8, 8), (8, 40), 3, 1), **changes)
    with pytest.raises(InputError, match=rf"schedule: layer '.*' cannot stream channel blocks: .*{message}"):
        compile(graph, "n8", schedule=schedule)


def test_only_a_single_depthwise_reader_can_be_streamed_to() -> None:
    draft = pair(3, (8, 8), (8, 40), 3, 1)
    name = next(node.outputs[0] for node in draft.graph if node.op == "conv2d")
    graph, schedule = schedule_of(draft)
    graph.finish([*graph.outputs, name])
    with pytest.raises(InputError, match="its result has other uses"):
        compile(graph, "n8", schedule=schedule)
    graph, schedule = schedule_of(pair(3, (8, 8), (8, 40), 3, 1))
    last = compile(graph, "n8").layers[1].name
    layers = schedule.layers | {last: replace(schedule.layers[last], stream_channel_blocks=1)}
    with pytest.raises(InputError, match="it is not a convolution of one group and one image"):
        compile(graph, "n8", schedule=replace(schedule, layers=layers))


def test_streamed_result_does_not_cross_the_bus() -> None:
    """A streamed result that exceeds the scratchpad is not written to DRAM, even if DRAM moves half a row per cycle."""
    draft, target, limits = pair(5, (32, 32), (8, 64), 3, 1), load_target("n8"), MemoryLimits(sp_bytes=32768)
    config, dram = limits.within(target), DramTiming(bytes_per_cycle=4.0)
    options = replace(OPTIONS, limits=limits)
    with Measurer(draft.graph, HardwareProfile(target, dram), options) as measurer:
        first = measurer.first.schedule
        (lowered,) = measurer.prepared.lowered(first.fusions)
        (fusible,) = streaming_pairs(lowered, tiling_contexts(config, lowered, dram)).values()
        initial = measurer.baseline()
        tried = measurer.measure([apply(first, fusible, fused) for fused in fusible.candidates()[:4]])
        together = [each for each in tried if isinstance(each, Measurement)]
    between, image = 32 * 32 * 64, 32 * 32 * 8
    assert together and all(each.exact for each in together)
    # The image may be loaded for each of the eight blocks; the result is as large as the intermediate tensor.
    for found in (initial.dram_bytes, min(each.dram_bytes for each in together)):
        assert found <= 8 * image + between + 4096
    assert min(each.cycles for each in together) <= initial.cycles


def attention_networks(
    target: str, shape: tuple[int, int, int, int], **form: Any
) -> tuple[list[CompiledNetwork], dict[str, np.ndarray]]:
    """Return attention of (heads, rows, columns, depth), compiled for a target with some of the tilings that stream
    blocks of rows, and inputs.
    """
    draft, config = Draft(np.random.default_rng(sum(shape))), load_target(target)
    draft.graph.finish([attention(draft, *shape, **form).name])
    prepared = ModelCompiler(draft.graph, config, OPTIONS)
    (lowered,) = prepared.lowered(prepared.fusions)
    assert attentions(lowered) == [0]
    tilings = attention_tilings(config, lowered, 0)
    names = [layer.name for layer in lowered.layers]
    networks = [
        prepared.network(Schedule(prepared.fusions, dict(zip(names, each.schedules, strict=True))))
        for each in tilings[:: max(len(tilings) // 2, 1)]
    ]
    return networks, draft.random_inputs()


def streams(network: CompiledNetwork) -> list[int]:
    """Return the number of blocks in the scratchpad of each layer's result; 0 for results that are not streamed."""
    return [network.schedule.layers[layer.name].stream_row_blocks for layer in network.layers]


def rescheduled(network: CompiledNetwork, stream_row_blocks: int = 2, **changes: Any) -> CompiledNetwork:
    """Return a network with changes of the schedules of all layers, and of the blocks of those that stream them."""
    layers = {
        name: replace(each, stream_row_blocks=stream_row_blocks if each.stream_row_blocks else 0, **changes)
        for name, each in network.schedule.layers.items()
    }
    assert network.graph is not None
    return compile(network.graph, network.config, schedule=replace(network.schedule, layers=layers))


def stored_bytes(network: CompiledNetwork) -> int:
    """Return the bytes of intermediate tensors in DRAM."""
    return sum(code.memory - len(code.image) for code in network.codes)


ATTENTION = [
    ((2, 33, 40, 16), {}),
    ((3, 50, 17, 9), {"transpose": False}),
    ((2, 70, 70, 20), {"tokens": True}),
    ((1, 24, 200, 32), {}),
    ((4, 20, 25, 8), {"tokens": True}),
    ((2, 33, 40, 16), {"mask": (1, 1, 1, 40)}),
    ((3, 50, 17, 9), {"mask": (1, 1, 50, 17), "transpose": False}),
    ((2, 70, 70, 20), {"mask": (70, 70), "tokens": True, "constant": True}),
    ((3, 24, 100, 32), {"mask": (3, 24, 100)}),
    ((4, 20, 25, 8), {"mask": (1, 4, 1, 25)}),
    ((2, 20, 25, 8), {"mask": (3, 1, 1, 25), "batch": 3, "tokens": True}),
]


@pytest.mark.random_cases("target")
@pytest.mark.parametrize("target", ["n4", "n8", "n16", "n32"])
@pytest.mark.parametrize(("shape", "form"), ATTENTION, ids=str)
def test_attention_is_streamed_in_blocks_of_rows(
    target: str, shape: tuple[int, int, int, int], form: dict[str, Any]
) -> None:
    """Outputs equal those without streams, and no scores are in DRAM."""
    networks, inputs = attention_networks(target, shape, **form)
    plain = rescheduled(networks[0], on_chip=False, interleave=False, stream_row_blocks=0)
    (wanted,) = outputs(plain, inputs).values()
    for network in networks:
        assert [count > 0 for count in streams(network)] == [True, True, False]
        assert stored_bytes(network) < 64 <= stored_bytes(plain)
        (found,) = outputs(network, inputs).values()
        assert np.array_equal(found, wanted)
    assert plain.graph is not None
    (real,) = evaluate(plain.graph, inputs).values()
    assert np.abs(wanted.astype(int) - real.reshape(wanted.shape)).max() <= 2


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(12))
def test_masked_scores_equal_those_of_separate_layers(seed: int) -> None:
    """Outputs of random attention, with masks of all broadcasts, equal those with one layer for each operator."""
    rng = np.random.default_rng(seed)
    batch, heads, rows, columns, depth = (int(rng.integers(1, high)) for high in (4, 5, 60, 90, 40))
    mask = *(int(rng.choice([1, size])) for size in (batch, heads, rows)), columns
    draft = Draft(rng)
    form = {"batch": batch, "mask": mask, "constant": bool(rng.integers(2))}
    y = attention(draft, heads, rows, columns, depth, **form)
    graph, inputs = draft.graph.finish([y.name]), draft.random_inputs()
    prepared = ModelCompiler(graph, load_target("n8"), OPTIONS)
    (lowered,) = prepared.lowered(())
    network = prepared.network()
    separate = prepared.network(initial_schedule(network.config, lowered, ()))
    print(f"seed {seed}: {y.shape}, {columns} columns, {form}, streams {streams(network)}")
    assert len(network.layers) == 3 < len(separate.layers)
    (found,), (wanted,) = outputs(network, inputs).values(), outputs(separate, inputs).values()
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(
    "changes",
    [
        {"interleave": False},
        {"rows": 7},
        {"stream_row_blocks": 1},
        {"order": "channels", "columns": 1 << 16},
        {"depth": 1, "acc_buffers": 1},
        {"columns": 1 << 16, "x_buffers": 1, "w_buffers": 1},
    ],
    ids=str,
)
def test_any_schedule_of_attention_gives_the_same_outputs(changes: dict[str, Any]) -> None:
    (network, *_), inputs = attention_networks("n8", (3, 41, 30, 20), tokens=True)
    (wanted,) = outputs(network, inputs).values()
    (found,) = outputs(rescheduled(network, **changes), inputs).values()
    assert np.array_equal(found, wanted)


def test_layers_of_attention_may_have_tiles_of_different_rows() -> None:
    (network, *_), inputs = attention_networks("n8", (2, 60, 40, 20))
    (wanted,) = outputs(network, inputs).values()
    layers = dict(network.schedule.layers)
    for layer, rows in zip(network.layers, (23, 9, 14), strict=True):
        layers[layer.name] = replace(layers[layer.name], rows=rows)
    assert network.graph is not None
    schedule = replace(network.schedule, layers=layers)
    (found,) = outputs(compile(network.graph, "n8", schedule=schedule), inputs).values()
    assert np.array_equal(found, wanted)


def test_results_in_dram_are_not_streamed() -> None:
    (network, *_), _ = attention_networks("n8", (2, 33, 40, 16))
    with pytest.raises(InputError, match="cannot stream blocks of rows: its result is not on chip"):
        rescheduled(network, on_chip=False)


def test_scores_with_other_readers_are_not_streamed() -> None:
    draft = Draft(np.random.default_rng(1))
    y = attention(draft, 2, 20, 20, 8)
    scores = next(node for node in draft.graph if node.op == "softmax").inputs[0]
    draft.graph.finish([y.name, scores])
    network = compile(draft.graph, "n8")
    assert streams(network) == [0, 0, 0]
    for number, why in ((0, "its result has other uses"), (2, "not a matrix product before a softmax")):
        name = network.layers[number].name
        layers = network.schedule.layers | {
            name: replace(network.schedule.layers[name], stream_row_blocks=2, on_chip=True)
        }
        with pytest.raises(InputError, match=f"cannot stream blocks of rows: .*{why}"):
            compile(draft.graph, "n8", schedule=replace(network.schedule, layers=layers))


def test_attention_is_not_streamed_if_its_blocks_do_not_fit() -> None:
    draft = Draft(np.random.default_rng(1))
    draft.graph.finish([attention(draft, 1, 30, 900, 16).name])
    assert any(streams(compile(draft.graph, "n16")))
    small = replace(load_target("n16"), sp_bytes=1 << 15)
    network, inputs = compile(draft.graph, small), draft.random_inputs()
    assert not any(streams(network))
    (found,) = outputs(network, inputs).values()
    (wanted,) = outputs(compile(draft.graph, "n16"), inputs).values()
    assert np.array_equal(found, wanted)
