"""Reading and atomic writing of files, and writing of reports as JSON; errors name the file."""

import errno
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hw.errors import InputError, WorkError, printable

SCHEMA_VERSION = 1
#: Suffix of compiled networks.
PACKAGE_SUFFIX = ".mla"

#: Error numbers of a full or broken device, for which another path in the same folder would fail as well.
_DEVICE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})


def read_input(path: Path) -> bytes:
    """Read a file that the user named; raise InputError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _as_mla_error(path: Path, error: OSError) -> InputError | WorkError:
    """Convert an OSError to an InputError (bad path) or a WorkError (device failure)."""
    kind = WorkError if error.errno in _DEVICE_ERRORS else InputError
    return kind(f"{path} cannot be written: {error.strerror}")


@contextmanager
def _device_errors(path: Path) -> Iterator[None]:
    """Convert errors of a full or broken device to WorkErrors; other errors in the block remain unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno in _DEVICE_ERRORS:
            raise _as_mla_error(path, error) from error
        raise


def check_output(path: Path) -> None:
    """Check, before lengthy work starts, that a path can be written; raise the errors of `atomic_output`."""
    path = _writable(path)
    if not path.exists() or path.is_file():
        with _temporary_folder(path):
            pass


def _writable(path: Path) -> Path:
    """Resolve the links in a path; raise InputError for a folder, an invalid name or a write-protected device."""
    try:
        if path.is_dir():
            raise InputError(f"{path} cannot be written: it is a folder")
        path = path.resolve()
        path.exists()
    except OSError as error:
        raise _as_mla_error(path, error) from error
    except RuntimeError as error:
        raise InputError(f"{path} cannot be written: {os.strerror(errno.ELOOP)}") from error
    if path.exists() and not path.is_file() and not os.access(path, os.W_OK):
        raise InputError(f"{path} cannot be written: {os.strerror(errno.EACCES)}")
    return path


def _temporary_folder(path: Path) -> tempfile.TemporaryDirectory[str]:
    """Create a temporary folder in the folder of a path."""
    try:
        return tempfile.TemporaryDirectory(prefix=".mla-", dir=path.parent)
    except OSError as error:
        raise _as_mla_error(path, error) from error


@contextmanager
def atomic_output(path: Path) -> Iterator[Path]:
    """Yield a temporary path, whose file replaces `path` when the block ends without an error.

    A device or a pipe cannot be replaced; in this case `path` itself is yielded.

    Raises
    ------
    InputError
        The path is a folder, or its folder does not exist or is not writable.
    WorkError
        The device is full or broken.
    """
    path = _writable(path)
    if path.exists() and not path.is_file():
        with _device_errors(path):
            yield path
        return
    with _temporary_folder(path) as folder:
        temporary = Path(folder) / path.name
        with _device_errors(path):
            yield temporary
        try:
            temporary.replace(path)
        except OSError as error:
            raise _as_mla_error(path, error) from error


def write_output(path: Path, data: bytes) -> None:
    """Write data to a file atomically; raise the errors of `atomic_output`."""
    with atomic_output(path) as temporary:
        temporary.write_bytes(data)


def report(document: Mapping[str, Any], text: str, destination: str | None) -> None:
    """Print a report as text, and write it as JSON to `destination`, the value of `--json`.

    If the destination is `-`, only the JSON document is printed.
    """
    if destination != "-":
        print_text(text)
    if destination:
        write_report(document, destination)


def print_text(text: str) -> None:
    """Print a text; if this fails, the OSError names standard output as the file."""
    try:
        print(printable(text))
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def write_report(document: Mapping[str, Any], destination: str) -> None:
    """Write a report as JSON to a file, or to standard output if the destination is `-`."""
    encoded = json.dumps({"schema_version": SCHEMA_VERSION, **document}, indent=2)
    if destination == "-":
        print_text(encoded)
    else:
        write_output(Path(destination), f"{encoded}\n".encode())


def parsed_line(line: str) -> dict[str, Any]:
    """Parse a line as a JSON object; return an empty dict if it is invalid."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
