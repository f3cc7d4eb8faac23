"""PyTorch models given as `module:function`, a user function that returns the model."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler.util import plugin_registry
from compiler.util.user_code_errors import guarded
from hw.errors import InputError, shown


@dataclass(frozen=True)
class TorchModel:
    """What a function returned.

    Parameters
    ----------
    model : torch.nn.Module or torch.export.ExportedProgram
    example : tensor, array, tuple of them, dict of them by name, or None
        Inputs to export it with.
    dynamic_shapes : as torch.export.export has it
        Dimensions that stay open.
    """

    model: Any
    example: Any = None
    dynamic_shapes: Any = None


def is_reference(model: str | Path) -> bool:
    """Whether a model is named as `module:function`, not as a file."""
    return plugin_registry.is_reference(str(model)) and not Path(model).exists()


def load_reference(reference: str) -> TorchModel:
    """Call the function that a reference names. This runs the user's code, with all it may do.

    Parameters
    ----------
    reference : str
        `module:function`; the module is looked for as `python -m` does, in the current folder first. The function
        takes no arguments and returns a module, or (module, example inputs), or (module, example inputs, dynamic
        shapes).

    Raises
    ------
    InputError
        There is no such module or function, or its code failed.
    """
    if not plugin_registry.is_reference(reference):
        raise InputError(f"a PyTorch model must be named module:function, not {shown(reference)}")
    function = plugin_registry.load_reference(reference, "functions")
    if not callable(function):
        raise InputError(f"{reference}: must be a function, not {shown(function)}")
    with redirect_stdout(sys.stderr):  # standard output is for results
        made = guarded(function, f"{reference} failed")
    return _parts(reference, made)


def _parts(reference: str, made: Any) -> TorchModel:
    """A module by itself, or with what it is exported with."""
    if not isinstance(made, Sequence):
        return TorchModel(made)
    if not 2 <= len(made) <= 3:
        raise InputError(
            f"{reference}: must return a module, (module, example inputs) or (module, example inputs, "
            f"dynamic shapes), not {len(made)} values"
        )
    return TorchModel(*made)
