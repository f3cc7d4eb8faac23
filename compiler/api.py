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
from compiler.lower.lower import ROUNDINGS, Lowered, lower
from compiler.schedule.fit import fit
from compiler.schedule.heuristic import first_schedule
from compiler.schedule.schedule import Schedule
from cosim.golden import GoldenDevice
from hw.config import MlaConfig, load_target
from hw.errors import InputError, shown


@dataclass(frozen=True, eq=False)
class Network:
    """A compiled model.

    Parameters
    ----------
    graph : Graph
        The model.
    lowered : Lowered
        Its layers.
    schedule : Schedule
        How they are carried out.
    code : Code
        The programs.
    rounding : str
        Whose rounding its outputs have: one of ROUNDINGS.
    """

    graph: Graph
    lowered: Lowered
    schedule: Schedule
    code: Code
    rounding: str

    @property
    def config(self) -> MlaConfig:
        """The machine it is for."""
        return self.code.config

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

    def check(self, inputs: Mapping[str, NDArray]) -> list[NDArray]:
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
        out = []
        for name in self.graph.inputs:
            tensor, array = self.graph.tensors[name], np.asarray(inputs[name])
            if array.shape != tensor.shape or array.dtype != tensor.dtype:
                raise InputError(
                    f"input {name!r} must be {tensor.dtype}{list(tensor.shape)}, not "
                    f"{array.dtype}{list(array.shape)}"
                )
            out.append(array)
        return out


def compile(
    model: Path | str | Graph,
    target: str | MlaConfig = "n16",
    *,
    rounding: str = "reference",
    schedule: Schedule | None = None,
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

    Raises
    ------
    InputError
        The model cannot be read or compiled, or the schedule is not legal for it.
    """
    if rounding not in ROUNDINGS:
        raise InputError(f"rounding must be {' or '.join(ROUNDINGS)}, not {shown(rounding)}")
    config = load_target(target) if isinstance(target, str) else target
    graph = model if isinstance(model, Graph) else read_model(Path(model))
    fusions = find_fusions(graph) if schedule is None else schedule.fusions
    lowered = lower(graph, group(graph, fusions), rounding)
    if lowered.refused:
        lines = "; ".join(f"{name} ({graph.nodes[name].op}): {why}" for name, why in lowered.refused.items())
        raise InputError(f"{graph.name}: not for the accelerator: {lines}")
    if schedule is None:
        schedule, code = fit(config, lowered, first_schedule(config, lowered, fusions))
    else:
        code = generate(config, lowered, schedule)
    return Network(graph, lowered, schedule, code, rounding)
