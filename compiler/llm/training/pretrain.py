"""Training of a model on all measurements, then on the best answers; fine-tuning on its own measured answers."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compiler.llm.data.held_out import is_validation
from compiler.llm.data.model_graphs import NetworkGraph, is_validation_family, pretraining_sequences
from compiler.llm.data.trajectories import Trajectory
from compiler.llm.model.numpy_transformer import Gpt, TransformerShape
from compiler.llm.tokens.layer_prompt import Ask
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.llm.training.dataset import NetworkExamples, PromptOptions, TokenizedExample, tokenize_examples
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
        Hyperparameters of the training on all measurements, and of the subsequent training on the best answers.
    profile, want : bool
        True if prompts include the current cost, and True if they include a target cost. Without targets, prompts
        always request the best cost.
    known : int
        Number of known schedules of similar layers in prompts.
    graphs : Recipe or None
        Hyperparameters of the next-token training on graphs of public models, which precedes the other training; None
        to omit it.
    """

    shape: TransformerShape
    first: Recipe
    then: Recipe
    profile: bool = True
    want: bool = True
    known: int = 0
    graphs: Recipe | None = None


@dataclass(frozen=True)
class TrainedModel:
    """Trained model with metadata: networks, examples and validation losses."""

    model: Gpt
    about: dict[str, Any]


def default_plan(
    steps: int, then: int, seed: int = 0, shape: TransformerShape | None = None, graphs: int = 0
) -> Plan:
    """Return the default plan.

    Parameters
    ----------
    steps, then : int
        Number of steps on all measurements, and number of steps on the best answers.
    seed : int
        Random seed for the order of the examples.
    shape : TransformerShape or None
        Dimensions of the model; None for the default.
    graphs : int
        Number of steps on graphs of public models before the others.
    """
    return Plan(
        shape or TransformerShape(len(LANGUAGE)),
        Recipe(steps, seed=seed),
        Recipe(then, rate=3e-4, seed=seed),
        graphs=Recipe(graphs, seed=seed) if graphs else None,
    )


def train(
    trajectories: Sequence[Trajectory],
    plan: Plan,
    folder: Path,
    say: Callable[[str], None] = lambda _text: None,
    start: Gpt | None = None,
    graphs: Sequence[NetworkGraph] = (),
) -> TrainedModel:
    """Train a model on measurements, after graphs of public models if the plan has steps for them.

    Parameters
    ----------
    trajectories : sequence of Trajectory
        Measurements to learn from.
    plan : Plan
        Dimensions, steps and learning rates.
    folder : Path
        Folder of checkpoints, from which an interrupted run continues.
    say : callable
        Called with progress messages.
    start : Gpt or None
        Initial model with the shape of the plan; None for random weights.
    graphs : sequence of NetworkGraph
        Public models of the first stage.

    Raises
    ------
    InputError
        There are too few measurements, or a checkpoint belongs to another run.
    """
    options = PromptOptions(plan.profile, plan.want, plan.shape.context, plan.known)
    tokenized = list(zip(trajectories, tokenize_examples(trajectories, options, say), strict=True))
    training = [examples for trajectory, examples in tokenized if not is_validation(trajectory)]
    validation = [examples for trajectory, examples in tokenized if is_validation(trajectory)]
    stages = {
        "first": TrainingStage(plan.first, training, validation),
        "then": TrainingStage(plan.then, training, validation, best=True),
    }
    if plan.graphs is not None:
        stages = {"graphs": graph_stage(plan.graphs, graphs, plan.shape.context)} | stages
    module = TorchTransformer(plan.shape, plan.first.seed)
    if start is not None:
        module.load_weights(start)
    curves = run_stages(module, stages, folder, say)
    about = {
        "networks": len(trajectories),
        "examples": sum(len(each.every) for each in training),
        "plan": asdict(plan),
        "loss": curves,
        "without": [name for name in ("profile", "want") if not getattr(plan, name)],
    }
    return TrainedModel(module.gpt(profile=plan.profile, known=plan.known), about)


def graph_stage(recipe: Recipe, graphs: Sequence[NetworkGraph], most: int) -> "TrainingStage":
    """Return the stage that trains on graphs of public models; each family is sampled equally often.

    Parameters
    ----------
    recipe : Recipe
        Hyperparameters of the stage.
    graphs : sequence of NetworkGraph
        Public models, those of the validation families included.
    most : int
        Maximum number of tokens of an example.
    """
    families = {
        family: [TokenizedExample(tokens, 1) for tokens in sequences]
        for family, sequences in pretraining_sequences(LANGUAGE, graphs, most).items()
    }
    training = [
        NetworkExamples(examples, [])
        for family, examples in families.items()
        if not is_validation_family(family)
    ]
    validation = [
        NetworkExamples([example], [])
        for family, examples in families.items()
        if is_validation_family(family)
        for example in examples[:: max(len(examples) // _VALIDATION_EXAMPLES, 1)]
    ]
    return TrainingStage(recipe, training, validation)


#: Approximate number of examples of each validation family.
_VALIDATION_EXAMPLES = 16


@dataclass(frozen=True)
class TrainingStage:
    """One stage of a training run.

    Parameters
    ----------
    recipe : Recipe
        Hyperparameters of the stage.
    training, validation : sequence of NetworkExamples
        Examples of the training networks and of the validation networks.
    best : bool
        True to use only the best answers.
    """

    recipe: Recipe
    training: Sequence[NetworkExamples]
    validation: Sequence[NetworkExamples]
    best: bool = False


def run_stages(
    module: TorchTransformer, stages: dict[str, TrainingStage], folder: Path, say: Callable[[str], None]
) -> dict[str, list[tuple[int, float]]]:
    """Train in consecutive stages, and return the validation losses by name of the stage.

    Raises
    ------
    InputError
        A stage has no examples, or a checkpoint belongs to another run.
    """
    curves = {}
    for name, stage in stages.items():
        groups, validation_groups = (
            group_examples(part, best=stage.best) for part in (stage.training, stage.validation)
        )
        if not groups or not validation_groups:
            raise InputError(
                f"{len(stage.training)} networks are too few for training: measure more networks"
            )
        if stage.recipe.steps:
            validation_examples = [
                group[number % len(group)] for number, group in enumerate(validation_groups)
            ]
            path = folder / f"{name}.pt"
            curves[name] = fit(
                module, groups, validation_examples, stage.recipe, path, partial(_report, say, name)
            ).curve
    return curves


def group_examples(examples: Sequence[NetworkExamples], *, best: bool) -> list[list[TokenizedExample]]:
    """Group examples by network and type of answer; if `best`, only examples with the best answers."""
    each = (network.best if best else network.every for network in examples)
    groups = ([one for one in every if one.ask is ask] for every in each for ask in Ask)
    return [group for group in groups if group]


def _report(say: Callable[[str], None], name: str, text: str) -> None:
    say(f"{name}: {text}")


@dataclass(frozen=True)
class FineTuningPlan:
    """Plan of fine-tuning.

    Parameters
    ----------
    first, then : Recipe
        Hyperparameters of the training on all measurements of the prompted networks, and of the subsequent training on
        the best answers of all networks.
    """

    first: Recipe
    then: Recipe


def fine_tuning_plan(steps: int, seed: int) -> FineTuningPlan:
    """Return the default fine-tuning plan for a total of `steps` steps."""
    then = steps // 3
    return FineTuningPlan(Recipe(steps - then, rate=3e-4, seed=seed), Recipe(then, rate=2e-4, seed=seed))


def fine_tune(
    model: Gpt,
    trajectories: Sequence[Trajectory],
    prompted: set[tuple[str, int]],
    plan: FineTuningPlan,
    folder: Path,
    say: Callable[[str], None] = lambda _text: None,
) -> TrainedModel:
    """Continue to train a model, on measurements that include its own answers.

    Parameters
    ----------
    model : Gpt
        Model to start from.
    trajectories : sequence of Trajectory
        All measurements, including the answers of the model.
    prompted : set
        Hardware configuration and index of each network that the model was prompted with.
    plan : FineTuningPlan
        Steps and learning rates.
    folder : Path
        Folder of checkpoints, from which an interrupted run continues.
    say : callable
        Called with progress messages.

    Raises
    ------
    InputError
        There are too few measurements, or a checkpoint belongs to another run.
    """
    options = PromptOptions(model.profile, want=True, max_tokens=model.shape.context, known=model.known)
    tokenized = list(zip(trajectories, tokenize_examples(trajectories, options, say), strict=True))
    training = [(trajectory, examples) for trajectory, examples in tokenized if not is_validation(trajectory)]
    validation = [examples for trajectory, examples in tokenized if is_validation(trajectory)]
    sampled = [
        examples for trajectory, examples in training if (trajectory.machine, trajectory.index) in prompted
    ]
    stages = {
        "first": TrainingStage(plan.first, sampled, validation),
        "then": TrainingStage(plan.then, [examples for _, examples in training], validation, best=True),
    }
    module = TorchTransformer(model.shape)
    module.load_weights(model)
    curves = run_stages(module, stages, folder, say)
    about = {"networks": len(trajectories), "asked": len(prompted), "further": asdict(plan), "loss": curves}
    return TrainedModel(module.gpt(profile=model.profile, known=model.known), about)
