"""Append-only JSONL files for concurrent writers; lines that a killed writer left incomplete are skipped."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from hw.errors import InputError


class JsonlLog:
    """Append-only JSONL file.

    Parameters
    ----------
    path : path
        Path of the file; the file and its folder are created when the first line is added.
    """

    def __init__(self, path: Path):
        self.path = path

    def read(self) -> list[Any]:
        """Return the values of all complete lines.

        Raises
        ------
        InputError
            The file cannot be read.
        """
        try:
            text = self.path.read_text("utf-8") if self.path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.path}: cannot be read: {error}") from None
        return [value for line in text.splitlines() if (value := _parsed(line)) is not None]

    def add(self, value: Any) -> None:
        """Append a value as a line; an incomplete last line is terminated first."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = json.dumps(value).encode() + b"\n"
        with self.path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                data = data if file.read(1) == b"\n" else b"\n" + data
            file.write(data)


def _parsed(line: str) -> Any:
    """Parse a line; return None if the line is incomplete."""
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None
