"""Checks that the output files of a verb differ from each other and from its input files.

Files given on the command line are compared before the verb starts. Files that only the model refers to, such as
external weights or Python modules, are checked when they are opened, before any output is written.
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

#: Output files of the running verb.
_claimed: list[Path] = []


def claim(args: argparse.Namespace, *options: str) -> None:
    """Reject unwritable or conflicting output files, and watch for later reads of them.

    Parameters
    ----------
    args : Namespace
        Parsed arguments: `options` and `--json` are outputs, all other paths are inputs.
    options : str
        Names of the options whose values are output files.

    Raises
    ------
    InputError
        As `check_outputs`; until `release` is called, also from any attempt to open an output file for reading.
    """
    values = vars(args)
    written = [values[name] for name in options]
    others = (value for name, value in values.items() if name not in options)
    check_outputs(written, _paths(others), values.get("json"))
    _watch_files()
    _claimed[:] = _all(written, values.get("json"))


def release() -> None:
    """Stop watching the output files; called when the verb has ended."""
    _claimed.clear()


def check_outputs(
    outputs: Iterable[Path | None], inputs: Iterable[Path | None] = (), report: str | None = None
) -> None:
    """Raise InputError for outputs that cannot be written, name the same file, or would overwrite an input.

    Parameters
    ----------
    outputs, inputs : iterable of path
        Files that the verb writes and reads; None for options that were not given.
    report : str, optional
        Value of `--json`: a path, or `-` for standard output.
    """
    written = _all(outputs, report)
    read = [path for path in inputs if path]
    for number, path in enumerate(written):
        if any(_same(path, each) for each in read):
            raise _overwriting(path)
        if any(_same(path, each) for each in written[:number]):
            raise InputError(f"{path} is given for two outputs: they must be different files")
        check_output(path)


def _all(outputs: Iterable[Path | None], report: str | None) -> list[Path]:
    written = [path for path in outputs if path]
    return [*written, Path(report)] if report and report != "-" else written


def _paths(values: Iterable[Any]) -> Iterator[Path]:
    """Yield the paths among option values, including those of repeatable options."""
    for value in values:
        yield from (
            each for each in (value if isinstance(value, list) else [value]) if isinstance(each, Path)
        )


def _same(one: Path, other: Path) -> bool:
    """Return whether two paths name the same file, existing or not; devices such as /dev/null do not count."""
    try:
        return one.samefile(other) and one.is_file()
    except OSError:
        return one.resolve() == other.resolve()


def _overwriting(path: Path) -> InputError:
    return InputError(f"{path} is an input: the output must be another file")


def _refuse_to_read(event: str, args: tuple[Any, ...]) -> None:
    """Audit hook that raises InputError if an output file is opened for reading."""
    if event != "open" or not _claimed or args[2] & os.O_ACCMODE == os.O_WRONLY:
        return
    try:
        opened = os.stat(_source(args[0]))  # noqa: PTH116 - it may be a file descriptor
    except (OSError, ValueError, TypeError):
        return  # opening it will raise the error
    for path in _claimed:
        if path.is_file() and os.path.samestat(opened, path.stat()):
            raise _overwriting(path)


def _source(opened: Any) -> Any:
    """Return the file itself, or the source file of a byte-code file."""
    text = os.fsdecode(opened) if isinstance(opened, (str, bytes)) else ""
    return importlib.util.source_from_cache(text) if text.endswith(".pyc") else opened


@cache
def _watch_files() -> None:
    """Install the audit hook once; hooks cannot be removed."""
    sys.addaudithook(_refuse_to_read)
