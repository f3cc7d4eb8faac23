"""Reads .npy and .npz files: the headers are checked before any data is read or decompressed."""

import io
import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hw.errors import InputError

MAX_READ_BYTES = 2 << 30
"""Largest total size in bytes of the arrays read from a file in one call."""
_MAGIC_ZIP = b"PK"
_SUFFIX = ".npy"
#: Exceptions raised by damaged headers and archives. Headers are Python literals, so any parser error is possible.
_FORMAT_ERRORS = (
    ValueError,
    SyntaxError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    OverflowError,
    EOFError,
    MemoryError,
    RecursionError,
    RuntimeError,
    NotImplementedError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class StoredArray:
    """An array of an open file whose header has been read.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array; the first axis indexes the samples.
    dtype : numpy.dtype
        Data type of the elements.
    fortran_order : bool
        True for Fortran (column-major) order, in which the first samples are spread over the whole file.
    data : IO of bytes
        The open file, positioned at the first element.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran_order: bool
    data: IO[bytes]

    def byte_count(self, count: int) -> int:
        """Number of bytes to read for the first `count` samples."""
        whole = self.fortran_order or not self.shape
        shape = self.shape if whole else (min(count, self.shape[0]), *self.shape[1:])
        return math.prod(shape) * self.dtype.itemsize

    def read(self, count: int) -> NDArray:
        """Return the first `count` samples, or all if there are fewer; ValueError if the file is truncated."""
        size = self.byte_count(count)
        data = self.data.read(size)
        if len(data) < size:
            raise ValueError(f"truncated: {len(data):,} of {size:,} bytes of data")
        flat = np.frombuffer(data, self.dtype)
        if not self.shape:
            return flat.reshape(()).copy()
        if self.fortran_order:
            return flat.reshape(self.shape[::-1]).T[:count].copy()
        return flat.reshape(-1 if flat.size else 0, *self.shape[1:]).copy()


class ArrayFile:
    """An open .npy or .npz file.

    Attributes
    ----------
    arrays : dict of StoredArray by name
        The arrays of an .npz file by name, or the one array of a .npy file under the name "".
    named : bool
        True for an .npz file, whose arrays have names.
    """

    def __init__(self, path: "Path | io.BytesIO", file: IO[bytes], stack: ExitStack) -> None:
        self._path = path
        self.named = file.read(len(_MAGIC_ZIP)) == _MAGIC_ZIP
        file.seek(0)
        if not self.named:
            self.arrays = {"": _header(file)}
            return
        archive = stack.enter_context(zipfile.ZipFile(file))
        self.arrays = {
            name.removesuffix(_SUFFIX): _header(stack.enter_context(archive.open(name)))
            for name in archive.namelist()
        }

    def read(self, count: int | None = None) -> dict[str, NDArray]:
        """Return the first samples of all arrays.

        Parameters
        ----------
        count : int or None
            Number of samples along the first axis; None reads all.

        Raises
        ------
        InputError
            The samples take more than `MAX_READ_BYTES`; nothing is read in that case.
        """
        counts = {
            name: max(array.shape[0] if count is None and array.shape else count or 0, 0)
            for name, array in self.arrays.items()
        }
        size = sum(array.byte_count(counts[name]) for name, array in self.arrays.items())
        if size > MAX_READ_BYTES:
            raise InputError(
                f"{self._path}: {size:,} bytes of samples exceed the limit of {MAX_READ_BYTES:,} bytes (see --limit)"
            )
        return {name: array.read(counts[name]) for name, array in self.arrays.items()}


@contextmanager
def open_arrays(path: "Path | io.BytesIO") -> Iterator[ArrayFile]:
    """Open a .npy or .npz file and read its headers.

    Parameters
    ----------
    path : Path or BytesIO
        Path of the file, or its contents in memory (`str` of it names the file in messages).

    Raises
    ------
    InputError
        On opening or inside the `with` block: the file cannot be read, is damaged, or holds Python objects.
    """
    try:
        with ExitStack() as stack:
            file = path if isinstance(path, io.BytesIO) else stack.enter_context(path.open("rb"))
            yield ArrayFile(path, file, stack)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except _FORMAT_ERRORS as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise InputError(f"{path}: must be a .npy or .npz file of numbers: {lines[0]}") from None


def read_array(path: Path) -> NDArray:
    """Return the array of a .npy file.

    Raises
    ------
    InputError
        The file cannot be read, is damaged or too large, or is an .npz file.
    """
    with open_arrays(path) as file:
        if file.named:
            raise InputError(f"{path}: must be a .npy file with one array, not an .npz file")
        return file.read()[""]


def _header(file: IO[bytes]) -> StoredArray:
    version = npy.read_magic(file)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"header version {version[0]}.{version[1]} is not supported")
    shape, fortran_order, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("contains Python objects")
    if min(shape, default=0) < 0:
        raise ValueError(f"invalid shape {shape}")
    return StoredArray(shape, dtype, fortran_order, file)
