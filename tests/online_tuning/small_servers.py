"""Servers of small networks, alternative versions of the networks, and scripted searches."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from compiler.initial_schedule.initial import PLAIN
from compiler.ir.graph import Graph
from compiler.online_tuning.search_process import LostError, Order, SearchClient
from compiler.online_tuning.search_worker import SearchFinding
from compiler.options import DramTiming
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import Measurement
from compiler.runtime.compiled import CompiledNetwork
from compiler.schedule.schedule import Schedule
from compiler.serving.request import RequestResult
from compiler.tuning.measure.golden_inputs import GoldenIO, GoldenModelReference
from hw.config import MlaConfig
from tests.support.small_network import OPTIONS


class Model:
    """A model, several compiled versions of it, and its expected outputs.

    Parameters
    ----------
    graph : Graph
        The model.
    config : MlaConfig
        The machine.
    questions : int
        Number of different inputs; requests use them cyclically.
    """

    def __init__(self, graph: Graph, config: MlaConfig, questions: int = 8):
        self.prepared = ModelCompiler(graph, config, OPTIONS)
        self.first = self.prepared.network()
        reference = GoldenModelReference(self.first, seed=11)
        self.questions: list[GoldenIO] = [reference.golden_io(number) for number in range(questions)]

    def with_layers(self, **fields: object) -> CompiledNetwork:
        """Return the network with the given fields in the schedule of every layer."""
        first = self.first.schedule
        layers = {name: replace(layer, **fields) for name, layer in first.layers.items()}  # type: ignore[arg-type]
        return self.prepared.network(replace(first, layers=layers))

    @property
    def plain(self) -> CompiledNetwork:
        """Return the slow version."""
        first = self.first.schedule
        return self.prepared.network(Schedule(first.fusions, dict.fromkeys(first.layers, PLAIN)))

    def versions(self) -> list[CompiledNetwork]:
        """Return versions that differ in their programs and in their DRAM contents."""
        return [
            self.first,
            self.plain,
            self.with_layers(same_program_as_previous=False),
            self.with_layers(on_chip=False),
            self.with_layers(same_program_as_previous=False, prefetch=0),
            self.with_layers(rows=2, rows_per_load=4, same_program_as_previous=False),
        ]

    def inputs(self, request: int) -> dict[str, np.ndarray]:
        """Return the inputs of the request with the given index."""
        return self.questions[request % len(self.questions)].inputs

    def is_correct(self, result: RequestResult) -> bool:
        """Return True if the outputs of a request are correct."""
        return self.questions[result.index % len(self.questions)].matches(result.outputs)


def damaged(network: CompiledNetwork) -> CompiledNetwork:
    """Return a network with unchanged programs but wrong constants in DRAM, so that only its outputs are wrong."""
    (stage,) = network.stages
    assert stage.code is not None
    code = replace(stage.code, image=stage.code.image ^ np.uint8(0x15))
    return replace(network, stages=(replace(stage, code=code),))


def measured(cycles: int, *, exact: bool = True, floor: int = 1) -> Measurement:
    """Return a measurement with the given cycles."""
    return Measurement(cycles, (), 1.0, 1, exact, floor)


class ScriptedProposer(SearchClient):
    """Search client whose findings the test supplies; if `lost` is True, calls fail as after the end of the search."""

    def __init__(self, first: CompiledNetwork, cycles: int):
        self.ready: list[SearchFinding] = [self.finding(first.schedule, cycles, kind="served")]
        self.orders: list[Order] = []
        self.lost = False

    @staticmethod
    def finding(
        schedule: Schedule,
        cycles: int,
        dram: DramTiming | None = None,
        *,
        kind: str = "trial",
        exact: bool = True,
        floor: int = 1,
    ) -> SearchFinding:
        """Return a made-up finding."""
        return SearchFinding(
            kind, dram or DramTiming(), schedule, measured(cycles, exact=exact, floor=floor), 1
        )

    def submit(self, what: Order) -> None:
        if self.lost:
            raise LostError("somebody has ended it")
        self.orders.append(what)

    def findings(self, *, wait: bool = False) -> list[SearchFinding]:
        if self.lost:
            raise LostError("somebody has ended it")
        out, self.ready = self.ready, []
        return out

    def close(self) -> None:
        """Do nothing, since no resource is open."""


def longest(results: Sequence[RequestResult]) -> int:
    """Return the cycles of the longest macro-instruction."""
    return max(macro.cycles for result in results for macro in result.macros)


def with_changed_networks(
    prepared: ModelCompiler, change: Callable[[CompiledNetwork], CompiledNetwork]
) -> ModelCompiler:
    """Return a model compiler that applies the function `change` to each compiled network."""
    made = prepared.network

    class Changed:
        def network(self, schedule: Schedule | None = None) -> CompiledNetwork:
            return change(made(schedule))

    return Changed()  # type: ignore[return-value]
