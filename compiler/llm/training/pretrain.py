"""Trains a model: on all measurements, then on the best answers, then on its own."""

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
    """Plan of a training run.

    Parameters
    ----------
    shape : TransformerShape
        Dimensions of the model.
    first, then : Recipe
        Training on all measurements, then on the best answers.
    profile, want : bool
        Whether prompts include the current cost, and the target (if not, they always ask for the best).
    """

    shape: TransformerShape
    first: Recipe
    then: Recipe
    profile: bool = True
    want: bool = True


@dataclass(frozen=True)
class Trained:
    """Trained model with metadata: networks, examples and validation losses."""

    model: Gpt
    about: dict[str, Any]


def plan_of(steps: int, then: int, seed: int = 0, shape: TransformerShape | None = None) -> Plan:
    """Return the default plan with the given steps, for the default or another shape."""
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
    walks : sequence of Trajectory
        Measurements to learn from.
    plan : Plan
        Dimensions, steps and learning rates.
    folder : Path
        Folder of checkpoints, from which an interrupted call resumes.
    say : callable
        Called with progress messages.
    start : Gpt or None
        Initial model with the shape of the plan; None for random weights.

    Raises
    ------
    InputError
        There are too few measurements, or a checkpoint belongs to another run.
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
    """One stage of a training run.

    Parameters
    ----------
    recipe : Recipe
        Hyperparameters of the stage.
    shown, judged : sequence of Found
        Training networks and validation networks.
    best : bool
        True to use only the best answers.
    """

    recipe: Recipe
    shown: Sequence[Found]
    judged: Sequence[Found]
    best: bool = False


def go_through(
    module: TorchTransformer, stages: dict[str, TrainingStage], folder: Path, say: Callable[[str], None]
) -> dict[str, list[tuple[int, float]]]:
    """Train in stages by name and return their losses.

    Raises
    ------
    InputError
        A stage has no examples, or a checkpoint belongs to another run.
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
    """Group examples by network and type of answer; with `best`, only the best answers."""
    each = (network.best if best else network.every for network in found)
    groups = ([one for one in every if one.ask is ask] for every in each for ask in Ask)
    return [group for group in groups if group]


def _say(say: Callable[[str], None], name: str, text: str) -> None:
    say(f"{name}: {text}")


@dataclass(frozen=True)
class Further:
    """Plan of fine-tuning.

    Parameters
    ----------
    first, then : Recipe
        Training on all measurements of the sampled networks, then on the best answers of all networks.
    """

    first: Recipe
    then: Recipe


def further_of(steps: int, seed: int) -> Further:
    """Return the default plan with `steps` steps in total."""
    then = steps // 3
    return Further(Recipe(steps - then, rate=3e-4, seed=seed), Recipe(then, rate=2e-4, seed=seed))


def improve(
    model: Gpt,
    walks: Sequence[Trajectory],
    asked: set[tuple[str, int]],
    plan: Further,
    folder: Path,
    say: Callable[[str], None] = lambda _text: None,
) -> Trained:
    """Continue training a model.

    Parameters
    ----------
    model : Gpt
        Initial model.
    walks : sequence of Trajectory
        All measurements, including the answers of the model.
    asked : set
        Configuration and index of the networks that were sampled.
    plan : Further
        Steps and learning rates.
    folder : Path
        Folder of checkpoints, from which an interrupted call resumes.
    say : callable
        Called with progress messages.

    Raises
    ------
    InputError
        There are too few measurements, or a checkpoint belongs to another run.
    """
    style = Style(profile=model.profile, want=True, longest=model.shape.context)
    read = list(zip(walks, read_examples(walks, style, say), strict=True))
    kept = [(walk, found) for walk, found in read if not is_judged(walk)]
    judged = [found for walk, found in read if is_judged(walk)]
    own = [found for walk, found in kept if (walk.machine, walk.index) in asked]
    stages = {
        "first": TrainingStage(plan.first, own, judged),
        "then": TrainingStage(plan.then, [found for _, found in kept], judged, best=True),
    }
    module = TorchTransformer(model.shape)
    module.take(model)
    curves = go_through(module, stages, folder, say)
    about = {"networks": len(walks), "asked": len(asked), "further": asdict(plan), "loss": curves}
    return Trained(module.gpt(profile=model.profile), about)
