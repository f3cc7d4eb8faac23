"""Quantization of control-flow subgraphs with their inputs recorded during calibration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from compiler.ir.graph import Graph, Node
from compiler.ir.rebuild import rebuild
from compiler.quantize.report import QuantizationReport
from compiler.quantize.samples import Sample

#: So many runs of a subgraph are kept at most, evenly spread over all: a loop may have thousands.
_MOST = 64

#: Quantizes a subgraph with samples.
Quantize = Callable[[Graph, list[Sample]], tuple[Graph, QuantizationReport]]


@dataclass
class Runs:
    """What goes into a subgraph, run by run."""

    samples: list[Sample] = field(default_factory=list)
    count: int = 0
    step: int = 1

    def add(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Another run; what is not finite says nothing of a range."""
        finite = all(np.isfinite(array).all() for array in inputs.values() if array.dtype.kind == "f")
        if finite and self.count % self.step == 0:
            self.samples.append({name: np.array(array) for name, array in inputs.items()})
        self.count += 1
        if len(self.samples) > _MOST:
            self.samples, self.step = self.samples[::2], self.step * 2


class RecordedSubgraph:
    """The runs of all subgraphs, for `evaluate`."""

    def __init__(self) -> None:
        self._runs: dict[int, Runs] = {}

    def __call__(self, graph: Graph, inputs: Mapping[str, np.ndarray]) -> None:
        """A run of a subgraph."""
        self._runs.setdefault(id(graph), Runs()).add(inputs)

    @property
    def runs(self) -> int:
        """Of all subgraphs together."""
        return sum(each.count for each in self._runs.values())

    def samples(self, graph: Graph) -> list[Sample]:
        """What went into a subgraph."""
        return self._runs.get(id(graph), Runs()).samples


def quantize_bodies(
    graph: Graph, watched: RecordedSubgraph, quantize: Quantize, wanted: Callable[[Graph], bool]
) -> tuple[Graph, list[QuantizationReport], dict[str, str]]:
    """The graph with those subgraphs quantized that are `wanted`; their reports; why nodes of others stay float."""
    reports: list[QuantizationReport] = []
    reasons: dict[str, str] = {}

    def changed(body: Graph) -> Graph:
        if not wanted(body):
            return body
        samples = watched.samples(body)
        if not samples:
            reasons.update({node.name: "not executed by any calibration sample" for _, node in body.walk()})
            return body
        made, report = quantize(body, samples)
        reports.append(report)
        return made

    def of(node: Node) -> Node:
        return replace(node, bodies=tuple(changed(body) for body in node.bodies))

    if not any(node.bodies for node in graph):
        return graph, reports, reasons
    return rebuild(graph, [of(node) for node in graph]), reports, reasons
