"""Micro-programs that replace generated programs: assembly texts, and templates that do not depend on addresses."""

import hashlib
import re
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


#: Maximum number of commands of a template; maximum number of fields in which a command differs from its source.
_MAX_COMMANDS, _MAX_FIELDS = 1 << 13, 64
#: Maximum magnitude of a change; fields have at most 32 bits.
_MAX_CHANGE = 1 << 33
_DIGEST, _FIELD = re.compile(r"[0-9a-f]{64}"), re.compile(r"[a-z][a-z0-9_]{0,31}")


@dataclass(frozen=True)
class TemplateCommand:
    """Command of a template.

    Parameters
    ----------
    source : int
        Index of the command of the generated program from which this command is derived.
    changes : tuple of (str, int)
        Fields that differ, with the change: a difference, or for packed words the bits that are inverted.
    """

    source: int
    changes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class ProgramTemplate:
    """Program as changes of a generated program, which apply to the same layers with other addresses and weights.

    Parameters
    ----------
    form : str
        Digest of the units and the sizes of the commands of the generated program, which must be the same where the
        template is applied.
    commands : tuple of TemplateCommand
        Commands in the order in which they are issued.
    """

    form: str
    commands: tuple[TemplateCommand, ...]


def template_values(template: ProgramTemplate) -> dict[str, Any]:
    """Encode a template as JSON values."""
    commands = [
        [each.source, dict(each.changes)] if each.changes else each.source for each in template.commands
    ]
    return {"form": template.form, "commands": commands}


def read_template(values: Any) -> ProgramTemplate:
    """Restore a template from untrusted values; raise ValueError if they do not describe one."""
    if not isinstance(values, dict) or values.keys() != {"form", "commands"}:
        raise ValueError("a template must have the fields form and commands")
    form, commands = values["form"], values["commands"]
    if not isinstance(form, str) or not _DIGEST.fullmatch(form):
        raise ValueError("the form of a template must be a SHA-256 in hexadecimal")
    if not isinstance(commands, list) or not 1 <= len(commands) <= _MAX_COMMANDS:
        raise ValueError(f"a template must have 1..{_MAX_COMMANDS} commands")
    return ProgramTemplate(form, tuple(map(_read_command, commands)))


def _read_command(values: Any) -> TemplateCommand:
    source, changes = values if isinstance(values, list) and len(values) == 2 else (values, {})
    if not isinstance(source, int) or not _is_integer(source, _MAX_COMMANDS) or source < 0:
        raise ValueError(f"the source of a command must be an integer in 0..{_MAX_COMMANDS}")
    if not isinstance(changes, dict) or len(changes) > _MAX_FIELDS:
        raise ValueError(f"the changes of a command must be an object of at most {_MAX_FIELDS} fields")
    for name, change in changes.items():
        if not _FIELD.fullmatch(name) or not _is_integer(change, _MAX_CHANGE):
            raise ValueError(f"a change must be an integer of a field, not {shown(change)} of {shown(name)}")
    return TemplateCommand(source, tuple(sorted(changes.items())))


def _is_integer(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= most
