"""From a corpus to a model: first everything that was measured, then what was best."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compiler.llm.data.held_out import is_judged
from compiler.llm.data.trajectories import Trajectory
from compiler.llm.model.numpy_transformer import Gpt, TransformerShape
from compiler.llm.tokens.prompt_tokens import Ask
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.llm.training.dataset import Found, Style, TokenizedExample, read_examples
from compiler.llm.training.loop import Recipe, fit
from compiler.llm.training.torch_transformer import TorchTransformer
from hw.errors import InputError


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

    shape: TransformerShape
    first: Recipe
    then: Recipe
    profile: bool = True
    want: bool = True


@dataclass(frozen=True)
class Trained:
    """A model and how it came about: networks, examples, and the loss on what was not shown."""

    model: Gpt
    about: dict[str, Any]


def plan_of(steps: int, then: int, seed: int = 0, shape: TransformerShape | None = None) -> Plan:
    """The usual plan with so many steps, for a model of the usual shape or another."""
    return Plan(
        shape or TransformerShape(len(LANGUAGE)), Recipe(steps, seed=seed), Recipe(then, rate=3e-4, seed=seed)
    )


def train(
    walks: Sequence[Trajectory],
    plan: Plan,
    folder: Path,
    say: Callable[[str], None] = lambda _text: None,
    start: Gpt | None = None,
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
    start : Gpt or None
        The model to go on from, of the plan's shape; None: a new one.

    Raises
    ------
    InputError
        Too little was measured, or a checkpoint is of something else.
    """
    style = Style(plan.profile, plan.want, plan.shape.context)
    read = list(zip(walks, read_examples(walks, style, say), strict=True))
    kept = [found for walk, found in read if not is_judged(walk)]
    judged = [found for walk, found in read if is_judged(walk)]
    stages = {
        "first": TrainingStage(plan.first, kept, judged),
        "then": TrainingStage(plan.then, kept, judged, best=True),
    }
    module = TorchTransformer(plan.shape, plan.first.seed)
    if start is not None:
        module.take(start)
    curves = go_through(module, stages, folder, say)
    about = {
        "networks": len(walks),
        "examples": sum(len(each.every) for each in kept),
        "plan": asdict(plan),
        "loss": curves,
        "without": [name for name in ("profile", "want") if not getattr(plan, name)],
    }
    return Trained(module.gpt(profile=plan.profile), about)


@dataclass(frozen=True)
class TrainingStage:
    """A stretch of training.

    Parameters
    ----------
    recipe : Recipe
        How.
    shown, judged : sequence of Found
        Networks whose examples are shown, and those that the loss is taken of.
    best : bool
        The best answers alone.
    """

    recipe: Recipe
    shown: Sequence[Found]
    judged: Sequence[Found]
    best: bool = False


def go_through(
    module: TorchTransformer, stages: dict[str, TrainingStage], folder: Path, say: Callable[[str], None]
) -> dict[str, list[tuple[int, float]]]:
    """Train in stages, by name; gives their losses.

    Raises
    ------
    InputError
        One has no examples, or a checkpoint is of something else.
    """
    curves = {}
    for name, stage in stages.items():
        groups, others = (by_kind(part, best=stage.best) for part in (stage.shown, stage.judged))
        if not groups or not others:
            raise InputError(f"{len(stage.shown)} networks are too few to learn from: measure more of them")
        if stage.recipe.steps:
            one_each = [group[number % len(group)] for number, group in enumerate(others)]
            path = folder / f"{name}.pt"
            curves[name] = fit(module, groups, one_each, stage.recipe, path, partial(_say, say, name)).curve
    return curves


def by_kind(found: Sequence[Found], *, best: bool) -> list[list[TokenizedExample]]:
    """Examples of each network and of each kind of answer; with `best` of the best answers."""
    each = (network.best if best else network.every for network in found)
    groups = ([one for one in every if one.ask is ask] for every in each for ask in Ask)
    return [group for group in groups if group]


def _say(say: Callable[[str], None], name: str, text: str) -> None:
    say(f"{name}: {text}")
