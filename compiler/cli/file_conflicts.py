"""Files that a verb writes: no two of them are one file, and none is a file that it reads.

What a verb is called with is compared before it begins. What only its model names, such as files of weights or Python
modules, shows when it is opened: that is refused before anything is written.
"""

import argparse
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from compiler.util.files import check_output
from hw.errors import InputError

#: The files that the verb on its way writes.
_claimed: list[Path] = []


def claim(args: argparse.Namespace, *options: str) -> None:
    """Refuse at once outputs that could not be written, or that are one file or an input; keep readers off them.

    Parameters
    ----------
    args : Namespace
        How a verb was called: `options` and `--json` are what it writes, all its other files what it reads.
    options : str
        Names of the options that take files to write.

    Raises
    ------
    InputError
        As `check_outputs`; later, until `release`, from whoever opens one of these files to read it.
    """
    values = vars(args)
    written = [values[name] for name in options]
    others = (value for name, value in values.items() if name not in options)
    check_outputs(written, _paths(others), values.get("json"))
    _watch_files()
    _claimed[:] = _all(written, values.get("json"))


def release() -> None:
    """The verb has ended: its files may be read."""
    _claimed.clear()


def check_outputs(
    outputs: Iterable[Path | None], inputs: Iterable[Path | None] = (), report: str | None = None
) -> None:
    """Refuse at once outputs that could not be written, that are one file, or that would overwrite an input.

    Parameters
    ----------
    outputs, inputs : iterable of path
        Files that the verb writes and reads; None stands for those it was not asked for.
    report : str, optional
        Argument of `--json`.
    """
    written = _all(outputs, report)
    read = [path for path in inputs if path]
    for number, path in enumerate(written):
        if any(_same(path, each) for each in read):
            raise _overwriting(path)
        if any(_same(path, each) for each in written[:number]):
            raise InputError(f"{path} is named for two outputs: they must be different files")
        check_output(path)


def _all(outputs: Iterable[Path | None], report: str | None) -> list[Path]:
    written = [path for path in outputs if path]
    return [*written, Path(report)] if report and report != "-" else written


def _paths(values: Iterable[Any]) -> Iterator[Path]:
    """The paths among the values of options, those given several times included."""
    for value in values:
        yield from (
            each for each in (value if isinstance(value, list) else [value]) if isinstance(each, Path)
        )


def _same(one: Path, other: Path) -> bool:
    """Whether two paths name one file, which may not be there yet; a device like /dev/null is no file."""
    try:
        return one.samefile(other) and one.is_file()
    except OSError:
        return one.resolve() == other.resolve()


def _overwriting(path: Path) -> InputError:
    return InputError(f"{path} is an input: the output must be another file")


def _refuse_to_read(event: str, args: tuple[Any, ...]) -> None:
    """Refuse to open a claimed file for reading; the interpreter tells of every file that is opened."""
    if event != "open" or not _claimed or args[2] & os.O_ACCMODE == os.O_WRONLY:
        return
    try:
        opened = os.stat(_source(args[0]))  # noqa: PTH116 - it may be the number of an open file
    except (OSError, ValueError, TypeError):
        return  # whoever opens it finds out
    for path in _claimed:
        if path.is_file() and os.path.samestat(opened, path.stat()):
            raise _overwriting(path)


def _source(opened: Any) -> Any:
    """The file itself, or the Python text that a file of byte code was made of."""
    text = os.fsdecode(opened) if isinstance(opened, (str, bytes)) else ""
    return importlib.util.source_from_cache(text) if text.endswith(".pyc") else opened


@cache
def _watch_files() -> None:
    """Have the interpreter ask `_refuse_to_read`: once, since that is for good."""
    sys.addaudithook(_refuse_to_read)
