"""The stages of a compilation by name."""

from collections.abc import Callable

from compiler.passes import pass_names
from compiler.record import Record
from compiler.views.commands import commands_view
from compiler.views.layers import layers_view
from compiler.views.operators import graph_view, partition_view
from compiler.views.programs import programs_view
from compiler.views.timeline import timeline_view
from compiler.views.view import View
from hw.errors import InputError, shown


def _graph(name: str) -> Callable[[Record], View]:
    def view(record: Record) -> View:
        return graph_view(record.graphs[name], name, record.config, record.rounding)

    return view


def _partitioned(record: Record) -> View:
    graph = record.graphs["quantized"]
    return partition_view(graph, record.parts, record.host, record.config, record.rounding)


def _layers(record: Record) -> View:
    return layers_view(record.graphs["quantized"], record.parts, record.makings, record.config)


def _commands(*, placed: bool) -> Callable[[Record], View]:
    def view(record: Record) -> View:
        graph = record.graphs["quantized"]
        dram = record.dram if placed else None
        return commands_view(graph, record.parts, record.makings, record.config, placed=dram)

    return view


def _programs(record: Record) -> View:
    assert record.network is not None
    return programs_view(record.network, record.makings, record.config)


def _timeline(record: Record) -> View:
    return timeline_view(record.graphs["quantized"].name, record.makings, record.config, record.dram)


#: Stages for which the model need not be compiled.
EARLY = ("imported", *pass_names())
#: What each stage shows.
STAGES: dict[str, Callable[[Record], View]] = {
    **{name: _graph(name) for name in (*EARLY, "quantized")},
    "partitioned": _partitioned,
    "layers": _layers,
    "scheduled": _commands(placed=False),
    "placed": _commands(placed=True),
    "programs": _programs,
    "timeline": _timeline,
}


def view_of(record: Record, stage: str) -> View:
    """The graph of a stage.

    Parameters
    ----------
    record : Record
        What `compile` wrote down.
    stage : str
        One of `STAGES`.

    Raises
    ------
    InputError
        There is no such stage.
    """
    if stage not in STAGES:
        raise InputError(f"stage must be one of {', '.join(STAGES)}, not {shown(stage)}")
    return STAGES[stage](record)
