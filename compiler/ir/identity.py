"""Stable names of types, fields and members, which keep stored data valid when code is renamed or moved.

The stable names of a type and of its fields are part of the data that `stored` returns, which is saved as JSON. They
are also part of digests (`compiler.cache.digest`), which are keys of database entries. The names are declared once, at
the type's definition or at the end of this module, in the order of the fields or members. Renaming a class, a field or
a member in Python does not affect stored data. A new field needs a new name at its position in the declaration. If it
is declared as `added`, data and digests from before it was added remain valid for objects with its default.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from hw.config import MlaConfig
from hw.isa.enums import BSource, Compare, Dtype, Op, Post, Reduce, Requant, Rounding, Space, Unit

T = TypeVar("T", bound=type)
V = TypeVar("V")


class Identity(NamedTuple):
    """Stable names of a type and of its fields or members.

    Parameters
    ----------
    name : str
        Stable name of the type, unique among all types.
    parts : dict
        Stable names of the fields or members, by Python name and in the order of declaration.
    omitted : dict
        Default values, by stable name, of the fields that are omitted if they have these values.
    """

    name: str
    parts: dict[str, str]
    omitted: Mapping[str, Any]


_IDENTITIES: dict[type, Identity] = {}


def identity(name: str, *parts: str, added: tuple[str, ...] = ()) -> Callable[[T], T]:
    """Return a class decorator that declares the stable names of a dataclass or an enumeration.

    Parameters
    ----------
    name : str
        Stable name of the type.
    parts : str
        Stable names of the fields or members in order. If a base class has stable names, only the names of the
        additional fields are given.
    added : tuple of str
        Stable names of fields that are omitted if they have their default values.

    Raises
    ------
    TypeError
        Another type has the same name, a name occurs twice, or the number of names differs from the number of fields or
        members.
    """

    def declare(kind: T) -> T:
        own = _parts(kind)
        bases = [each for each in kind.__mro__[1:] if each in _IDENTITIES]
        base = _IDENTITIES[bases[0]].parts if bases else {}
        more = [each for each in own if each not in base]
        if len(more) != len(parts):
            raise TypeError(f"{name} must have {len(more)} names, one for each of {more}, not {len(parts)}")
        known = base | dict(zip(more, parts, strict=True))
        if len(set(known.values())) != len(known) or any(name == each.name for each in _IDENTITIES.values()):
            raise TypeError(f"{name} must be the name of one type, and each name within it that of one part")
        base_omitted = _IDENTITIES[bases[0]].omitted if bases else {}
        omitted = {known[item.name]: _default(item) for item in _fields(kind) if known[item.name] in added}
        _IDENTITIES[kind] = Identity(name, {each: known[each] for each in own}, {**base_omitted, **omitted})
        return kind

    return declare


def _parts(kind: Any) -> list[str]:
    """Return the Python names of the fields of a dataclass or the members of an enumeration."""
    return list(kind.__members__) if issubclass(kind, Enum) else [item.name for item in fields(kind)]


def _fields(kind: Any) -> tuple[Field, ...]:
    """Return the fields of a dataclass; none for an enumeration."""
    return () if issubclass(kind, Enum) else fields(kind)


def _default(item: Field) -> Any:
    """Return the default of a field."""
    return item.default if item.default_factory is MISSING else item.default_factory()


def identity_of(kind: type) -> Identity:
    """Return the stable names of a type.

    Raises
    ------
    TypeError
        The type has not been declared with `identity`.
    """
    found = _IDENTITIES.get(kind)
    if found is None:
        raise TypeError(f"{kind.__name__} has no digest: it has no stable names (compiler.ir.identity)")
    return found


def identities() -> dict[type, Identity]:
    """Return all types whose stable names have been declared, with these names."""
    return dict(_IDENTITIES)


def _differs(value: Any, default: Any) -> bool:
    """Return True if a value is not the default; an array differs from None, and elementwise from another array."""
    different = value != default
    return different if isinstance(different, bool) else bool(different.any())


def items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the stable names and the values of the fields of a dataclass, in order, without omitted fields.

    Raises
    ------
    TypeError
        The type has no stable names.
    """
    _, parts, omitted = identity_of(type(value))
    for field, name in parts.items():
        found = getattr(value, field)
        if name not in omitted or _differs(found, omitted[name]):
            yield name, found


def stored(value: Any) -> Any:
    """Convert a value to plain data, like `dataclasses.asdict` but with the stable names of fields as keys.

    Raises
    ------
    TypeError
        A dataclass in the value has no stable names.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {name: stored(each) for name, each in items(value)}
    if isinstance(value, dict):
        return {key: stored(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(stored(each) for each in value)
    return value


def restored(kind: type[V], values: Mapping[str, Any]) -> V:
    """Construct a dataclass from the values of its fields, given by stable name.

    Raises
    ------
    TypeError
        A name is not the stable name of a field, or a field without a default is missing.
    """
    fields_of = {name: field for field, name in identity_of(kind).parts.items()}
    for name in values:
        if name not in fields_of:
            raise TypeError(f"{identity_of(kind).name} has no field {name!r}")
    return kind(**{fields_of[name]: each for name, each in values.items()})


# Types of lower-level packages, which do not depend on this module.
identity(
    "MlaConfig",
    "n",
    "bus_bytes",
    "sp_bytes",
    "acc_bytes",
    "sp_banks",
    "acc_banks",
    "wis_words",
    "segments",
    "opcodes",
    "candidates",
    "queue_depth",
    "param_slots",
    "table_slots",
    "weight_rows",
    "packed_loads",
    "wide",
    "sparse",
    "line_depth",
    "fuse_rate",
    "reciprocal_units",
    "tags",
    "loop_depth",
    "call_depth",
    "max_burst",
    "windows",
    "serial_commands",
    "pipelined",
    added=("bus_bytes", "weight_rows", "packed_loads", "wide", "sparse", "reciprocal_units"),
)(MlaConfig)
identity("Unit", "LOAD", "MATRIX", "FUSE", "STORE")(Unit)
identity("Space", "SP", "PARAM", "TABLE")(Space)
identity("Dtype", "I8", "U8", "I16", "I32")(Dtype)
identity("Rounding", "DOUBLE", "SINGLE", "EVEN", "AWAY")(Rounding)
identity("Op", "PASS", "ADD", "SUB", "MUL", "SQUARE", "MUL_SUB")(Op)
identity("BSource", "NONE", "ACC", "SP")(BSource)
identity("Requant", "OFF", "SLOT", "ROW", "IMM")(Requant)
identity("Reduce", "NONE", "SUM", "MAX", "MIN")(Reduce)
identity("Post", "NONE", "SCALE", "COUNT", "RECIP", "RSQRT", "ROW", "SLOT", "VAR_RSQRT")(Post)
identity("Compare", "ALWAYS", "EQ", "NE", "LT", "GE", "LTU", "GEU")(Compare)
