"""Checks of random graphs with several batch sizes and with skipped parts."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.runtime.compiled import CompiledNetwork, split_batch, stack_batch
from compiler.runtime.session import Session, dram_bytes
from cosim.device import Device
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.errors import InputError
from tests.support.strategies.graphs import RandomGraph

#: Permitted reasons for rejection; any other reason is a failure.
REJECTIONS = (
    "a batch of ",
    "batches of ",
    "skip: ",
    "must be one program",
    "must all be in the instruction store",
)
Values = dict[str, np.ndarray]


@dataclass
class DispatchChecks:
    """Checker that counts graphs by outcome."""

    rtl: bool = False
    tally: Counter[str] = field(default_factory=Counter)

    def check(self, grown: RandomGraph) -> None:
        """Check a graph with several batch sizes, and with skipping for zeros in each graph input and one tensor."""
        self._sizes(grown)
        for name in grown.graph.inputs:
            self._skip(grown, name)
        self._skip(grown, next(reversed(grown.graph.nodes.values())).inputs[0])

    def _sizes(self, grown: RandomGraph) -> None:
        network = self._compiled(grown, "sizes", batches=(1, 3))
        if network is None:
            return
        one, samples = compile(grown.graph, grown.target, rounding=grown.rounding), _samples(grown)
        with self._machine(network) as device:
            session = Session(device, network)
            found = [
                split_batch(network, session.run(stack_batch(network, part), len(part)), len(part))
                for part in (samples[:2], samples[:1], samples, samples[2:])
            ]
        wanted = self._one_by_one(one, samples)
        for which, group in zip(([0, 1], [0], [0, 1, 2], [2]), found, strict=True):
            np.testing.assert_equal(group, [wanted[number] for number in which])

    def _skip(self, grown: RandomGraph, name: str) -> None:
        network = self._compiled(grown, "skipping", skip=name)
        if network is None:
            return
        samples = [grown.inputs, _zeros(grown.graph, grown.inputs, name), grown.inputs]
        one = compile(grown.graph, grown.target, rounding=grown.rounding)
        with self._machine(network) as device:
            session = Session(device, network)
            found = [session.run(sample) for sample in samples]
            self.tally["skipped"] += sum(counts[0] for counts in session.taken if len(counts) > 1)
        np.testing.assert_equal(found, self._one_by_one(one, samples))

    def _compiled(self, grown: RandomGraph, what: str, **options: object) -> CompiledNetwork | None:
        try:
            made = compile(grown.graph, grown.target, rounding=grown.rounding, **options)  # type: ignore[arg-type]
        except InputError as error:
            assert any(text in str(error) for text in REJECTIONS), error
            self.tally[f"{what} refused"] += 1
            return None
        self.tally[what] += 1
        return made

    def _machine(self, network: CompiledNetwork) -> Device:
        return (RtlDevice if self.rtl else GoldenDevice)(network.config, dram_bytes(network))

    @staticmethod
    def _one_by_one(network: CompiledNetwork, samples: list[Values]) -> list[Values]:
        with GoldenDevice(network.config, dram_bytes(network)) as device:
            session = Session(device, network)
            return [session.run(sample) for sample in samples]


def _samples(grown: RandomGraph) -> list[Values]:
    """Return three samples: the inputs of the graph, the reversed inputs, and the rotated inputs."""
    flipped = {name: np.ascontiguousarray(array[..., ::-1]) for name, array in grown.inputs.items()}
    turned = {name: np.roll(array, 1) for name, array in grown.inputs.items()}
    return [grown.inputs, flipped, turned]


def _zeros(graph: Graph, inputs: Values, name: str) -> Values:
    """Return the inputs with zeros in place of the named one, or of all inputs if the name is not an input."""
    out = dict(inputs)
    for each in [name] if name in inputs else list(inputs):
        q = graph.tensors[each].quantization
        out[each] = np.full_like(inputs[each], q.zero_point[0] if q else 0)
    return out
