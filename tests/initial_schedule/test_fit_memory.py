"""Schedules that exceed the machine's memories are reduced until they fit."""

from typing import Any

import numpy as np
import pytest

from compiler.codegen.buffer_allocation import MemoryFullError
from compiler.codegen.executable import StageExecutable
from compiler.commands.commands import BufferMemory
from compiler.initial_schedule import fit_memory as fitting
from compiler.ir.tensor import Tensor
from compiler.schedule.schedule import Schedule
from tests.support.graphs import Draft, check


def test_residual_without_room_next_to_large_weights_moves_to_dram(rng: np.random.Generator) -> None:
    draft = Draft(rng)

    def conv(x: Tensor, outputs: int) -> Tensor:
        weights = draft.constant((outputs, 1, 1, x.shape[3]))
        made = (1, 7, 7, outputs)
        return draft.node(
            "conv2d",
            [x, weights],
            made,
            scale=40.0,
            strides=(1, 1),
            dilations=(1, 1),
            pads=(0, 0, 0, 0),
            groups=1,
        )

    def block(x: Tensor) -> Tensor:
        inner = conv(x, 960)
        weights = draft.constant((3, 3, 960), quantization=draft.quantization().per_tensor(0.1))
        inner = draft.node(
            "depthwise_conv2d",
            [inner, weights],
            inner.shape,
            scale=40.0,
            strides=(1, 1),
            dilations=(1, 1),
            pads=(1, 1, 1, 1),
        )
        return draft.node("add", [conv(inner, 160), x], x.shape, scale=40.0)

    x = conv(draft.input((1, 7, 7, 64)), 160)
    first = block(x)
    second = block(first)
    network = check(draft, [conv(second, 960)], "n16")
    assert not all(each.on_chip for name, each in network.schedule.layers.items() if name != "n1")


@pytest.mark.parametrize("columns", [256, 384])
def test_parameters_of_a_norm_leave_slots_to_adjacent_layers(columns: int) -> None:
    """The parameters of 256 columns would fill all slots of n4, and so would two parts of those of 384 columns."""
    draft = Draft(np.random.default_rng(columns))

    def dense(x: Tensor) -> Tensor:
        weights = draft.constant((columns, x.shape[-1]), quantization=draft.quantization(0.01))
        return draft.node("dense", [x, weights], (9, columns), scale=30.0)

    x = dense(draft.input((9, 64)))
    normalized = draft.node("layer_norm", [x], x.shape, scale=4 / 127, axis=1, epsilon=1e-5)
    network = check(draft, [dense(normalized)], "n4", within=1)
    assert not network.host
    (schedule,) = (network.schedule.layers[info.name] for info in network.infos if "layer_norm" in info.ops)
    assert schedule.param_blocks == network.config.param_slots // 4


def test_attempts_do_not_depend_on_the_length_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts, generate = [0], fitting.generate

    def counted(*given: Any) -> StageExecutable:
        attempts[0] += 1
        return generate(*given)

    monkeypatch.setattr(fitting, "generate", counted)
    draft = Draft(np.random.default_rng(1))  # with other quantizations, the first 8 attempts may suffice
    x, other = draft.input((1, 1, 1, 4)), draft.input((1, 1, 1, 4))
    for _ in range(250):  # one table per layer is too much for any schedule
        x = draft.node("sigmoid", [draft.node("add", [x, other], x.shape)], x.shape)
    check(draft, [x], "n16")
    assert 8 < attempts[0] < 24


def test_layers_where_memory_is_not_full_keep_their_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """After many attempts, only the prefetching of other layers is reduced as well."""
    tried: list[Schedule] = []
    generate = fitting.generate

    def full(config: Any, lowered: Any, schedule: Schedule, *rest: Any) -> StageExecutable:
        tried.append(schedule)
        if len(tried) < 18:
            raise MemoryFullError("no room", BufferMemory.SP, 0, 0, (), (list(schedule.layers)[3],))
        return generate(config, lowered, schedule, *rest)

    monkeypatch.setattr(fitting, "generate", full)
    draft = Draft(np.random.default_rng(0))
    x = draft.input((1, 28, 28, 16))
    for _ in range(7):
        weights = draft.constant((16, 3, 3, 16))
        window = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
        x = draft.node("conv2d", [x, weights], x.shape, scale=40.0, **window)
    network = check(draft, [x], "n16")
    first, last = tried[0].layers, network.schedule.layers
    smaller = [name for name in first if last[name].rows < first[name].rows]
    fourth = list(first)[3]
    assert smaller == [fourth] and last[fourth].rows == 1
    assert {each.prefetch for each in last.values()} == {0}
