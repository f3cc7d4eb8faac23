"""The training loop: steps over examples with checkpoints from which it resumes."""

import math
import pickle
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  an extra
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from compiler.cache.digest import name
from compiler.llm.training.dataset import Batch, TokenizedExample, batch_of, batches, parts
from compiler.llm.training.torch_transformer import TorchTransformer
from hw.errors import InputError

#: Validation losses by step.
Curve = list[tuple[int, float]]
#: Exceptions raised when reading damaged or unrelated files.
_DAMAGED = (
    OSError,
    EOFError,
    RuntimeError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    pickle.UnpicklingError,
)


def beginning(module: TorchTransformer, groups: Sequence[Sequence[TokenizedExample]]) -> str:
    """Return a digest of the initial weights and the examples of a training run."""
    weights = {key: each.cpu().numpy() for key, each in module.state_dict().items()}
    words = [np.fromiter((word for each in group for word in each.words), np.int32) for group in groups]
    sizes = [np.array([(len(each.words), each.asked) for each in group], np.int32) for group in groups]
    return name(weights, words, sizes)


def keep(
    path: Path,
    module: TorchTransformer,
    optimizer: torch.optim.Optimizer,
    asked: dict[str, Any],
    done: tuple[int, Curve],
) -> None:
    """Write a checkpoint atomically, replacing an earlier one.

    Parameters
    ----------
    path : Path
        Path of the checkpoint.
    module, optimizer : TorchTransformer, Optimizer
        Current model and optimizer state.
    asked : dict
        Identity of the training run; only the same run resumes from the file.
    done : int, list
        Steps done so far, and the losses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    state = {
        "asked": asked,
        "step": done[0],
        "curve": done[1],
        "module": module.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    torch.save(state, beside)
    beside.replace(path)


def resume(
    path: Path, module: TorchTransformer, optimizer: torch.optim.Optimizer, asked: dict[str, Any]
) -> tuple[int, Curve]:
    """Load a checkpoint if there is one; return the steps done and the losses.

    Raises
    ------
    InputError
        The checkpoint belongs to another run or is damaged.
    """
    if not path.exists():
        return 0, []
    try:
        state = torch.load(path, weights_only=True)
        same = state["asked"] == asked
        if same:
            module.load_state_dict(state["module"])
            optimizer.load_state_dict(state["optimizer"])
            return int(state["step"]), [(int(step), float(loss)) for step, loss in state["curve"]]
    except _DAMAGED as error:
        first = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(
            f"{path}: cannot be read as a checkpoint: {first}; remove it to begin anew"
        ) from None
    raise InputError(f"{path}: a checkpoint of another training; remove it to begin anew")


_DECAY, _CLIP, _WARM = 0.1, 1.0, 100
#: Steps between checkpoints and between progress messages.
_KEEP, _SAY = 200, 50


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a training run.

    Parameters
    ----------
    steps : int
        Number of steps (batches).
    batch : int
        Maximum number of examples per batch.
    words : int
        Maximum number of tokens per batch of several examples, which bounds memory use.
    rate : float
        Maximum learning rate, with warmup and cosine decay.
    seed : int
        Random seed of the order of the examples.
    """

    steps: int
    batch: int = 64
    words: int = 64 * 192
    rate: float = 1e-3
    seed: int = 0


@dataclass(frozen=True)
class Fitted:
    """Result of a run: steps and validation losses (nats per answer token)."""

    curve: list[tuple[int, float]]


def fit(
    module: TorchTransformer,
    groups: Sequence[Sequence[TokenizedExample]],
    judged: Sequence[TokenizedExample],
    recipe: Recipe,
    checkpoint: Path,
    say: Callable[[str], None] = lambda _text: None,
) -> Fitted:
    """Train a model.

    Parameters
    ----------
    module : TorchTransformer
        Model to train, in place.
    groups : sequence of sequences of TokenizedExample
        Training examples; each group is sampled equally often.
    judged : sequence of TokenizedExample
        Validation examples.
    recipe : Recipe
        Hyperparameters of the run.
    checkpoint : Path
        Checkpoint file, written periodically; training resumes from it if it exists.
    say : callable
        Called with progress messages.

    Raises
    ------
    InputError
        The checkpoint belongs to another recipe or other examples, or is damaged.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module.to(device)
    optimizer = torch.optim.AdamW(_groups_of(module), lr=recipe.rate, betas=(0.9, 0.98))
    asked = {"recipe": vars(recipe), "shape": vars(module.shape), "begins": beginning(module, groups)}
    first, curve = resume(checkpoint, module, optimizer, asked)
    drawn = batches(groups, recipe.batch, recipe.words, random.Random(f"{recipe.seed} {first}"))
    total = 0.0
    for step in range(first, recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * _pace(step, recipe.steps)
        loss = loss_of(module, next(drawn), device)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), _CLIP)
        optimizer.step()
        total += float(loss.detach())
        if (step + 1) % _SAY == 0:
            say(f"step {step + 1} of {recipe.steps}: loss {total / _SAY:.3f}")
            total = 0.0
        if (step + 1) % _KEEP == 0 or step + 1 == recipe.steps:
            curve.append((step + 1, judge(module, judged, recipe)))
            say(f"step {step + 1} of {recipe.steps}: {curve[-1][1]:.3f} on what was not shown")
            keep(checkpoint, module, optimizer, asked, (step + 1, curve))
    return Fitted(curve)


def judge(module: TorchTransformer, judged: Sequence[TokenizedExample], recipe: Recipe) -> float:
    """Return the mean loss per answer token."""
    device = next(module.parameters()).device
    total = words = 0.0
    with torch.no_grad():
        for part in parts(judged, recipe.batch, recipe.words):
            made = batch_of(part)
            count = int(made.counts.sum())
            total += float(loss_of(module, made, device)) * count
            words += count
    return total / max(words, 1)


def loss_of(module: TorchTransformer, batch: Batch, device: torch.device) -> torch.Tensor:
    """Return the mean cross-entropy of the answer tokens in nats."""
    counts = torch.from_numpy(batch.counts).to(device)
    with products(device):
        scores = module(torch.from_numpy(batch.words).to(device), counts)
    return functional.cross_entropy(scores.float(), torch.from_numpy(batch.following).to(device)[counts])


def _pace(step: int, steps: int) -> float:
    warm = min((step + 1) / min(_WARM, steps), 1.0)
    return warm * (0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2)


def _groups_of(module: TorchTransformer) -> list[dict[str, Any]]:
    """Return parameter groups: weight decay applies to matrices but not to norms."""
    matrices = [each for each in module.parameters() if each.ndim > 1]
    rest = [each for each in module.parameters() if each.ndim <= 1]
    return [{"params": matrices, "weight_decay": _DECAY}, {"params": rest, "weight_decay": 0.0}]


#: CPU flags of fast bfloat16 multiplication.
_BFLOAT16 = ("amx_bf16", "avx512_bf16")


def products(device: torch.device) -> AbstractContextManager[object]:
    """Context in which matrix products use bfloat16 if that is faster; weights stay float32.

    Parameters
    ----------
    device : torch.device
        Device to compute on.
    """
    if device.type == "cpu" and multiplies_bfloat16():
        return torch.autocast("cpu", torch.bfloat16)
    return nullcontext()


def multiplies_bfloat16() -> bool:
    """Return whether the CPU multiplies bfloat16 faster than float32."""
    found = torch.cpu.get_capabilities()
    return any(found.get(name) for name in _BFLOAT16)
