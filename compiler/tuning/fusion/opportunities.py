"""Where layers of a network could be carried out together, or are: every edge of the lowered graph, with reasons."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from compiler.layers.base import Layer
from compiler.layers.lowering_context import image_of
from compiler.lowering.lower import LoweredNetwork
from compiler.pipeline import ModelCompiler
from compiler.profile.hardware_profile import HardwareProfile
from compiler.schedule.schedule import Schedule
from compiler.scheduler.initial import tiling_contexts
from compiler.tuning.fusion.channel_streaming import pairs_of, why_no_pair
from compiler.tuning.fusion.epilogue_chains import refusal
from hw.isa.enums import DTYPE_BYTES


class FusionKind(StrEnum):
    """Ways in which layers can be carried out together."""

    CHAIN = "chain"  # one pass through FUSE
    ON_CHIP = "on_chip"  # the result between them stays in the scratchpad
    PLANES = "planes"  # it is handed over in blocks of channels, depth first
    TURNS = "turns"  # tiles of both in turn, as soon as what they need is there
    PROGRAM = "program"  # one program: no dispatch between them


@dataclass(frozen=True)
class FusionOpportunity:
    """A way to carry out a layer and the one that reads its result together.

    Parameters
    ----------
    kind : Kind
        Which way.
    layers : tuple of str
        Both layers; of a chain that is carried out now, the one that it is.
    done : bool
        It is so now.
    reason : str
        Why it cannot be; empty if it can.
    bytes : int
        Of the tensor between them.
    stage : int
        Of those on the accelerator.
    """

    kind: FusionKind
    layers: tuple[str, ...]
    done: bool
    reason: str
    bytes: int
    stage: int

    @property
    def possible(self) -> bool:
        """Whether it can be."""
        return not self.reason


def fusion_opportunities(
    prepared: ModelCompiler, conditions: HardwareProfile, schedule: Schedule
) -> list[FusionOpportunity]:
    """All sites of a network under a schedule, in its order.

    Raises
    ------
    InputError
        The schedule's fusions cannot be carried out.
    """
    out: list[FusionOpportunity] = []
    for number, stage in enumerate(prepared.lowered(schedule.fusions)):
        walk = _Walk(prepared, conditions, schedule, stage, number)
        for layer in stage.layers:
            out += walk.inside(layer)
        for first, second in walk.edges():
            out += walk.between(first, second)
    return out


class _Walk:
    """One stage."""

    def __init__(
        self,
        prepared: ModelCompiler,
        conditions: HardwareProfile,
        schedule: Schedule,
        stage: LoweredNetwork,
        number: int,
    ):
        self.prepared, self.conditions, self.schedule = prepared, conditions, schedule
        self.stage, self.number = stage, number
        self.at = {layer.name: at for at, layer in enumerate(stage.layers)}
        self.spots = tiling_contexts(prepared.config, stage, conditions.dram)
        self.pairs = pairs_of(stage, self.spots)
        graph = stage.graph
        self.outside = {stage.root(name) for name in (*graph.inputs, *graph.outputs)}

    def inside(self, layer: Layer) -> Iterator[FusionOpportunity]:
        """Chains that are carried out as one layer."""
        if len(layer.nodes) > 1:
            yield FusionOpportunity(FusionKind.CHAIN, (layer.name,), True, "", 0, self.number)

    def edges(self) -> Iterator[tuple[Layer, Layer]]:
        """Layers and those that read their results, each pair once."""
        makers = {self.stage.root(layer.y): layer for layer in self.stage.layers}
        for layer in self.stage.layers:
            before = [makers.get(self.stage.root(name)) for name in layer.inputs]
            for maker in dict.fromkeys(each for each in before if each is not None and each is not layer):
                yield maker, layer

    def between(self, first: Layer, second: Layer) -> Iterator[FusionOpportunity]:
        """All ways for one pair."""
        size, names = self._bytes(first), (first.name, second.name)
        mine, its = (self.schedule.layers[name] for name in names)
        beside = self.at[second.name] == self.at[first.name] + 1
        apart = "" if beside else "other layers come between them"
        why = refusal(self.prepared, self.schedule, self.stage.graph, first, second)
        yield FusionOpportunity(FusionKind.CHAIN, names, False, why, size, self.number)
        why = self._no_room(first, size)
        yield FusionOpportunity(
            FusionKind.ON_CHIP, names, mine.on_chip and not self._crosses(first), why, size, self.number
        )
        why = apart or why_no_pair(self.stage, self.at[first.name]) or self._no_way(first)
        yield FusionOpportunity(
            FusionKind.PLANES, names, bool(mine.stream_channel_blocks), why, size, self.number
        )
        yield FusionOpportunity(
            FusionKind.TURNS, names, mine.interleave and its.interleave, apart, size, self.number
        )
        yield FusionOpportunity(
            FusionKind.PROGRAM, names, its.same_program_as_previous, apart, size, self.number
        )

    def _bytes(self, layer: Layer) -> int:
        image = image_of(self.stage.graph.tensors[self.stage.root(layer.y)])
        return image.h * image.w * image.c * DTYPE_BYTES[image.dtype]

    def _crosses(self, layer: Layer) -> bool:
        return self.stage.root(layer.y) in self.outside

    def _no_room(self, layer: Layer, size: int) -> str:
        if self._crosses(layer):
            return "the result is an output, or goes to the host"
        most = self.prepared.config.sp_bytes
        return "" if size < most else f"{size:,} bytes are more than the scratchpad's {most:,}"

    def _no_way(self, first: Layer) -> str:
        """Why a pair of the right kind cannot hand planes over."""
        pair = self.pairs.get(self.at[first.name])
        return (
            "" if pair and pair.candidates() else "no tiling of both fits the scratchpad and the accumulator"
        )
