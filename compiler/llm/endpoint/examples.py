"""What was measured before: the best and the worst of it are told again."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from compiler.llm.endpoint.facts import cost_unit
from compiler.schedule.schedule import Schedule
from compiler.specialize.task import Task

#: How many of each are told.
_BEST, _WORST = 3, 2


@dataclass(frozen=True)
class Example:
    """A schedule that was measured, with right outputs, and what it cost."""

    schedule: Schedule
    cost: float


def chosen(examples: Sequence[Example]) -> list[Example]:
    """The best and the worst, each once, the best first."""
    ordered = sorted(examples, key=lambda each: each.cost)
    return ordered if len(ordered) <= _BEST + _WORST else ordered[:_BEST] + ordered[-_WORST:]


def examples_text(task: Task, examples: Sequence[Example]) -> str:
    """A line for each: what is other than now, and what it cost."""
    return "\n".join(
        f"{changes_text(task, each.schedule)}: {each.cost:,.6g} {cost_unit(task.goal)}"
        for each in chosen(examples)
    )


def changes_text(task: Task, schedule: Schedule) -> str:
    """What a schedule has other than the present one, as JSON like that of answers."""
    layers = {}
    for name, layer in schedule.layers.items():
        before = asdict(task.schedule.layers[name]) if name in task.schedule.layers else {}
        changed = {key: value for key, value in asdict(layer).items() if before.get(key) != value}
        if changed:
            layers[name] = changed
    return (json.dumps(layers) if layers else "as now") + _programs_text(task, schedule)


def _programs_text(task: Task, schedule: Schedule) -> str:
    """Which programs are others than now."""
    now, then = task.schedule.programs, schedule.programs
    names = [name for name in {**now, **then} if now.get(name) != then.get(name)]
    who = "other programs" if then else "the compiler's own programs"
    return f" with {who} {', '.join(map(json.dumps, names))}" if names else ""
