"""The kinds of configuration field that units share."""

from enum import Enum

from hw.isa.fields import Field


def names(members: type[Enum]) -> tuple[str, ...]:
    """Names of the values of a field that is an enumeration."""
    return tuple(member.name.lower() for member in members)


def count(name: str, doc: str) -> Field:
    """Steps of a loop, at least one."""
    return Field(name, 16, default=1, doc=doc)


def stride(name: str, doc: str) -> Field:
    """Bytes or rows from step to step."""
    return Field(name, 20, signed=True, doc=doc)


def acc_stride(name: str, doc: str) -> Field:
    """Accumulator rows from step to step."""
    return Field(name, 16, signed=True, doc=doc)


def step(name: str, doc: str) -> Field:
    """Image rows or columns from step to step."""
    return Field(name, 12, signed=True, default=1, doc=doc)


def word32(name: str, doc: str, default: int = 0) -> Field:
    """A signed number of 32 bits."""
    return Field(name, 32, signed=True, default=default, doc=doc)
