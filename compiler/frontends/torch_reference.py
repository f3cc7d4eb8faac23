"""PyTorch models by name: `module:function`, a function of the user's own that returns one."""

import importlib
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from compiler.frontends.torch_errors import guarded
from hw.errors import InputError, shown

_REFERENCE = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*(?:\.[^\W\d]\w*)*)")


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
    return _REFERENCE.fullmatch(str(model)) is not None and not Path(model).exists()


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
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise InputError(f"a PyTorch model must be named module:function, not {shown(reference)}")
    with redirect_stdout(sys.stderr):  # standard output is for results
        return _called(reference, found[1], found[2])


def _called(reference: str, name: str, path: str) -> TorchModel:
    module = _imported(name, reference)
    function: Any = module
    for part in path.split("."):
        if not hasattr(function, part):
            near = ", ".join(name for name in vars(module) if _own(module, name)) or "none"
            raise InputError(f"{reference}: {name} has no {shown(path)[1:-1]}; its own functions: {near}")
        function = getattr(function, part)
    if not callable(function):
        raise InputError(f"{reference}: must be a function, not {shown(function)}")
    made = guarded(function, f"{reference} failed")
    return _parts(reference, made)


def _imported(name: str, reference: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return guarded(lambda: importlib.import_module(name), f"{reference}: {name} cannot be imported")


def _own(module: ModuleType, name: str) -> bool:
    value = getattr(module, name)
    return isinstance(value, Callable) and getattr(value, "__module__", "") == module.__name__


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
