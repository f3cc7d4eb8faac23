"""Programs, in the order in which they run, and the tensors that pass between them."""

from collections.abc import Sequence

from compiler.codegen.making import Making
from compiler.network import Network
from compiler.views.layers import makers
from compiler.views.view import Cost, View, add_edge, add_node, over_bus, start
from hw.config import MlaConfig


def programs_view(network: Network, makings: Sequence[Making], config: MlaConfig) -> View:
    """One node for each program; edges: what runs next, and what passes from one to another."""
    note = "edges: tensors that one program makes and another reads, over the bus or on the chip; the order"
    view, before, left = start(network.name, "programs", config, note), "", iter(makings)
    for number, stage in enumerate(network.stages):
        prefix = f"stage {number} " if len(network.stages) > 1 else ""
        if stage.code is None:
            nodes = list(stage.graph) if stage.graph else []
            names = [f"{prefix}host"]
            add_node(view, names[0], "host", "host", *(f"{node.op} {node.name}" for node in nodes[:3]),
                     f"and {len(nodes) - 3} more" if len(nodes) > 3 else "")  # fmt: skip
        else:
            names = []
            for part in stage.code.parts:
                layers = [stage.infos[layer].nodes[0] for layer in part.layers]
                names.append(f"{prefix}{part.program.name}")
                add_node(
                    view, names[-1], "program", part.program.name, f"{len(part.program.words):,} words",
                    *layers[:3], f"and {len(layers) - 3} more" if len(layers) > 3 else "",
                    words=len(part.program.words), layers=layers,
                )  # fmt: skip
            _tensors(view, names, [part.layers for part in stage.code.parts], next(left), config)
        for name in names:
            if before:
                add_edge(view, before, name, "order", Cost())
            before = name
    return view


def _tensors(
    view: View, names: list[str], layers: list[tuple[int, ...]], making: Making, config: MlaConfig
) -> None:
    """What passes between the programs of a stage; energy and cycles are the bus's if it goes by DRAM."""
    lowered = making.lowered
    program = {
        lowered.layers[layer].name: name for name, part in zip(names, layers, strict=True) for layer in part
    }
    for layer in lowered.layers:
        for name in dict.fromkeys(layer.inputs):
            for maker in makers(lowered, name):
                source, target = program.get(maker), program.get(layer.name)
                if source and target and source != target:
                    size, on_chip = lowered.graph.tensors[name].bytes, making.homes[name].on_chip
                    cost = Cost(size) if on_chip else over_bus(config, size)
                    add_edge(view, source, target, name, cost, on_chip=on_chip)
