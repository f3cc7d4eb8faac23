"""From a corpus to a model: first everything that was measured, then what was best."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compiler.llm.asking import Ask
from compiler.llm.corpus.examples import Example, examples
from compiler.llm.corpus.walk import Walk
from compiler.llm.gpt import Gpt, Shape
from compiler.llm.language import LANGUAGE
from compiler.llm.training.fit import Recipe, fit
from compiler.llm.training.module import Module
from compiler.llm.training.shown import Shown, shown
from hw.errors import InputError

#: One in so many networks is not shown.
_JUDGED = 20
#: Longer ones are left out: there are few.
_LONGEST = 384


@dataclass(frozen=True)
class Plan:
    """How a model is made.

    Parameters
    ----------
    shape : Shape
        Its sizes.
    first, then : Recipe
        With everything that was measured; with what was best.
    profile, want : bool
        Whether it is told what a layer costs now; what is wanted (if not, it is always asked for the best).
    """

    shape: Shape
    first: Recipe
    then: Recipe
    profile: bool = True
    want: bool = True


@dataclass(frozen=True)
class Trained:
    """A model and how it came about: networks, examples, and the loss on what was not shown."""

    model: Gpt
    about: dict[str, Any]


def plan_of(steps: int, then: int, seed: int = 0, shape: Shape | None = None) -> Plan:
    """The usual plan with so many steps, for a model of the usual shape or another."""
    return Plan(shape or Shape(len(LANGUAGE)), Recipe(steps, seed=seed), Recipe(then, rate=3e-4, seed=seed))


def train(
    walks: Sequence[Walk], plan: Plan, folder: Path, say: Callable[[str], None] = lambda _text: None,
    start: Gpt | None = None,
) -> Trained:  # fmt: skip
    """Train a model.

    Parameters
    ----------
    walks : sequence of Walk
        What it learns from.
    plan : Plan
        How.
    folder : Path
        Keeps checkpoints, from which a call that was interrupted goes on.
    say : callable
        Hears of progress.
    start : Gpt or None
        The model to go on from, of the plan's shape; None: a new one.

    Raises
    ------
    InputError
        Too little was measured, or a checkpoint is of something else.
    """
    say(f"reading {len(walks)} networks")
    stages = ("first", plan.first, False), ("then", plan.then, True)
    shown_: dict[str, list[list[Shown]]] = {"first": [], "then": []}
    judged: dict[str, list[list[Shown]]] = {"first": [], "then": []}
    for walk in walks:
        found = list(examples(walk))
        for name, _, best in stages:
            for ask in Ask:
                made = _shown([each for each in found if each.ask is ask], plan, best=best)
                (shown_ if walk.index % _JUDGED else judged)[name].append(made)
    module, curves = Module(plan.shape, plan.first.seed), {}
    if start is not None:
        module.take(start)
    for name, recipe, _ in stages:
        groups, others = ([group for group in part[name] if group] for part in (shown_, judged))
        if not groups or not others:
            raise InputError(f"{len(walks)} networks are too few to learn from: measure more of them")
        if recipe.steps:
            one_each = [group[number % len(group)] for number, group in enumerate(others)]
            path = folder / f"{name}.pt"
            curves[name] = fit(module, groups, one_each, recipe, path, partial(_say, say, name)).curve
    about = {
        "networks": len(walks), "examples": sum(map(len, shown_["first"])), "plan": asdict(plan),
        "loss": curves,
    }  # fmt: skip
    return Trained(module.gpt(), about)


def _shown(found: Sequence[Example], plan: Plan, *, best: bool) -> list[Shown]:
    """Examples as the model sees them; with `best` those alone."""
    chosen = [example for example in found if example.best] if best else found
    made = [shown(example, best=best, profile=plan.profile, want=plan.want) for example in chosen]
    return [each for each in made if len(each.words) <= _LONGEST]


def _say(say: Callable[[str], None], name: str, text: str) -> None:
    say(f"{name}: {text}")
