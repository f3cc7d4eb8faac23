"""From a corpus to a model: first everything that was measured, then what was best."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compiler.llm.corpus.walk import Walk
from compiler.llm.gpt import Gpt, Shape
from compiler.llm.language import LANGUAGE
from compiler.llm.training.fit import Recipe, fit
from compiler.llm.training.module import Module
from compiler.llm.training.reading import Style, read_examples
from compiler.llm.training.shown import Shown
from hw.errors import InputError

#: One in so many networks is not shown.
_JUDGED = 20
#: Longer ones are left out: there are few.
_LONGEST = 192


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


def plan_of(steps: int, then: int, seed: int = 0) -> Plan:
    """The usual plan with so many steps."""
    return Plan(Shape(len(LANGUAGE)), Recipe(steps, seed=seed), Recipe(then, rate=3e-4, seed=seed))


def train(
    walks: Sequence[Walk], plan: Plan, folder: Path, say: Callable[[str], None] = lambda _text: None
) -> Trained:
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

    Raises
    ------
    InputError
        Too little was measured, or a checkpoint is of something else.
    """
    stages = ("first", plan.first), ("then", plan.then)
    shown_: dict[str, list[list[Shown]]] = {"first": [], "then": []}
    judged: dict[str, list[list[Shown]]] = {"first": [], "then": []}
    style = Style(plan.profile, plan.want, _LONGEST)
    for walk, found in zip(walks, read_examples(walks, style, say), strict=True):
        part = shown_ if walk.index % _JUDGED else judged
        part["first"].append(found.every)
        part["then"].append(found.best)
    module, curves = Module(plan.shape, plan.first.seed), {}
    for name, recipe in stages:
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


def _say(say: Callable[[str], None], name: str, text: str) -> None:
    say(f"{name}: {text}")
