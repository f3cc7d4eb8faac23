"""Arrays in .npy and .npz files: headers first, so that a file is judged before its data are read or inflated."""

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

MOST_BYTES = 2 << 30
"""Bytes of all arrays that are read from a file at once."""
_MAGIC_ZIP = b"PK"
_SUFFIX = ".npy"
#: What damaged headers and archives raise. Headers are Python literals: any error of Python's parser can come out.
_DAMAGE = (
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
    """An array of an open file, of which the header has been read.

    Parameters
    ----------
    shape : tuple of int
        Its shape; of samples the first axis counts them.
    dtype : numpy.dtype
        Type of its elements.
    columns_first : bool
        Whether the elements lie in Fortran's order, so that the first samples are spread over the whole file.
    data : IO of bytes
        The file, at the first element.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    columns_first: bool
    data: IO[bytes]

    def bytes_of(self, count: int) -> int:
        """Bytes that must be read for the first `count` samples."""
        whole = self.columns_first or not self.shape
        shape = self.shape if whole else (min(count, self.shape[0]), *self.shape[1:])
        return math.prod(shape) * self.dtype.itemsize

    def read(self, count: int) -> NDArray:
        """The first `count` samples, or all if there are fewer; ValueError if the file ends before."""
        size = self.bytes_of(count)
        data = self.data.read(size)
        if len(data) < size:
            raise ValueError(f"it ends after {len(data):,} of {size:,} bytes of data")
        flat = np.frombuffer(data, self.dtype)
        if not self.shape:
            return flat.reshape(()).copy()
        if self.columns_first:
            return flat.reshape(self.shape[::-1]).T[:count].copy()
        return flat.reshape(-1 if flat.size else 0, *self.shape[1:]).copy()


class ArrayFile:
    """An open .npy or .npz file.

    Attributes
    ----------
    arrays : dict of StoredArray by name
        Arrays of an .npz file; of a .npy file the one array, named "".
    named : bool
        Whether the file is an .npz, whose arrays have names.
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
        """The first samples of all arrays.

        Parameters
        ----------
        count : int or None
            Number of samples along the first axis; None: all.

        Raises
        ------
        InputError
            They take more than `MOST_BYTES`; nothing has been read then.
        """
        counts = {
            name: max(array.shape[0] if count is None and array.shape else count or 0, 0)
            for name, array in self.arrays.items()
        }
        size = sum(array.bytes_of(counts[name]) for name, array in self.arrays.items())
        if size > MOST_BYTES:
            raise InputError(
                f"{self._path}: {size:,} bytes of samples are more than the {MOST_BYTES:,} that are read at once"
            )
        return {name: array.read(counts[name]) for name, array in self.arrays.items()}


@contextmanager
def open_arrays(path: "Path | io.BytesIO") -> Iterator[ArrayFile]:
    """Open a .npy or .npz file and read its headers.

    Parameters
    ----------
    path : Path or BytesIO
        The file, or its contents, whose `str` names it in messages.

    Raises
    ------
    InputError
        Here or in the block: the file cannot be read, is damaged, or holds Python objects.
    """
    try:
        with ExitStack() as stack:
            file = path if isinstance(path, io.BytesIO) else stack.enter_context(path.open("rb"))
            yield ArrayFile(path, file, stack)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except _DAMAGE as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise InputError(f"{path}: must be a .npy or .npz file of numbers: {lines[0]}") from None


def read_array(path: Path) -> NDArray:
    """The array of a .npy file.

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
        raise ValueError(f"version {version[0]}.{version[1]} of its header is not supported")
    shape, columns_first, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if min(shape, default=0) < 0:
        raise ValueError(f"its shape must not be {shape}")
    return StoredArray(shape, dtype, columns_first, file)
