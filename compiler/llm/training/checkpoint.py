"""Training as it is after so many steps, in a file from which it goes on."""

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

#: Losses on what was not shown, and after how many steps.
Curve = list[tuple[int, float]]
#: What reading a file that is damaged, or of something else, ends with.
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
    """What a training begins with, as a digest: the weights, and the examples."""
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
    """Write a checkpoint; one that was there is replaced as a whole.

    Parameters
    ----------
    path : Path
        Of the file.
    module, optimizer : Module, Optimizer
        As they are now.
    asked : dict
        What the training is: only the same goes on from the file.
    done : int, list
        Steps so far; the losses.
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
    """Go on from a checkpoint, if there is one: steps and losses so far.

    Raises
    ------
    InputError
        It is of something else, or damaged.
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
