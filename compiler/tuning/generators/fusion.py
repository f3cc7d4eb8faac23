"""The fusion engine as a generator: layers joined, split, handed over, as the performance model promises most."""

from collections.abc import Iterator

from compiler.cost.learned.model_lookup import find_model
from compiler.tuning.fusion.engine import FusionEngine
from compiler.tuning.generators.generator import Generator
from compiler.tuning.generators.task import Candidate, GeneratorTask


class FusionGenerator(Generator):
    """Proposes what promises a gain, or would if the prediction is off by as much as is to be expected."""

    name = "fusion"

    def propose(self, task: GeneratorTask) -> Iterator[Candidate]:
        """All promising changes together, then each by itself."""
        engine = FusionEngine(task.prepared, task.conditions, find_model(task.conditions))
        sites = [site for site in engine.sites(task.schedule) if set(site.layers) <= set(task.layers)]
        options = [option for option in engine.options(task.schedule, sites) if option.hoped > 0]
        whole = engine.together(task.schedule, options)
        if whole is not None:
            predicted = engine.forecaster.of(whole).cycles
            yield Candidate(whole, self.name, "all that promise something", predicted)
        for option in options:
            why = f"{option.site.kind} {' + '.join(option.site.layers)}: {option.what}"
            yield Candidate(option.schedule, self.name, why, option.forecast.cycles)
