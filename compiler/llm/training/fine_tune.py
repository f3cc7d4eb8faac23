"""Fine-tunes a model on its own measured answers."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from compiler.llm.data.held_out import is_judged
from compiler.llm.data.trajectories import Trajectory
from compiler.llm.model.numpy_transformer import Gpt
from compiler.llm.training.dataset import Style, read_examples
from compiler.llm.training.loop import Recipe
from compiler.llm.training.pretrain import Trained, TrainingStage, go_through
from compiler.llm.training.torch_transformer import TorchTransformer


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
