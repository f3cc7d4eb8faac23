"""Append-only journal of measurements, and its packed (compressed) form."""

import json
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from compiler.llm.data.trajectories import Trajectory
from compiler.util.files import parsed_line
from hw.errors import InputError, WorkError, reason_of

FORMAT = "mla-llm-corpus"
VERSION = 1
_HEADER = {"format": FORMAT, "version": VERSION}
#: Maximum decompressed size in bytes, since packed files may come from untrusted sources.
_MAX_BYTES = 1 << 28


class CorpusJournal:
    """Journal of measured networks; an entry is on disk as soon as `add` returns.

    Parameters
    ----------
    path : Path
        Path of the journal file, created if missing.

    Raises
    ------
    InputError
        The file is not a journal, or it is damaged.
    WorkError
        The file cannot be written.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            text = path.read_text("utf-8") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read: {reason_of(error)}") from None
        lines = [
            line for line in text.splitlines(keepends=True) if line.endswith("\n")
        ]  # the last line may be incomplete
        self.done = (
            {(trajectory.machine, trajectory.index) for trajectory in _trajectories(lines, path)}
            if lines
            else set()
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write("w", "".join(lines) or json.dumps(_HEADER) + "\n")

    def add(self, trajectory: Trajectory) -> None:
        """Append the measurements of a network."""
        self._write("a", _line(trajectory.as_json()))
        self.done.add((trajectory.machine, trajectory.index))

    def _write(self, mode: str, text: str) -> None:
        try:
            with self.path.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise WorkError(f"{self.path}: cannot be written: {error.strerror}") from None


def read(path: Path) -> list[Trajectory]:
    """Read the trajectories of a journal, or of a packed journal (.xz).

    Raises
    ------
    InputError
        The file cannot be read or is damaged.
    """
    try:
        if path.suffix == ".xz":
            with lzma.open(path) as file:
                data = file.read(_MAX_BYTES + 1)
        else:
            data = path.read_bytes()
        text = data.decode("utf-8")
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {reason_of(error)}") from None
    if len(data) > _MAX_BYTES:
        raise InputError(f"{path}: more than {_MAX_BYTES:,} bytes of measurements")
    return list(_trajectories(text.splitlines(keepends=True), path))


def pack(trajectories: Iterable[Trajectory], path: Path) -> None:
    """Write a packed journal, sorted by hardware configuration and index so that equal contents give equal files.

    Raises
    ------
    WorkError
        The file cannot be written.
    """
    ordered = sorted(trajectories, key=lambda trajectory: (trajectory.machine, trajectory.index))
    text = json.dumps(_HEADER) + "\n" + "".join(_line(trajectory.as_json()) for trajectory in ordered)
    try:
        path.write_bytes(lzma.compress(text.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME))
    except OSError as error:
        raise WorkError(f"{path}: cannot be written: {error.strerror}") from None


def _trajectories(lines: list[str], path: Path) -> Iterator[Trajectory]:
    if not lines or parsed_line(lines[0]) != _HEADER:
        raise InputError(f"{path}: not a corpus of the language model, or of another version")
    for number, line in enumerate(lines[1:], 2):
        try:
            yield Trajectory.from_json(parsed_line(line))
        except ValueError as error:
            raise InputError(f"{path}:{number}: damaged: {error}") from None


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":")) + "\n"
