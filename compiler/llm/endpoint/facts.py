"""What a model is told about a task, as text."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from enum import Enum
from typing import Any

from compiler.lower.layer import Image, Layer
from compiler.measure.measurement import LayerCycles
from compiler.schedule.schedule import LayerSchedule
from compiler.search.goals import Goal
from compiler.specialize.task import Task

#: Fields of a layer that are told in another way.
_TOLD = ("name", "nodes", "ops", "x", "y", "shapes", "macs")


def machine_facts(task: Task) -> str:
    """The machine and its memory."""
    config, dram = task.conditions.config, task.conditions.dram
    sizes = ", ".join(f"{item.name}={_plain(getattr(config, item.name))}" for item in fields(config))
    return (
        f"Machine (N = {config.n}, an array of {config.n}x{config.n}): {sizes}.\n"
        f"DRAM: {dram.latency} cycles from an address to its first beat, {task.conditions.rate:g} bytes a cycle, reads "
        "and writes together."
    )


def layer_facts(task: Task) -> str:
    """Each layer: what it computes, what that costs now and at least, and how it is carried out."""
    config = task.conditions.config
    floors = {info.name: info.floor.cycles(config, task.conditions.rate) for info in task.network.infos}
    lines = []
    for layer in task.network.layers:
        if layer.name in task.layers:
            lines.append(f"{_quoted(layer.name)}: {_described(layer)}")
            lines.append(f"  at least {floors[layer.name]:,} cycles by itself")
            lines.append(f"  schedule now: {schedule_text(task.schedule.layers[layer.name])}")
    return "\n".join(lines)


def profile_facts(task: Task) -> str:
    """Where the cycles went, and what is wanted."""
    entries = [entry for entry in task.measured.layers if set(entry.names) & set(task.layers)]
    lines = [f"{' + '.join(map(_quoted, entry.names))}: {cycles_text(entry)}" for entry in entries]
    unit, cost = cost_unit(task.goal), task.goal.cost(task.measured)
    return "\n".join([
        *lines,
        f"These layers are bound by: {task.bound}.",
        f"The whole network: {task.measured.cycles:,} cycles, {task.measured.energy_uj:.3f} uJ; nothing takes fewer "
        f"than {task.measured.floor:,} cycles. Goal: {task.goal.value}, now {cost:,.6g} {unit}; less is better.",
    ])  # fmt: skip


def schedule_fields() -> str:
    """What the fields of a layer's schedule mean."""
    text = inspect.getdoc(LayerSchedule) or ""
    defaults = ", ".join(f"{item.name}={_plain(item.default)}" for item in fields(LayerSchedule))
    return f"{text}\n\nDefaults: {defaults}."


def schedule_text(schedule: LayerSchedule, but: LayerSchedule | None = None) -> str:
    """A layer's schedule as JSON; only what is other than in `but`, if that is given."""
    before: Mapping[str, Any] = {} if but is None else asdict(but)
    return json.dumps({
        name: value for name, value in asdict(schedule).items() if but is None or before[name] != value
    })  # fmt: skip


def cycles_text(entry: LayerCycles) -> str:
    """Cycles of a layer by cause."""
    causes = ", ".join(f"{name} {value:,}" for name, value in entry.where.items() if value)
    return f"{entry.cycles:,} cycles ({causes})"


def cost_unit(goal: Goal) -> str:
    """What the cost is counted in."""
    return "uJ" if goal is Goal.ENERGY else "cycles"


def _described(layer: Layer) -> str:
    """A layer in a line: operators, tensors, and whatever is one number or a few."""
    more = {item.name: getattr(layer, item.name) for item in fields(layer) if item.name not in _TOLD}
    if "weights" in more:
        more["weights"] = "x".join(map(str, more["weights"].shape))
    told = [f"{name}={_plain(value)}" for name, value in more.items() if _small(value)]
    into = " and ".join(f"{_quoted(name)} {_image(layer.shapes.get(name))}" for name in layer.inputs)
    out = f"{_quoted(layer.y)} {_image(layer.shapes.get(layer.y))}"
    return f"{' + '.join(layer.ops)}, {into} -> {out}; {layer.macs:,} multiply-accumulates; {', '.join(told)}"


def _small(value: Any) -> bool:
    inner = value if isinstance(value, tuple) else (value,)
    return all(isinstance(each, (bool, int, float, str)) for each in inner)


def _image(image: Image | None) -> str:
    return "" if image is None else f"({image.h}x{image.w}x{image.c} {image.dtype.name.lower()})"


def _plain(value: Any) -> str:
    return value.name.lower() if isinstance(value, Enum) else str(value)


def _quoted(name: str) -> str:
    """A name of the model's, which may be anything, as JSON writes it."""
    return json.dumps(name)
