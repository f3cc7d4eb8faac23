"""Micro-programs in the form of assembly text, which replace generated programs."""

import hashlib
from dataclasses import dataclass, fields
from typing import Any

from compiler.ir.identity import identity, identity_of, restored
from hw.errors import InputError, shown
from hw.isa.program import Program

#: Maximum number of characters of a program's text; the text of a program that fills the largest instruction store has
#: 1.2 million.
_MAX_CHARACTERS = 1 << 21


@identity("ProgramText", "replaces", "text")
@dataclass(frozen=True)
class ProgramText:
    """Program in assembly language.

    Parameters
    ----------
    replaces : str
        Digest, as computed by `digest_of`, of the program that this one replaces. The text contains the addresses and
        semaphores of that program, so it must not replace any other program.
    text : str
        Assembly text for `hw.isa.assembler`.
    """

    replaces: str
    text: str

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, str):
                raise InputError(f"schedule: {item.name} of a program must be text, not {shown(value)}")
        if len(self.text) > _MAX_CHARACTERS:
            raise InputError(
                f"schedule: a program must be at most {_MAX_CHARACTERS:,} characters long, not {len(self.text):,}"
            )


def digest_of(program: Program) -> str:
    """Return the SHA-256 of a program's words."""
    return hashlib.sha256(program.image).hexdigest()


def text_of(name: str, values: Any) -> ProgramText:
    """Restore a program's text from untrusted fields.

    Raises
    ------
    InputError
        The fields do not describe a program text; the message includes the program's name.
    """
    known = set(identity_of(ProgramText).parts.values())
    if not isinstance(values, dict) or values.keys() != known:
        raise InputError(f"schedule: program {name!r} must have the fields {', '.join(sorted(known))}")
    try:
        return restored(ProgramText, values)
    except InputError as error:
        raise InputError(f"program {name!r}: {error}") from None
