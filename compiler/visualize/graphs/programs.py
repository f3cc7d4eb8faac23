"""Programs as a graph, with edges for the execution order and for the tensors that programs exchange."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compiler.codegen.executable import CommandStream, StageExecutable
from compiler.ir.ops import OPS
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.stages import Control, Stage
from compiler.visualize.graphs.layers import makers
from compiler.visualize.graphs.view import Cost, View, add_edge, add_node, over_bus, start
from hw.config import MlaConfig


def programs_view(network: CompiledNetwork, streams: Sequence[CommandStream], config: MlaConfig) -> View:
    """Return the view of a network with one node per program; edges are the execution order and tensors."""
    note = "edges: tensors that one program makes and another reads, over the bus or on the chip; the order"
    view = start(network.name, "programs", config, note)
    _Adder(view, config, iter(streams)).add(network.stages, "", "")
    return view


@dataclass(frozen=True)
class _Adder:
    """Builder that adds the stages of a network to a view."""

    view: View
    config: MlaConfig
    streams: Iterator[CommandStream]

    def add(self, stages: Sequence[Stage], inside: str, before: str) -> str:
        """Add stages, in execution order, after the node `before`; return the last node."""
        for number, stage in enumerate(stages):
            prefix = f"{inside}stage {number} " if len(stages) > 1 or inside else ""
            if stage.control:
                before = self._control(stage.control, before)
                continue
            for name in self._device(stage, stage.code, prefix) if stage.code else self._host(stage, prefix):
                self._order(before, name)
                before = name
        return before

    def _order(self, before: str, name: str) -> None:
        if before:
            add_edge(self.view, before, name, "order", Cost())

    def _control(self, control: Control, before: str) -> str:
        """Add subgraphs between their control node and a merge node; return the merge node."""
        add_node(self.view, control.name, "control", control.op, control.name)
        self._order(before, control.name)
        end = f"{control.name} end"
        add_node(self.view, end, "control", f"end of {control.op}", control.name)
        for body, called in zip(control.bodies, OPS[control.op].bodies, strict=True):
            self._order(self.add(body.stages, f"{control.name}.{called} ", control.name), end)
        return end

    def _host(self, stage: Stage, prefix: str) -> list[str]:
        nodes, key = list(stage.graph) if stage.graph else [], f"{prefix}host"
        add_node(
            self.view,
            key,
            "host",
            "host",
            *(f"{node.op} {node.name}" for node in nodes[:3]),
            f"and {len(nodes) - 3} more" if len(nodes) > 3 else "",
        )
        return [key]

    def _device(self, stage: Stage, code: StageExecutable, prefix: str) -> list[str]:
        names = []
        for part in code.parts:
            layers = [stage.infos[layer].name for layer in part.layers]
            names.append(f"{prefix}{part.program.name}")
            add_node(
                self.view,
                names[-1],
                "program",
                part.program.name,
                f"{len(part.program.words):,} words",
                *layers[:3],
                f"and {len(layers) - 3} more" if len(layers) > 3 else "",
                words=len(part.program.words),
                layers=layers,
            )
        _tensors(self.view, names, [part.layers for part in code.parts], next(self.streams), self.config)
        return names


def _tensors(
    view: View, names: list[str], layers: list[tuple[int, ...]], stream: CommandStream, config: MlaConfig
) -> None:
    """Add edges for the tensors that the programs of a stage exchange; edges through DRAM have cycles and energy."""
    lowered = stream.lowered
    program = {
        lowered.layers[layer].name: name for name, part in zip(names, layers, strict=True) for layer in part
    }
    for layer in lowered.layers:
        for name in dict.fromkeys(layer.inputs):
            for maker in makers(lowered, name):
                source, target = program.get(maker), program.get(layer.name)
                if source and target and source != target:
                    size, on_chip = lowered.graph.tensors[name].bytes, stream.layouts[name].on_chip
                    cost = Cost(size) if on_chip else over_bus(config, size)
                    add_edge(view, source, target, name, cost, on_chip=on_chip)
