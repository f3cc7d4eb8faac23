"""Plug-in search method: simulated annealing over schedules.

    mla tune network.tflite --trials 50 --method annealing:Annealing     (in this folder)
    python examples/annealing.py network.tflite [TRIALS]

A search method selects the schedule to measure next. The search driver compiles the schedule, proves its programs safe,
runs them and compares the outputs, so a bad proposal costs only a trial.
"""

import math
import sys
from dataclasses import replace
from typing import Any

import compiler

ATTEMPTS = 100


class Annealing(compiler.SearchMethod):
    """Search method that changes one layer at a time, and accepts a worse schedule with a probability that falls from
    trial to trial.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.current = self.best
        self.temperature = 0.02  # relative to the current cost
        self.cooling = 0.95

    def propose(self) -> compiler.Schedule:
        """Return a randomly changed copy of the schedule that was accepted last."""
        schedule = self.current.schedule
        for _ in range(ATTEMPTS):
            name = self.rng.choice(list(self.spaces))
            layer = self.spaces[name].change(self.rng, schedule.layers[name])
            changed = replace(schedule, layers=schedule.layers | {name: layer})
            if self.register(changed):  # neither proposed before nor forbidden
                return changed
        return self.first  # nothing new was found

    def learn(self, trial: Any) -> None:
        """Accept the trial's schedule if it is better, else with a probability that depends on its cost."""
        self.temperature *= self.cooling
        if trial.cost is None or self.current.cost is None:
            return  # the schedule was rejected: stay
        worse = (trial.cost - self.current.cost) / self.current.cost
        if worse <= 0 or self.rng.random() < math.exp(-worse / self.temperature):
            self.current = trial


def main(model: str, trials: str = "50") -> None:
    """Search for a schedule, and compile the model with the best one."""
    found = compiler.tune(model, "n4", method=Annealing, trials=int(trials))
    print(f"{found.baseline.cycles:,} -> {found.best.cost:,.0f} cycles in {len(found.trials)} trials")
    print(compiler.compile(model, "n4", schedule=found.best.schedule))


if __name__ == "__main__":
    main(*sys.argv[1:])
