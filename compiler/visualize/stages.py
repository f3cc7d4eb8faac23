"""Views of the compiler stages by name, and of their programs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from compiler.codegen.executable import CommandStream, StageExecutable
from compiler.ir.ops import OPS
from compiler.passes import pass_names
from compiler.pipeline import CompilationTrace
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.stages import Control, Stage
from compiler.visualize.commands import commands_view
from compiler.visualize.operators import graph_view, layers_view, makers, partition_view
from compiler.visualize.view import Cost, View, add_edge, add_node, over_bus, start, timeline_view
from hw.config import MlaConfig
from hw.errors import InputError, shown


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


def _graph(name: str) -> Callable[[CompilationTrace], View]:
    def view(record: CompilationTrace) -> View:
        return graph_view(record.graphs[name], name, record.config, record.rounding)

    return view


def _reduced(record: CompilationTrace) -> View:
    view = graph_view(record.graphs["reduced"], "reduced", record.config, record.rounding)
    view.graph["removed"] = [str(each) for each in (*record.removed, *record.rewritten)]
    return view


def _partitioned(record: CompilationTrace) -> View:
    graph = record.graphs["reduced"]
    return partition_view(graph, record.parts, record.host, record.config, record.rounding)


def _layers(record: CompilationTrace) -> View:
    return layers_view(record.graphs["reduced"], record.parts, record.streams, record.config)


def _commands(*, placed: bool) -> Callable[[CompilationTrace], View]:
    def view(record: CompilationTrace) -> View:
        graph = record.graphs["reduced"]
        dram = record.dram if placed else None
        return commands_view(graph, record.parts, record.streams, record.config, placed=dram)

    return view


def _programs(record: CompilationTrace) -> View:
    assert record.network is not None
    return programs_view(record.network, record.streams, record.config)


def _timeline(record: CompilationTrace) -> View:
    return timeline_view(record.graphs["reduced"].name, record.streams, record.config, record.dram)


#: Stages that do not need the model to compile.
EARLY = ("imported", *pass_names())
#: View function of each stage.
STAGES: dict[str, Callable[[CompilationTrace], View]] = {
    **{name: _graph(name) for name in (*EARLY, "quantized")},
    "reduced": _reduced,
    "partitioned": _partitioned,
    "layers": _layers,
    "scheduled": _commands(placed=False),
    "placed": _commands(placed=True),
    "programs": _programs,
    "timeline": _timeline,
}


def view_of(record: CompilationTrace, stage: str) -> View:
    """Return the view of a compiler stage.

    Parameters
    ----------
    record : CompilationTrace
        Trace recorded by `compile`.
    stage : str
        Name of the stage, a key of `STAGES`.

    Raises
    ------
    InputError
        The stage is unknown.
    """
    if stage not in STAGES:
        raise InputError(f"stage must be one of {', '.join(STAGES)}, not {shown(stage)}")
    return STAGES[stage](record)
