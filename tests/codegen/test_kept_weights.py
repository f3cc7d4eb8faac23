"""Weights that several layers use stay in the scratchpad: exact results, fewer loads, and few cycles on the RTL."""

from dataclasses import replace

import numpy as np
import pytest

from compiler.api import compile
from compiler.codegen.buffer_allocation import MemoryFullError
from compiler.commands.commands import BufferMemory, Command
from compiler.initial_schedule import initial
from compiler.initial_schedule.fit_memory import fit
from compiler.initial_schedule.initial import initial_schedule
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.reference import evaluate
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.isa.enums import Unit
from tests.layers.test_moves import commands_of
from tests.support.graphs import Draft, run_on


def chain(draft: Draft, rows: int, size: int, steps: int, matrices: int = 1) -> Graph:
    """Return a chain of products of some rows with one or several square matrices in turn."""
    x = draft.input((rows, size))
    weights = [
        draft.constant((size, size), quantization=Quantization.per_tensor(0.005)) for _ in range(matrices)
    ]
    for step in range(steps):
        x = draft.node("dense", [x, weights[step % matrices]], (rows, size), scale=0.005 * 74 * size**0.5)
    return draft.graph.finish([x.name])


def loaded(commands: list[Command]) -> int:
    """Return the bytes that commands load."""
    fields = [command.fields for command in commands if command.unit == Unit.LOAD]
    return sum(each["len"] * each.get("y_count", 1) * each.get("z_count", 1) for each in fields)  # type: ignore[operator]


@pytest.mark.parametrize("target", ["n4", "n8", "n16", "n32"])
def test_random_chains(target: str, rng: np.random.Generator) -> None:
    for _ in range(5):
        draft = Draft(rng)
        rows, size = int(rng.integers(1, 5)), int(rng.integers(20, 150))
        graph = chain(draft, rows, size, int(rng.integers(2, 6)), int(rng.integers(1, 3)))
        first = compile(graph, target).schedule
        layers = {
            name: replace(
                layer,
                kept_weights=int(rng.integers(0, 9)) if rng.random() < 0.3 else layer.kept_weights,
                interleave=bool(rng.random() < 0.2),
            )
            for name, layer in first.layers.items()
        }
        inputs = draft.random_inputs()
        wanted = evaluate(graph, inputs)
        for schedule in (first, replace(first, layers=layers)):
            try:
                network = compile(graph, target, schedule=schedule)
            except MemoryFullError as error:
                assert error.memory == BufferMemory.SLOT and schedule is not first, error
                continue  # interleaved layers have their parameters at the same time
            with GoldenDevice(network.config, dram_bytes(network)) as device:
                found = run_on(device, network, inputs)
            assert all(np.array_equal(array, wanted[name]) for name, array in found.items())


@pytest.mark.parametrize(
    ("size", "steps", "matrices", "share"),
    [(256, 8, 1, 1), (192, 6, 2, 1), (512, 4, 1, 1 / 2), (384, 6, 2, 1 / 2)],
)
def test_weights_are_loaded_once(size: int, steps: int, matrices: int, share: float) -> None:
    """A share of the weights stays, if not all of them fit, and MATRIX takes little more than its minimum."""
    draft = Draft(np.random.default_rng(0))
    graph = chain(draft, 1, size, steps, matrices)
    weights = size * size * (steps - share * (steps - matrices))
    found = loaded(commands_of(graph, "n16"))
    assert weights <= found <= 1.02 * weights + 9 * size * steps + size

    network, inputs = compile(graph, "n16"), draft.random_inputs()
    with RtlDevice(network.config, dram_bytes(network)) as device:
        outputs, cycles = Session(device, network).measure(inputs)
    wanted = evaluate(graph, inputs)
    assert all(np.array_equal(array, wanted[name]) for name, array in outputs.items())
    limit = size * size * (matrices / 16 + (steps - matrices) / 32)  # of the first layers by the bus
    print(f"{steps} x {size} x {size}: {cycles:,} cycles, {cycles / limit:.2f} times the limit")
    assert cycles <= 1.2 * limit + 200 * steps


def test_weights_without_room_are_loaded_again(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """An initial schedule that keeps more weights than fit is relaxed."""
    monkeypatch.setattr(initial, "_RESIDENT", 10.0)
    draft = Draft(rng)
    graph = chain(draft, 2, 640, 3)
    network, inputs = compile(graph, "n16"), draft.random_inputs()
    assert not any(layer.kept_weights for layer in network.schedule.layers.values())
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = run_on(device, network, inputs)
    assert all(np.array_equal(array, evaluate(graph, inputs)[name]) for name, array in found.items())


def test_schedules_that_keep_too_many_weights_are_relaxed() -> None:
    draft = Draft(np.random.default_rng(0))
    graph = chain(draft, 2, 640, 3)
    options = CompileOptions(rounding="reference")
    model = ModelCompiler(graph, load_target("n16"), options)
    (stage,) = model.lowered(())
    schedule = initial_schedule(model.config, stage, ())
    layers = {name: replace(layer, kept_weights=1 << 16) for name, layer in schedule.layers.items()}
    relaxed, _ = fit(model.config, stage, replace(schedule, layers=layers), (0, len(layers)))
    assert not any(layer.kept_weights for layer in relaxed.layers.values())
