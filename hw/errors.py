"""The errors that a user can cause or encounter, shared by all packages.

Each message is one sentence for the user; the command line prints this sentence without a traceback and exits with
`exit_status`. Any other exception is a bug in this project.
"""

import re
import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

_MOST_CHARACTERS = 120
_MOST_BITS = 128


class _Shortener(reprlib.Repr):
    """Variant of Python's `reprlib.Repr` for integers of any size; the original raises an exception for integers of
    more than 4,300 digits.
    """

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= _MOST_BITS else f"an integer of {x.bit_length()} bits"


_SHORTENER = _Shortener()
_SHORTENER.maxstring = _SHORTENER.maxother = _MOST_CHARACTERS


def shown(value: Any) -> str:
    """Return the text of an invalid value for messages: its `repr`, shortened if it is long."""
    return _SHORTENER.repr(value)


#: Escapes of control characters. Tabs, line feeds, and the escape sequences of colors (`ESC [ ... m`), remain.
_CONTROL = re.compile(r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return a text with control characters escaped, since names from model files must not control the terminal."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return a suggestion for a misspelled word to append to a message, or "" if no name is similar."""
    near = get_close_matches(word, list(names), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def reason_of(error: Exception) -> str:
    """Return the reason for an error: the system's text without number and file name, or else the message."""
    return str(getattr(error, "strerror", None) or error)


class Terminated(SystemExit):
    """Exit because of a signal such as SIGTERM, which no handler of errors in a user's code may stop."""


class MlaError(Exception):
    """Base class of every error that is reported to the user. The message is one sentence that contains the invalid
    value.
    """

    exit_status = 1
    """Exit status of the command line after this error."""


class InputError(MlaError):
    """Input from the user is invalid: a file, a name, a size, a configuration."""

    exit_status = 2


class WorkError(MlaError):
    """The input is valid, but the work failed: a tool is missing, the disk is full, a process died."""

    exit_status = 1
