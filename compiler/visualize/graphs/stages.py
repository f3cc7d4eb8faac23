"""Views of the compiler stages by name."""

from collections.abc import Callable

from compiler.passes import pass_names
from compiler.trace import CompilationTrace
from compiler.visualize.graphs.commands import commands_view
from compiler.visualize.graphs.layers import layers_view
from compiler.visualize.graphs.operators import graph_view, partition_view
from compiler.visualize.graphs.programs import programs_view
from compiler.visualize.graphs.view import View, timeline_view
from hw.errors import InputError, shown


def _graph(name: str) -> Callable[[CompilationTrace], View]:
    def view(record: CompilationTrace) -> View:
        return graph_view(record.graphs[name], name, record.config, record.rounding)

    return view


def _partitioned(record: CompilationTrace) -> View:
    graph = record.graphs["quantized"]
    return partition_view(graph, record.parts, record.host, record.config, record.rounding)


def _layers(record: CompilationTrace) -> View:
    return layers_view(record.graphs["quantized"], record.parts, record.streams, record.config)


def _commands(*, placed: bool) -> Callable[[CompilationTrace], View]:
    def view(record: CompilationTrace) -> View:
        graph = record.graphs["quantized"]
        dram = record.dram if placed else None
        return commands_view(graph, record.parts, record.streams, record.config, placed=dram)

    return view


def _programs(record: CompilationTrace) -> View:
    assert record.network is not None
    return programs_view(record.network, record.streams, record.config)


def _timeline(record: CompilationTrace) -> View:
    return timeline_view(record.graphs["quantized"].name, record.streams, record.config, record.dram)


#: Stages that do not need the model to compile.
EARLY = ("imported", *pass_names())
#: View function of each stage.
STAGES: dict[str, Callable[[CompilationTrace], View]] = {
    **{name: _graph(name) for name in (*EARLY, "quantized")},
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
