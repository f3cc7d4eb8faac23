"""Concatenations, slices and pads of a few channels equal the host's, and their cycles stay near those of the bus."""

from typing import Any

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.tensor import Tensor
from compiler.reference import evaluate
from compiler.runtime.session import Session, dram_bytes
from cosim.rtl.rtl_device import RtlDevice
from hw.isa.enums import Unit
from tests.layers.test_moves import commands_of
from tests.support.graphs import Draft, check

Shape = tuple[int, ...]


def concat(draft: Draft, pixels: Shape, parts: list[int], dtype: str = "int8") -> Tensor:
    """Add a concatenation of channels."""
    first = draft.input((*pixels, parts[0]), dtype)
    others = [
        draft.graph.add_input(Tensor(f"part{number}", (*pixels, each), dtype, first.quantization))
        for number, each in enumerate(parts[1:])
    ]
    made, axis = (*pixels, sum(parts)), len(pixels)
    return draft.node("concat", [first, *others], made, like=first, dtype=dtype, axis=axis)


def part(
    draft: Draft, pixels: Shape, channels: int, start: int, size: int, step: int = 1, dtype: str = "int8"
) -> Tensor:
    """Add a slice of channels."""
    x, none, ones = draft.input((*pixels, channels), dtype), (0,) * len(pixels), (1,) * len(pixels)
    limits: dict[str, Any] = {"starts": (*none, start), "sizes": (*pixels, size), "steps": (*ones, step)}
    return draft.node("slice", [x], (*pixels, size), like=x, dtype=dtype, **limits)


def pad(draft: Draft, pixels: Shape, channels: int, before: int, after: int, dtype: str = "int8") -> Tensor:
    """Add a pad of channels."""
    x, made = draft.input((*pixels, channels), dtype), (*pixels, before + channels + after)
    pads = (*((0, 0) for _ in pixels), (before, after))
    return draft.node("pad", [x], made, like=x, dtype=dtype, pads=pads, value=0.0)


def _random(draft: Draft, rng: np.random.Generator, dtype: str) -> Tensor:
    kind = rng.integers(3)
    shape = (int(rng.integers(1, 4)), int(rng.integers(20, 50)), int(rng.integers(20, 50)))
    pixels = shape if rng.random() < 0.7 else shape[1:]
    if kind == 0:
        return concat(draft, pixels, [int(rng.integers(1, 25)) for _ in range(rng.integers(2, 5))], dtype)
    channels = int(rng.integers(2, 25))
    if kind == 1:
        step = int(rng.choice([1, 1, 2, 3]))
        size = int(rng.integers(1, (channels - 1) // step + 2))
        start = int(rng.integers(0, channels - (size - 1) * step))
        return part(draft, pixels, channels, start, size, step, dtype)
    before, after = (int(each) for each in rng.integers(0, 9, 2))
    return pad(draft, pixels, channels, before, after + (before == 0), dtype)


@pytest.mark.parametrize("target", ["n4", "n8", "n16", "n32"])
def test_random_shapes_equal_the_host(target: str, rng: np.random.Generator) -> None:
    for _ in range(5):
        draft = Draft(rng)
        check(draft, [_random(draft, rng, str(rng.choice(["int8", "uint8"])))], target)


def test_elements_of_two_bytes_and_permuted_channels(rng: np.random.Generator) -> None:
    draft = Draft(rng)
    check(draft, [concat(draft, (40, 41), [3, 5], "int16")], "n16")
    assert any(command.unit == Unit.MATRIX for command in commands_of(draft.graph, "n16"))
    draft = Draft(rng)
    x = draft.input((1, 50, 51, 7))
    order = np.array([3, 0, 6, 5, 1, 2, 4], np.int32)
    indices = draft.graph.add_tensor(Tensor("indices", order.shape, "int32", None, order))
    check(draft, [draft.node("gather", [x, indices], x.shape, like=x, axis=3)], "n16")
    assert any(command.unit == Unit.MATRIX for command in commands_of(draft.graph, "n16"))


#: Case, and minimum share of (bytes of inputs and result / 16) / cycles.
SHARES = (
    (lambda draft: concat(draft, (1, 56, 56), [8, 8]), 0.91),
    (lambda draft: concat(draft, (1, 80, 80), [4, 4]), 0.91),
    (lambda draft: concat(draft, (1, 90, 90), [3, 4]), 0.89),
    (lambda draft: concat(draft, (3, 37, 37), [5, 7], "uint8"), 0.89),
    (lambda draft: concat(draft, (1, 34, 34), [20, 24]), 0.93),
    (lambda draft: concat(draft, (2, 41, 41), [5, 5, 5]), 0.81),
    (lambda draft: concat(draft, (1, 38, 38), [12, 12, 12]), 0.85),
    (lambda draft: concat(draft, (1, 50, 50), [5, 6, 7, 3]), 0.75),
    (lambda draft: concat(draft, (1, 26, 26), [20] * 4), 0.93),
    (lambda draft: concat(draft, (1, 64, 64), [4, 4, 4]), 0.76),
    (lambda draft: concat(draft, (1, 56, 57), [4, 4, 4, 4]), 0.61),
    (lambda draft: part(draft, (1, 90, 91), 8, 4, 4), 0.92),
    (lambda draft: part(draft, (1, 64, 66), 12, 2, 4, 2), 0.87),
    (lambda draft: pad(draft, (1, 80, 80), 3, 0, 5), 0.90),
    (lambda draft: pad(draft, (1, 90, 90), 5, 1, 0), 0.90),
    (lambda draft: pad(draft, (4, 60, 57), 3, 0, 1, "uint8"), 0.93),
    (lambda draft: pad(draft, (1, 47, 47), 20, 2, 2), 0.91),
)


@pytest.mark.parametrize(("make", "share"), SHARES)
def test_share_of_the_bus(make, share: float) -> None:
    draft = Draft(np.random.default_rng(0))
    y = make(draft)
    graph = draft.graph.finish([y.name])
    network, inputs = compile(graph, "n16"), draft.random_inputs()
    with RtlDevice(network.config, dram_bytes(network)) as device:
        outputs, cycles = Session(device, network).measure(inputs)
    assert np.array_equal(outputs[y.name], evaluate(graph, inputs)[y.name])
    limit = sum(tensor.elements for tensor in graph.tensors.values()) / 16
    print(f"{[tensor.shape for tensor in graph.tensors.values()]}: {cycles:,} cycles, {limit / cycles:.1%}")
    assert limit / cycles >= share
