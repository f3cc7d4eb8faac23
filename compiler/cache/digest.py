"""SHA-256 content digests of graphs, layers, options and other plain data.

The digest of a graph is a Merkle tree over its constants, tensors and nodes.
"""

import dataclasses
import hashlib
import importlib.metadata
import struct
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from compiler.ir.graph import Graph
from compiler.ir.identity import identity_of, items
from compiler.layers.base import Drain, Layer

_ROOT = Path(__file__).parents[2]
#: Packages whose sources determine compiled networks and proofs.
_SOURCES = ("compiler", "cosim", "hw")
#: Libraries whose versions determine compiled networks and proofs.
_LIBRARIES = ("numpy", "onnx", "scipy", "tflite")


def digest(value: Any) -> bytes:
    """Return the digest of plain data, arrays, enumerations, dataclasses, graphs, and containers of them.

    Types and fields are identified by their stable names (`compiler.ir.identity`) instead of their Python names.

    Raises
    ------
    TypeError
        The value has an unsupported type, or a type without stable names.
    """
    return hashlib.sha256(_encoded(value)).digest()


def name(*values: Any) -> str:
    """Return the hexadecimal digest of several values."""
    return digest(values).hex()


def _encoded(value: Any) -> bytes:
    """Encode a value injectively: a letter for the type, and a length before each variable-length item."""
    if value is None or isinstance(value, (bool, np.bool_)):
        return b"N" if value is None else b"T" if value else b"F"
    if isinstance(value, Enum):
        kind, members, _ = identity_of(type(value))
        return b"e" + _text(kind) + _text(members[value.name])
    if isinstance(value, (int, np.integer)):
        return b"i" + _text(str(int(value)))
    if isinstance(value, (float, np.floating)):
        return b"f" + struct.pack("<d", float(value))
    if isinstance(value, str):
        return b"s" + _text(value)
    if isinstance(value, (bytes, memoryview)):
        return b"b" + hashlib.sha256(value).digest()
    if isinstance(value, np.ndarray):
        return b"a" + _array(value)
    if isinstance(value, Mapping):
        return _many(b"m", [digest((key, value[key])) for key in sorted(value)])
    if isinstance(value, (tuple, list)):
        return _many(b"l", [digest(each) for each in value])
    if isinstance(value, (set, frozenset)):
        return _many(b"u", sorted(digest(each) for each in value))
    return _whole(value)


def _whole(value: Any) -> bytes:
    """Encode a graph or a dataclass."""
    if isinstance(value, Graph):
        tensors, nodes = ([digest(part) for part in parts.values()] for parts in (value.tensors, value.nodes))
        ends = [digest(value.name), digest(value.inputs), digest(value.outputs)]
        ends += [digest(value.states)] if value.states else []
        return b"g" + _many(b"l", tensors) + _many(b"l", nodes) + _many(b"l", ends)
    kind = identity_of(type(value)).name
    return b"d" + _text(kind) + _many(b"l", [digest(item) for item in items(value)])


def _text(text: str) -> bytes:
    data = text.encode(errors="surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _many(letter: bytes, parts: list[bytes]) -> bytes:
    return letter + struct.pack("<Q", len(parts)) + b"".join(parts)


def _array(array: np.ndarray) -> bytes:
    if array.dtype.hasobject:
        raise TypeError("arrays of objects have no digest")
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    contents = hashlib.sha256(little.tobytes()).digest()
    return digest((array.dtype.str.lstrip("<>|="), array.shape)) + contents


#: Fields of layers and their components (by stable names) that contain names of tensors.
_NAMES = frozenset({"x", "y", "tensor", "source", "other"})
#: Fields that contain names in arbitrary order.
_NAME_SETS = frozenset({"constants"})
#: Fields that contain names of nodes, on which no cycle depends.
_IGNORED = frozenset({"name", "nodes"})
#: Fields with scales, zero points and limits of the quantization: cycles depend at most on which of them are zero.
_SCALING = frozenset(
    {"zp", "x_zp", "w_zp", "y_zp", "slope_zp", "clip", "mult", "exponent", "epsilon", "shift", "positive"}
    | {"negative", "scaled", "fields", "power", "unit"}
)
#: Operators that only limit the range of results, which costs no cycles.
_FREE_OPS = frozenset({"clip", "relu", "relu6"})


def shape_of(layers: Sequence[Layer]) -> str:
    """Return the digest of all properties on which the cycles of layers depend.

    Layers that differ only in names, weights, scales or zero points take the same time under the same schedule, so
    schedules are shared among them. Programs and the exactness of outputs are not shared: they are stored under the
    digest of the graph (`compiler.tuning_db.entries.subgraph_of`).
    """
    return name("shape", _Anonymous().value(tuple(layers)))


class _Anonymous:
    """Converter that replaces names with numbers, in the order of first use, and arrays with their types and shapes."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def value(self, value: Any) -> Any:
        """Return a copy of a value without names and array contents, for computing its digest."""
        if isinstance(value, np.ndarray):
            return ("array", value.dtype.str, value.shape)
        if isinstance(value, Mapping):
            return {key: self.value(each) for key, each in value.items()}
        if isinstance(value, (tuple, list)):
            return tuple(self.value(each) for each in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            # Sets of names come last, when most of their names have numbers.
            fields = sorted(items(value), key=lambda item: item[0] in _NAME_SETS)
            parts = [(field, self.part(field, each)) for field, each in fields if field not in _IGNORED]
            more = value.common_scale if isinstance(value, Drain) else None
            return (identity_of(type(value)).name, parts, more)
        return value

    def part(self, field: str, value: Any) -> Any:
        """Return the value of a field, with names replaced with numbers."""
        if field in _SCALING:
            return _scaling(value)
        if field == "ops":
            return tuple(op for op in value if op not in _FREE_OPS)
        if field in _NAMES:
            return self.named(value)
        if field in _NAME_SETS:
            return sorted(self.number(each) for each in sorted(value))
        if field == "shapes":
            return [(self.number(key), self.value(each)) for key, each in value.items()]
        return self.value(value)

    def named(self, value: Any) -> Any:
        """Return the number of a name, or the numbers of several names."""
        if isinstance(value, str):
            return self.number(value)
        return tuple(self.named(each) for each in value) if isinstance(value, tuple) else self.value(value)

    def number(self, value: str) -> int:
        """Return the number of a name; a new name gets the next number."""
        return self.numbers.setdefault(value, len(self.numbers))


def _scaling(value: Any) -> Any:
    """Return which parts of a scaling field exist and are not zero."""
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape)
    if isinstance(value, Mapping):
        return sorted(str(key) for key in value)
    return value is not None and bool(np.any(np.asarray(value)))


@cache
def version(root: Path = _ROOT) -> str:
    """Return the digest of the sources of compiler and validator, and of the versions of the libraries they use."""
    files = sorted(path for each in _SOURCES for path in (root / each).rglob("*.py"))
    parts = [(str(path.relative_to(root)), path.read_bytes()) for path in files]
    return name(parts, [importlib.metadata.version(library) for library in _LIBRARIES])
