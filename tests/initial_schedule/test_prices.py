"""Prices of tilings: simulations with a limit, and tilings that are shared between compilations."""

import random
from functools import partial
from math import inf

import numpy as np
import pytest

from compiler.cache.model_source import ModelSource
from compiler.initial_schedule import initial
from compiler.initial_schedule.initial import estimates, initial_schedule, ranked_tilings, tiling_contexts
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.layers.base import Layer
from compiler.layers.registry import kind_of
from compiler.layers.tile_pipeline import simulate_pipeline
from compiler.layers.tiling_context import LayerContext
from compiler.lowering.lower import LoweredNetwork
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.schedule.schedule import LayerSchedule
from compiler.util.lru_cache import LruCache
from hw.config import load_target
from tests.support.graphs import Draft
from tests.support.trained_networks import model


def cycles(
    layer: Layer, schedule: LayerSchedule, place: LayerContext, before: float | None, limit: float
) -> float:
    """Return the simulated cycles of a layer, infinite if they exceed the limit."""
    pipeline = kind_of(layer).tile_model(layer, schedule, place)
    return simulate_pipeline(
        pipeline, place.beat, place.dram.chip_latency, before, last=False, limit=limit
    ).total


@pytest.mark.parametrize("name", ["kws_ref_model", "pretrainedResnet_quant"])
@pytest.mark.parametrize("before", [None, 0.0, 1000.0])
def test_simulations_end_at_the_limit(name: str, before: float | None) -> None:
    """The total is the same if it does not exceed the limit, and infinite if it does."""
    config, rng, network = load_target("n16"), random.Random(17), lowered(ModelSource(model(name)).graph)
    ended = 0
    for layer, context in zip(network.layers, tiling_contexts(config, network), strict=True):
        place = LayerContext(config, context.dram, context.x_on_chip, context.y_on_chip, context.on_chip)
        found = ranked_tilings(context, layer)
        for _, schedule in rng.sample(found, min(len(found), 6)):
            total = partial(cycles, layer, schedule, place, before)
            whole = total(inf)
            assert total(whole) == total(1.2 * whole) == whole
            short = [total(share * whole) for share in (0.5, 0.9, 0.999)]
            assert all(each in (whole, inf) for each in short)  # some bounds are known only at the end
            ended += short[0] == inf
    assert ended > 20


def product(zeros: int) -> Graph:
    """Return a product of a batch with weights that are zero for the first inputs."""
    draft = Draft(np.random.default_rng(3))
    x = draft.input((64, 1088))
    weights = draft.constant((96, 1088), quantization=Quantization.per_tensor(0.01))
    assert weights.data is not None
    weights.data[:, :zeros] = 0
    draft.graph.outputs = [draft.node("dense", [x, weights], (64, 96), scale=1.0).name]
    return draft.graph


def lowered(graph: Graph) -> LoweredNetwork:
    prepared = ModelCompiler(graph, load_target("n16"), CompileOptions(rounding="reference"))
    return prepared.lowered(prepared.fusions)[0]


def test_tilings_are_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks with equal layers share their tilings; layers with other weights have their own."""
    asked = []

    def counted(context, layer):
        asked.append(layer.name)
        return ranked_tilings(context, layer)

    monkeypatch.setattr(initial, "ranked_tilings", counted)
    config = load_target("n16")
    dense, sparse = lowered(product(0)), lowered(product(512))
    again = lowered(product(0))
    first = initial_schedule(config, dense, ())
    asked.clear()
    (known,) = initial_schedule(config, again, ()).layers.values()
    assert [known] == list(first.layers.values()) and not asked
    other = initial_schedule(config, sparse, ())
    # The result does not depend on what was compiled before.
    for network, schedule in ((sparse, other), (dense, first)):
        monkeypatch.setattr(initial, "_chosen", LruCache(10))
        initial._alone.cache_clear()
        asked.clear()
        assert initial_schedule(config, network, ()).layers == schedule.layers and len(asked) == 1
    assert initial_schedule(config, sparse, ()).layers == other.layers and len(asked) == 2


@pytest.mark.parametrize("narrow", [1, 3])
def test_layers_of_few_bits_have_estimates_of_their_own(narrow: int) -> None:
    """Layers of one shape differ if MATRIX multiplies the weights of one of them at twice the rate."""
    draft = Draft(np.random.default_rng(0))
    x = draft.input((1, 12, 12, 32))
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    for number in range(5):
        data = draft.rng.integers(-8, 8, (32, 3, 3, 32)).astype(np.int8)
        data *= 1 if number == narrow else 12
        weights = Tensor(f"w{number}", data.shape, "int8", Quantization.per_tensor(0.01, 0), data)
        x = draft.node("conv2d", [x, draft.graph.add_tensor(weights)], x.shape, scale=1.0, **window)
    graph = draft.graph.finish([x.name])
    found = [taken for taken, _ in estimates(load_target("n16"), lowered(graph)).values()]
    others = [taken for number, taken in enumerate(found) if number != narrow]
    assert found[narrow] < 0.7 * min(others)
