"""Stages compiled as one program, so that one opcode represents a stage."""

from dataclasses import replace

from compiler.codegen.executable import StageExecutable
from compiler.ir.graph import Graph
from compiler.lowering.lower import LoweredNetwork
from compiler.schedule.schedule import Schedule
from hw.errors import InputError, shown


def tensor_named(graph: Graph, name: str) -> str:
    """Return the name of a tensor, given its name or the name of the node that computes it.

    Raises
    ------
    InputError
        There is no tensor or node of this name.
    """
    if name in graph.nodes:
        return graph.nodes[name].outputs[0]
    if name not in graph.tensors:
        raise InputError(f"skip: there is no tensor and no node {shown(name)}")
    return name


def single(schedule: Schedule, lowered: LoweredNetwork, skip: str | None) -> Schedule:
    """Merge all layers of a schedule into one program; each layer gets its own counter tag.

    The last tile of the layer that computes `skip` is not split, because the guard reads one command's statistics.
    """
    last = {layer.name for layer in lowered.layers if layer.y == skip}
    layers = {
        name: replace(
            layer,
            same_program_as_previous=True,
            own_counter_tag=True,
            split_last_tile=layer.split_last_tile and name not in last,
        )
        for name, layer in schedule.layers.items()
    }
    return replace(schedule, layers=layers)


def check_single(name: str, code: StageExecutable) -> None:
    """Check that a stage has not been split into several programs.

    Raises
    ------
    InputError
        The program is longer than the instruction store.
    """
    if len(code.parts) > 1:
        words = sum(len(program.words) for program in code.programs)
        raise InputError(
            f"{name} must be one program: its {words:,} instructions are more than the "
            f"{code.config.wis_words:,} of the instruction store"
        )
