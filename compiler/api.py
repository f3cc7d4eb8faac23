"""Compile a model, call it with numpy arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.network import Code, generate
from compiler.frontends.model import read_model
from compiler.ir.graph import Graph
from compiler.lower.groups import find_fusions, group
from compiler.lower.layer import Layer
from compiler.lower.lower import ROUNDINGS, Lowered, lower
from compiler.lower.partition import Part, partition
from compiler.passes import simplify
from compiler.schedule.fit import fit
from compiler.schedule.heuristic import first_schedule
from compiler.schedule.schedule import Schedule
from cosim.golden import GoldenDevice
from hw.config import MlaConfig, load_target
from hw.errors import InputError, shown


@dataclass(frozen=True, eq=False)
class Stage:
    """Nodes that run in one go.

    Parameters
    ----------
    graph : Graph
        They, with what comes in and what goes out.
    lowered, code : Lowered, Code or None
        Their layers and programs; None: they run on the host.
    """

    graph: Graph
    lowered: Lowered | None
    code: Code | None


@dataclass(frozen=True, eq=False)
class Network:
    """A compiled model.

    Parameters
    ----------
    graph : Graph
        The model after all passes.
    config : MlaConfig
        The machine it is for.
    stages : tuple of Stage
        What runs on the accelerator and on the host, in turn.
    schedule : Schedule
        How the layers are carried out.
    host : dict
        Nodes that run on the host, with the reason.
    rounding : str
        Whose rounding its outputs have: one of ROUNDINGS.
    """

    graph: Graph
    config: MlaConfig
    stages: tuple[Stage, ...]
    schedule: Schedule
    host: dict[str, str]
    rounding: str

    @property
    def layers(self) -> list[Layer]:
        """Layers of all stages."""
        return [layer for stage in self.stages if stage.lowered for layer in stage.lowered.layers]

    @property
    def codes(self) -> list[Code]:
        """Code of the stages on the accelerator."""
        return [stage.code for stage in self.stages if stage.code]

    def __call__(self, *inputs: NDArray, **named: NDArray) -> dict[str, NDArray]:
        """Outputs by name for one sample, from the golden model.

        Raises
        ------
        InputError
            An input is missing, or not of the model's shape and type.
        """
        from compiler.runtime import Session, dram_bytes

        positional = dict(zip(self.graph.inputs, inputs, strict=False))
        with GoldenDevice(self.config, dram_bytes(self)) as device:
            return Session(device, self).run(positional | named)

    def check(self, inputs: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """The inputs in the model's order.

        Raises
        ------
        InputError
            One is missing, unknown, or not of the model's shape and type.
        """
        unknown = inputs.keys() - set(self.graph.inputs)
        if unknown or len(inputs) < len(self.graph.inputs):
            raise InputError(
                f"inputs must be {', '.join(self.graph.inputs)}, not {', '.join(inputs) or 'none'}"
            )
        out = {}
        for name in self.graph.inputs:
            tensor, array = self.graph.tensors[name], np.asarray(inputs[name])
            if array.shape != tensor.shape or array.dtype != tensor.dtype:
                raise InputError(
                    f"input {name!r} must be {tensor.dtype}{list(tensor.shape)}, not "
                    f"{array.dtype}{list(array.shape)}"
                )
            out[name] = array
        return out


def compile(
    model: Path | str | Graph,
    target: str | MlaConfig = "n16",
    *,
    rounding: str = "reference",
    schedule: Schedule | None = None,
    strict: bool = False,
) -> Network:
    """Compile a model for a machine.

    Parameters
    ----------
    model : path or Graph
        A model's file, or its graph.
    target : str or MlaConfig
        The machine.
    rounding : str
        "reference": LiteRT's reference kernels; "xnnpack": its default ones.
    schedule : Schedule or None
        How to carry it out; found by estimates if left out.
    strict : bool
        Refuse a model of which a node must run on the host.

    Raises
    ------
    InputError
        The model cannot be read or compiled, or the schedule is not legal for it.
    """
    if rounding not in ROUNDINGS:
        raise InputError(f"rounding must be {' or '.join(ROUNDINGS)}, not {shown(rounding)}")
    config = load_target(target) if isinstance(target, str) else target
    graph = simplify(model if isinstance(model, Graph) else read_model(Path(model)))
    parts, host = partition(graph, rounding)
    if host and strict:
        lines = "; ".join(f"{name} ({graph.nodes[name].op}): {why}" for name, why in host.items())
        raise InputError(f"{graph.name}: not for the accelerator: {lines}")
    return _Compilation(config, graph, parts, rounding, schedule).network(host)


class _Compilation:
    """The stages of one model on their way to code."""

    def __init__(
        self, config: MlaConfig, graph: Graph, parts: list[Part], rounding: str, schedule: Schedule | None
    ):
        self.config, self.graph, self.parts, self.rounding = config, graph, parts, rounding
        self.given = schedule
        device = [part.graph for part in parts if part.device]
        self.fusions = tuple(f for each in device for f in find_fusions(each))
        if schedule is not None:
            self.fusions = schedule.fusions
            known = {name for each in device for name in each.nodes}
            for name in (name for names in self.fusions for name in names):
                if name not in known:
                    raise InputError(
                        f"schedule: fusion of {name!r}: there is no such node on the accelerator"
                    )

    def network(self, host: dict[str, str]) -> Network:
        """Everything compiled."""
        lowered = {id(part): self._lower(part.graph) for part in self.parts if part.device}
        count, before = sum(len(each.layers) for each in lowered.values()), 0
        stages, layers = [], {}
        for part in self.parts:
            its = lowered.get(id(part))
            code = None
            if its:
                schedule, code = self._code(its, (before, count))
                layers |= schedule.layers
                before += len(its.layers)
            stages.append(Stage(part.graph, its, code))
        schedule = self.given or Schedule(self.fusions, layers)
        return Network(self.graph, self.config, tuple(stages), schedule, host, self.rounding)

    def _lower(self, graph: Graph) -> Lowered:
        inside = [names for names in self.fusions if names[0] in graph.nodes]
        lowered = lower(graph, group(graph, inside), self.rounding)
        if lowered.refused:
            lines = "; ".join(f"{name}: {why}" for name, why in lowered.refused.items())
            raise InputError(f"schedule: its fusions cannot be carried out: {lines}")
        return lowered

    def _code(self, lowered: Lowered, numbers: tuple[int, int]) -> tuple[Schedule, Code]:
        if self.given is not None:
            return self.given, generate(self.config, lowered, self.given, numbers)
        return fit(self.config, lowered, first_schedule(self.config, lowered, self.fusions), numbers)
