"""Python objects named as `module:object` on the command line. Loading one runs the user's code."""

import importlib
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from compiler.util.user_code_errors import guarded
from hw.errors import InputError, shown

_REFERENCE = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*(?:\.[^\W\d]\w*)*)")


def is_reference(text: str) -> bool:
    """Return True if a text has the form `module:object`."""
    return _REFERENCE.fullmatch(text) is not None


def load_reference(reference: str, kind: str) -> Any:
    """Import the object that a reference names.

    Parameters
    ----------
    reference : str
        `module:object`. The module is looked up as `python -m` does, in the current folder first.
    kind : str
        Kind of object that is expected, in the plural, for the error message: "functions" or "classes".

    Raises
    ------
    InputError
        The reference is malformed, the module cannot be imported, or it has no such object.
    """
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise InputError(f"{shown(reference)} must have the form module:object")
    name, path = found.groups()
    with redirect_stdout(sys.stderr):  # standard output is for results
        module = _imported(name, reference)
    value: Any = module
    for part in path.split("."):
        if not hasattr(value, part):
            near = ", ".join(each for each in vars(module) if _own(module, each)) or "none"
            raise InputError(f"{reference}: {name} has no {shown(path)[1:-1]}; its {kind}: {near}")
        value = getattr(value, part)
    return value


def _imported(name: str, reference: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return guarded(lambda: importlib.import_module(name), f"{reference}: {name} cannot be imported")


def _own(module: ModuleType, name: str) -> bool:
    value = getattr(module, name)
    return isinstance(value, Callable) and getattr(value, "__module__", "") == module.__name__
