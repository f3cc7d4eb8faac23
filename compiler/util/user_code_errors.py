"""Errors of user code and of PyTorch's exporters as one-line messages with the location."""

import logging
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hw.errors import InputError, MlaError

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_OURS = Path(__file__).resolve().parents[1]
_PYTHON = Path(sysconfig.get_paths()["stdlib"]).resolve()
#: Stack frames in messages of PyTorch.
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in ([\w<>.]+)')
_COLOURS = re.compile(r"\x1b\[[0-9;]*m|\[\d+m")
_MOST = 400
#: Exporter packages, whose frames are not the user's.
_EXPORTERS = ("torch", "torchao", "onnxscript", "onnx_ir")


def guarded(work: Callable[[], _Result], doing: str, *, right: Callable[[str], str] | None = None) -> _Result:
    """Run user code; any failure becomes an InputError.

    Parameters
    ----------
    work : callable
        Function without arguments that runs the code.
    doing : str
        Start of the error message.
    right : callable or None
        Function from the error's text to advice that is appended to the message.

    Raises
    ------
    InputError
        The code raised an exception; -v logs the traceback.
    """
    try:
        return work()
    except MlaError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
        _log.info("%s", "".join(traceback.format_exception(error)))
        why, where = _first(error), _where(error)
        advice = right(_all_text(error)) if right else ""
        raise InputError(f"{doing}: {why}{where}{advice}") from None


def _chain(error: BaseException) -> list[BaseException]:
    """An exception and its causes, the root cause last."""
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)
    return found


def _all_text(error: BaseException) -> str:
    return "\n".join(str(each) for each in _chain(error))


def _first(error: BaseException) -> str:
    """Type and first line of the root cause's message."""
    root = _chain(error)[-1]
    if isinstance(root, SyntaxError):
        return f"SyntaxError: {root.msg}"
    lines = [line.strip() for line in _COLOURS.sub("", str(root)).splitlines()]
    text = next((line for line in lines if line), "")
    text = text if len(text) <= _MOST else f"{text[:_MOST]}..."
    text = text.partition(" (Size-like symbols")[0].rstrip(". ")
    return f"{type(root).__name__}: {text}" if text else type(root).__name__


def _where(error: BaseException) -> str:
    """Innermost visible line of user code, as " (file, line 3, in forward)"."""
    found: tuple[str, int, str] | None = None
    for each in reversed(_chain(error)):
        frames = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(each.__traceback__)]
        told = [(name, int(line), code) for name, line, code in _FRAME.findall(str(each))]
        own = [frame for frame in (*frames, *told) if _users(frame[0])]
        if own:
            found = own[-1]
            break
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({Path(error.filename).name}, line {error.lineno})"
    return f" ({Path(found[0]).name}, line {found[1]}, in {found[2]})" if found else ""


def _users(file: str) -> bool:
    """Return True if a file belongs neither to an installed package, nor to Python, nor to this compiler."""
    path = Path(file)
    if file.startswith("<") or "site-packages" in path.parts or "dist-packages" in path.parts:
        return False
    modules = (sys.modules.get(name) for name in _EXPORTERS)
    others = [Path(module.__file__).resolve().parent for module in modules if module and module.__file__]
    return not any(path.resolve().is_relative_to(each) for each in (_OURS, _PYTHON, *others))
