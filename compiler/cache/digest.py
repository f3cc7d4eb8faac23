"""SHA-256 content digests of graphs, options and other plain data.

The digest of a graph is a Merkle tree over its constants, tensors and nodes.
"""

import hashlib
import importlib.metadata
import struct
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from compiler.ir.graph import Graph
from compiler.ir.identity import identity_of, items

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


@cache
def version(root: Path = _ROOT) -> str:
    """Return the digest of the sources of compiler and validator, and of the versions of the libraries they use."""
    files = sorted(path for each in _SOURCES for path in (root / each).rglob("*.py"))
    parts = [(str(path.relative_to(root)), path.read_bytes()) for path in files]
    return name(parts, [importlib.metadata.version(library) for library in _LIBRARIES])
