"""Training loop over batches of examples, with checkpoints for interrupted runs."""

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
from compiler.llm.training.dataset import Batch, TokenizedExample, batch_of, batches, length_batches
from compiler.llm.training.torch_transformer import TorchTransformer
from compiler.util.progress import progress
from hw.errors import InputError

#: Validation losses by step.
Curve = list[tuple[int, float]]
#: Exceptions raised by reading damaged or unrelated files.
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


def run_digest(module: TorchTransformer, groups: Sequence[Sequence[TokenizedExample]]) -> str:
    """Return a digest of the initial weights and the examples of a training run."""
    weights = {key: each.cpu().numpy() for key, each in module.state_dict().items()}
    tokens = [np.fromiter((token for each in group for token in each.tokens), np.int32) for group in groups]
    sizes = [
        np.array([(len(each.tokens), each.prompt_length) for each in group], np.int32) for group in groups
    ]
    return name(weights, tokens, sizes)


def save_checkpoint(
    path: Path,
    module: TorchTransformer,
    optimizer: torch.optim.Optimizer,
    identity: dict[str, Any],
    done: tuple[int, Curve],
) -> None:
    """Write a checkpoint atomically, replacing any earlier one.

    Parameters
    ----------
    path : Path
        Path of the checkpoint.
    module, optimizer : TorchTransformer, Optimizer
        Model and optimizer whose state is written.
    identity : dict
        Identity of the training run; the checkpoint is valid only for runs with the same identity.
    done : int, list
        Number of completed steps, and the validation losses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    state = {
        "asked": identity,
        "step": done[0],
        "curve": done[1],
        "module": module.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    torch.save(state, temporary)
    temporary.replace(path)


def load_checkpoint(
    path: Path, module: TorchTransformer, optimizer: torch.optim.Optimizer, identity: dict[str, Any]
) -> tuple[int, Curve]:
    """Load a checkpoint if the file exists; return the number of completed steps and the validation losses.

    Raises
    ------
    InputError
        The checkpoint belongs to another run or is damaged.
    """
    if not path.exists():
        return 0, []
    try:
        state = torch.load(path, weights_only=True)
        same = state["asked"] == identity
        if same:
            module.load_state_dict(state["module"])
            optimizer.load_state_dict(state["optimizer"])
            return int(state["step"]), [(int(step), float(loss)) for step, loss in state["curve"]]
    except _DAMAGED as error:
        first = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(
            f"{path}: cannot be read as a checkpoint: {first}; remove it to start from scratch"
        ) from None
    raise InputError(
        f"{path}: the checkpoint belongs to another training run; remove it to start from scratch"
    )


_WEIGHT_DECAY, _CLIP_NORM, _WARMUP_STEPS = 0.1, 1.0, 100
#: Number of steps between checkpoints, and between progress messages.
_CHECKPOINT_STEPS, _REPORT_STEPS = 200, 50


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
        Maximum number of tokens in a batch with more than one example; limits memory use.
    rate : float
        Maximum learning rate, with warmup and cosine decay.
    seed : int
        Random seed for the order of the examples.
    """

    steps: int
    batch: int = 64
    words: int = 64 * 192
    rate: float = 1e-3
    seed: int = 0


@dataclass(frozen=True)
class FitResult:
    """Result of a training run: pairs of step and validation loss, in nats per answer token."""

    curve: list[tuple[int, float]]


def fit(
    module: TorchTransformer,
    groups: Sequence[Sequence[TokenizedExample]],
    validation: Sequence[TokenizedExample],
    recipe: Recipe,
    checkpoint: Path,
    say: Callable[[str], None] = lambda _text: None,
) -> FitResult:
    """Train a model in place.

    Parameters
    ----------
    module : TorchTransformer
        Model to train.
    groups : sequence of sequences of TokenizedExample
        Training examples; each group is sampled equally often.
    validation : sequence of TokenizedExample
        Examples for the validation loss.
    recipe : Recipe
        Hyperparameters of the run.
    checkpoint : Path
        Checkpoint file, written periodically; if the file exists, training continues from it.
    say : callable
        Called with progress messages.

    Raises
    ------
    InputError
        The checkpoint belongs to another recipe or other examples, or is damaged.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module.to(device)
    optimizer = torch.optim.AdamW(_parameter_groups(module), lr=recipe.rate, betas=(0.9, 0.98))
    identity = {"recipe": vars(recipe), "shape": vars(module.shape), "begins": run_digest(module, groups)}
    first, curve = load_checkpoint(checkpoint, module, optimizer, identity)
    training_batches = batches(groups, recipe.batch, recipe.words, random.Random(f"{recipe.seed} {first}"))
    total = 0.0
    with progress(f"training {checkpoint.stem}", recipe.steps - first, "steps") as task:
        for step in range(first, recipe.steps):
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate * _rate_factor(step, recipe.steps)
            loss = loss_of(module, next(training_batches), device)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), _CLIP_NORM)
            optimizer.step()
            task.advance()
            total += float(loss.detach())
            if (step + 1) % _REPORT_STEPS == 0:
                say(f"step {step + 1} of {recipe.steps}: loss {total / _REPORT_STEPS:.3f}")
                total = 0.0
            if (step + 1) % _CHECKPOINT_STEPS == 0 or step + 1 == recipe.steps:
                curve.append((step + 1, validation_loss(module, validation, recipe)))
                say(f"step {step + 1} of {recipe.steps}: validation loss {curve[-1][1]:.3f}")
                save_checkpoint(checkpoint, module, optimizer, identity, (step + 1, curve))
    return FitResult(curve)


def validation_loss(
    module: TorchTransformer, validation: Sequence[TokenizedExample], recipe: Recipe
) -> float:
    """Return the mean validation loss per answer token."""
    device = next(module.parameters()).device
    total = tokens = 0.0
    with torch.no_grad():
        for examples in length_batches(validation, recipe.batch, recipe.words):
            batch = batch_of(examples)
            count = int(batch.mask.sum())
            total += float(loss_of(module, batch, device)) * count
            tokens += count
    return total / max(tokens, 1)


def loss_of(module: TorchTransformer, batch: Batch, device: torch.device) -> torch.Tensor:
    """Return the mean cross-entropy of the answer tokens in nats."""
    mask = torch.from_numpy(batch.mask).to(device)
    with autocast(device):
        scores = module(torch.from_numpy(batch.tokens).to(device), mask)
    return functional.cross_entropy(scores.float(), torch.from_numpy(batch.following).to(device)[mask])


def _rate_factor(step: int, steps: int) -> float:
    warmup = min((step + 1) / min(_WARMUP_STEPS, steps), 1.0)
    return warmup * (0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2)


def _parameter_groups(module: TorchTransformer) -> list[dict[str, Any]]:
    """Return the optimizer's parameter groups: matrices with weight decay, normalization weights without it."""
    matrices = [each for each in module.parameters() if each.ndim > 1]
    vectors = [each for each in module.parameters() if each.ndim <= 1]
    return [{"params": matrices, "weight_decay": _WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]


#: CPU features with which bfloat16 multiplication is fast.
_BFLOAT16 = ("amx_bf16", "avx512_bf16")


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context manager under which matrix products use bfloat16 if that is faster; weights stay float32.

    Parameters
    ----------
    device : torch.device
        Device to compute on.
    """
    if device.type == "cpu" and multiplies_bfloat16():
        return torch.autocast("cpu", torch.bfloat16)
    return nullcontext()


def multiplies_bfloat16() -> bool:
    """Return True if the CPU multiplies bfloat16 faster than float32."""
    found = torch.cpu.get_capabilities()
    return any(found.get(name) for name in _BFLOAT16)
