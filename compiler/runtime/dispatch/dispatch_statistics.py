"""Executed layers and their work under dynamic dispatch."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from compiler.cost.roofline import Floor
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.stages import LayerInfo, Stage

#: For each stage on the accelerator, how often each candidate of its last program was selected.
Taken = Sequence[Counter[int]]


def work(network: CompiledNetwork, runs: Sequence[int], taken: Taken, samples: int) -> Floor:
    """Return the minimum work of a batch with `samples` valid samples.

    `runs` and `taken` are the amounts by which this batch increased the session's counts.
    """
    smaller = network.for_samples(samples)
    if smaller is not None:
        return smaller.floor
    floor = network.work(runs)
    for stage, counts in zip(_coded(network), taken, strict=True):
        if stage.spared is not None and counts[0]:
            floor = Floor(floor.macs - stage.spared.macs, floor.bytes - stage.spared.bytes)
    return floor


def layers(network: CompiledNetwork, runs: Sequence[int], taken: Taken) -> list[tuple[LayerInfo, int]]:
    """Return the layers with the number of times each ran."""
    out: list[tuple[LayerInfo, int]] = []
    for stage, times, counts in zip(_coded(network), runs, taken, strict=True):
        fewer = sum(counts[i] for i in range(len(network.smaller))) if network.smaller else counts[0]
        times -= fewer if network.smaller or stage.spared else 0
        out += [(info, times) for info in stage.infos]
    for number, smaller in enumerate(network.smaller):
        out += [(info, taken[0][number]) for info in smaller.infos]
    return out


def variants(network: CompiledNetwork, taken: Taken) -> list[dict[str, Any]]:
    """Return the candidate programs with the number of times each was selected."""
    out = []
    for stage, counts in zip(_coded(network), taken, strict=True):
        assert stage.code is not None
        part = stage.code.parts[-1]
        if part.instead:
            guards = [*(str(variant.guard) for variant in part.instead), None]
            each = zip(part.programs, guards, strict=True)
            out += [
                {"program": program.name, "guard": guard, "words": len(program.words), "runs": counts[number]}
                for number, (program, guard) in enumerate(each)
            ]
    return out


def _coded(network: CompiledNetwork) -> list[Stage]:
    return [stage for stage in network.walk() if stage.code]
