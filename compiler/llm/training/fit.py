"""One stretch of training: so many steps over examples, with checkpoints from which it goes on."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  an extra
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from compiler.llm.training.module import Module
from compiler.llm.training.shown import Batch, Shown, batch_of, batches
from hw.errors import InputError

_DECAY, _CLIP, _WARM = 0.1, 1.0, 100
#: Steps from one checkpoint, and from one message, to the next.
_KEEP, _SAY = 200, 50


@dataclass(frozen=True)
class Recipe:
    """How it is trained.

    Parameters
    ----------
    steps : int
        Batches.
    batch : int
        Examples of each.
    rate : float
        Of learning, at most: it rises at first and falls with a cosine.
    seed : int
        Of the order of the examples.
    """

    steps: int
    batch: int = 64
    rate: float = 1e-3
    seed: int = 0


@dataclass(frozen=True)
class Fitted:
    """What came of it: steps and the losses (natural logarithm, of a word of an answer) on what was not shown."""

    curve: list[tuple[int, float]]


def fit(
    module: Module, groups: Sequence[Sequence[Shown]], judged: Sequence[Shown], recipe: Recipe, checkpoint: Path,
    say: Callable[[str], None] = lambda _text: None,
) -> Fitted:  # fmt: skip
    """Train a model.

    Parameters
    ----------
    module : Module
        What is trained.
    groups : sequence of sequences of Shown
        What it is shown, each group as often as any other.
    judged : sequence of Shown
        What its loss is taken of, now and then.
    recipe : Recipe
        How.
    checkpoint : Path
        Where it is kept as it is, every now and then; if the file is there, training goes on from it.
    say : callable
        Hears of progress.

    Raises
    ------
    InputError
        The checkpoint is of another recipe, or damaged.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module.to(device)
    optimizer = torch.optim.AdamW(_groups_of(module), lr=recipe.rate, betas=(0.9, 0.98))
    first, curve = _resume(checkpoint, module, optimizer, recipe)
    drawn = batches(groups, recipe.batch, random.Random(f"{recipe.seed} {first}"))
    total = 0.0
    for step in range(first, recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * _pace(step, recipe.steps)
        loss = _loss(module, next(drawn), device)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), _CLIP)
        optimizer.step()
        total += float(loss.detach())
        if (step + 1) % _SAY == 0:
            say(f"step {step + 1} of {recipe.steps}: loss {total / _SAY:.3f}")
            total = 0.0
        if (step + 1) % _KEEP == 0 or step + 1 == recipe.steps:
            curve.append((step + 1, judge(module, judged, recipe.batch)))
            say(f"step {step + 1} of {recipe.steps}: {curve[-1][1]:.3f} on what was not shown")
            _keep(checkpoint, module, optimizer, recipe, step + 1, curve)
    return Fitted(curve)


def judge(module: Module, judged: Sequence[Shown], batch: int) -> float:
    """Mean loss of a word of the answers."""
    device = next(module.parameters()).device
    total = words = 0.0
    with torch.no_grad():
        for first in range(0, len(judged), batch):
            made = batch_of(judged[first : first + batch])
            count = int(made.counts.sum())
            total += float(_loss(module, made, device)) * count
            words += count
    return total / max(words, 1)


def _loss(module: Module, batch: Batch, device: torch.device) -> torch.Tensor:
    scores = module(torch.from_numpy(batch.words).to(device))
    counts = torch.from_numpy(batch.counts).to(device)
    return functional.cross_entropy(scores[counts], torch.from_numpy(batch.following).to(device)[counts])


def _pace(step: int, steps: int) -> float:
    warm = min((step + 1) / min(_WARM, steps), 1.0)
    return warm * (0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2)


def _groups_of(module: Module) -> list[dict[str, Any]]:
    """Matrices decay, norms do not."""
    matrices = [each for each in module.parameters() if each.ndim > 1]
    rest = [each for each in module.parameters() if each.ndim <= 1]
    return [{"params": matrices, "weight_decay": _DECAY}, {"params": rest, "weight_decay": 0.0}]


def _keep(
    path: Path, module: Module, optimizer: torch.optim.Optimizer, recipe: Recipe, step: int, curve: list
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    state = {
        "recipe": vars(recipe), "shape": vars(module.shape), "step": step, "curve": curve,
        "module": module.state_dict(), "optimizer": optimizer.state_dict(),
    }  # fmt: skip
    torch.save(state, beside)
    beside.replace(path)


def _resume(
    path: Path, module: Module, optimizer: torch.optim.Optimizer, recipe: Recipe
) -> tuple[int, list[tuple[int, float]]]:
    if not path.exists():
        return 0, []
    try:
        state = torch.load(path, weights_only=True)
        if state["recipe"] != vars(recipe) or state["shape"] != vars(module.shape):
            raise InputError(f"{path}: a checkpoint of another recipe; remove it to begin anew")
        module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])
        return int(state["step"]), [(int(step), float(loss)) for step, loss in state["curve"]]
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: cannot be read as a checkpoint: {error}; remove it to begin anew"
        ) from None
