"""Database keys: digests of subgraph, conditions and options."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.cache.digest import name
from compiler.ir.graph import Graph
from compiler.ir.identity import identity, identity_of, items
from compiler.layers.base import Drain, Layer
from hw.errors import InputError, shown

_DIGEST = re.compile(r"[0-9a-f]{64}")
#: Version of the keys, which is part of each: entries with keys of another version are not found. It must become
#: another text, any one, when measured cycles of an unchanged schedule become others (tests/fixtures/v1/cycles.json).
#: This one is the digest of the sources of commit 077e149, the first whose databases later commits use.
KEY_VERSION = "288a098a94dd4e6e116e6d07ddec81f3eb4418d667f2af56544a58cb765d4334"
#: Fields (stable names) of layers, and of what they are made of, that hold names of nodes and tensors.
_NAMES = frozenset({"name", "nodes", "x", "y", "tensor", "source", "other"})
#: Those that hold names whose order says nothing.
_NAME_SETS = frozenset({"constants"})


@identity("Key", "subgraph", "profile", "options")
@dataclass(frozen=True, order=True)
class EntryKey:
    """Key of a database entry; each field is a SHA-256 in hexadecimal.

    Parameters
    ----------
    subgraph : str
        Digest of the workload: `subgraph_of` or `shape_of`.
    profile : str
        Digest of machine and DRAM timing: `HardwareProfile.key`.
    options : str
        Digest of all other options: `options_of`.

    Raises
    ------
    InputError
        A field is not a digest.
    """

    subgraph: str
    profile: str
    options: str

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if not is_digest(value):
                message = f"{item.name} must be a SHA-256 in hexadecimal (64 digits of 0-9a-f), not"
                raise InputError(f"{message} {shown(value)}")


def is_digest(value: Any) -> bool:
    """True if a value is a SHA-256 in hexadecimal."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def options_of(**options: Any) -> str:
    """Digest of options by name (rounding, batch, goal, what else matters), and of `KEY_VERSION`."""
    return name("options", KEY_VERSION, options)


def subgraph_of(what: Graph | Sequence[Layer]) -> str:
    """Merkle digest of a graph or of layers: names, shapes and weights. Key of stored programs."""
    return name("subgraph", what if isinstance(what, Graph) else tuple(what))


def shape_of(layers: Sequence[Layer]) -> str:
    """Digest of what the cycles of layers depend on: no names and no contents of weights.

    Layers that differ only in these take the same time under the same schedule, so that a measurement of one is
    known for all. A program, and that its outputs are exact, is not: these belong under `subgraph_of`.
    """
    return name("shape", _Anonymous().value(tuple(layers)))


class _Anonymous:
    """Replaces names by numbers in order of first use, and arrays by their shapes."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def value(self, value: Any) -> Any:
        """A value without names, whose digest says all that counts."""
        if isinstance(value, np.ndarray):
            return ("array", value.dtype.str, value.shape)
        if isinstance(value, Mapping):
            return {key: self.value(each) for key, each in value.items()}
        if isinstance(value, (tuple, list)):
            return tuple(self.value(each) for each in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            # Sets of names come last, when most of their names have been met.
            fields = sorted(items(value), key=lambda item: item[0] in _NAME_SETS)
            parts = [(field, self.part(field, each)) for field, each in fields]
            more = value.common_scale if isinstance(value, Drain) else None
            return (identity_of(type(value)).name, parts, more)
        return value

    def part(self, field: str, value: Any) -> Any:
        """A field's value."""
        if field in _NAMES:
            return self.named(value)
        if field in _NAME_SETS:
            return sorted(self.number(each) for each in sorted(value))
        if field == "shapes":
            return [(self.number(key), self.value(each)) for key, each in value.items()]
        return self.value(value)

    def named(self, value: Any) -> Any:
        """Names, one or several, as numbers."""
        if isinstance(value, str):
            return self.number(value)
        return tuple(self.named(each) for each in value) if isinstance(value, tuple) else self.value(value)

    def number(self, value: str) -> int:
        """The number of a name."""
        return self.numbers.setdefault(value, len(self.numbers))
