"""Files of one JSON value a line, which processes add to at the same time and may be killed while they do."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from hw.errors import InputError


class Lines:
    """Lines of JSON.

    Parameters
    ----------
    path : path
        The file; it and its folder are made with the first line.
    """

    def __init__(self, path: Path):
        self.path = path

    def read(self) -> list[Any]:
        """What whole lines say.

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
        """Add a line; one that was torn before ends first."""
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
    """None: it is torn."""
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None
