"""Micro-programs given as text, in place of those that the code generator makes."""

import hashlib
from dataclasses import dataclass, fields
from typing import Any

from compiler.ir.identity import identity, identity_of, restored
from hw.errors import InputError, shown
from hw.isa.program import Program

#: Text of a program at most, in characters: the largest instruction store takes some 1.2 million.
_MOST = 1 << 21


@identity("ProgramText", "replaces", "text")
@dataclass(frozen=True)
class ProgramText:
    """A program in assembly.

    Parameters
    ----------
    replaces : str
        `digest_of` the program that it was written to stand for: addresses and semaphores in it are those of that
        one, and it must not stand for another.
    text : str
        As `hw.isa.assembler` takes it.
    """

    replaces: str
    text: str

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, str):
                raise InputError(f"schedule: {item.name} of a program must be text, not {shown(value)}")
        if len(self.text) > _MOST:
            raise InputError(
                f"schedule: a program must be at most {_MOST:,} characters long, not {len(self.text):,}"
            )


def digest_of(program: Program) -> str:
    """SHA-256 of a program's words."""
    return hashlib.sha256(program.image).hexdigest()


def text_of(name: str, values: Any) -> ProgramText:
    """One program's text, from the fields that somebody else may have written.

    Raises
    ------
    InputError
        They are not those of a program; the message has its name.
    """
    known = set(identity_of(ProgramText).parts.values())
    if not isinstance(values, dict) or values.keys() != known:
        raise InputError(f"schedule: program {name!r} must have the fields {', '.join(sorted(known))}")
    try:
        return restored(ProgramText, values)
    except InputError as error:
        raise InputError(f"program {name!r}: {error}") from None
