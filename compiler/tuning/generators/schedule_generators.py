"""Generators of schedules: tilings, loop orders and layouts of a layer, and fusion of layers."""

from collections.abc import Iterator

from compiler.cost.learned.model import find_model
from compiler.schedule.schedule import Schedule
from compiler.tuning.fusion.engine import FusionEngine
from compiler.tuning.fusion.network_model import NetworkCostModel
from compiler.tuning.generators.generator import Candidate, Generator, GeneratorTask
from compiler.tuning.layer_space import spaces_of

#: Number of tilings of a layer whose cycles are predicted (the best by the static compiler's estimate), and number of
#: tilings that are proposed.
_MAX_PREDICTED, _MAX_PROPOSED = 64, 4


class TilingGenerator(Generator):
    """Generator of other tilings of one layer at a time, selected by the predicted cycles of the whole network."""

    name = "tiling"

    def propose(self, task: GeneratorTask) -> Iterator[Candidate]:
        """Yield the most promising tilings of the task's layers, largest predicted gain first."""
        cost_model = NetworkCostModel(task.prepared, task.conditions, find_model(task.conditions))
        base = Schedule(task.schedule.fusions, task.schedule.layers)
        now = cost_model.predict(base).cycles
        found: list[tuple[float, Candidate]] = []
        stages = task.prepared.lowered(base.fusions)
        for name, space in spaces_of(task.prepared.config, stages, task.conditions.dram).items():
            if name in task.layers:
                mine = base.layers[name]
                tilings = [space.with_context(each.schedule, mine) for each in space.tilings[:_MAX_PREDICTED]]
                candidates = [
                    task.with_layers({name: each}, self.name, f"tiling of {name}")
                    for each in tilings
                    if each != mine
                ]
                costs = sorted(
                    ((cost_model.predict(each.schedule), each) for each in candidates),
                    key=lambda each: each[0].cycles,
                )
                found += [
                    (cost.cycles, Candidate(each.schedule, self.name, each.description, cost.cycles))
                    for cost, each in costs[:_MAX_PROPOSED]
                    if cost.cycles < now
                ]
        found.sort(key=lambda each: each[0])
        yield from (candidate for _, candidate in found)


class FusionGenerator(Generator):
    """Generator of fusion options whose predicted gain plus expected prediction error is positive."""

    name = "fusion"

    def propose(self, task: GeneratorTask) -> Iterator[Candidate]:
        """Yield the fixed point of the engine, all promising options combined, then each option separately."""
        engine = FusionEngine(task.prepared, task.conditions, find_model(task.conditions))
        opportunities = [
            opportunity
            for opportunity in engine.opportunities(task.schedule)
            if set(opportunity.layers) <= set(task.layers)
        ]
        options = [
            option for option in engine.options(task.schedule, opportunities) if option.optimistic_gain > 0
        ]
        base = Schedule(task.schedule.fusions, task.schedule.layers)
        wholes = (
            ("fixed point", engine.fixed_point(base, layers=task.layers)),
            ("all promising options", engine.combine(task.schedule, options)),
        )
        for description, whole in wholes:
            if whole is not None and whole != base:
                predicted = engine.predict(whole).cycles
                yield Candidate(whole, self.name, description, predicted)
        for option in options:
            why = f"{option.opportunity.kind} {' + '.join(option.opportunity.layers)}: {option.description}"
            yield Candidate(option.schedule, self.name, why, option.prediction.cycles)
