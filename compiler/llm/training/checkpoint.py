"""Training checkpoints."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compiler.cache.digest import name
from compiler.llm.training.dataset import TokenizedExample
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
