"""Per-user cache of built files, with one folder per key that is either complete or absent.

An entry is built in `<key>.part` while `<key>.lock` is locked, and renamed to `<key>` when it is complete. Therefore
neither interrupted nor concurrent builds leave incomplete entries.
"""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from cosim.rtl.descriptors import above_standard
from cosim.rtl.errors import DiskFullError
from hw.errors import InputError, WorkError, reason_of, shown

MAX_ENTRIES = 32
"""Maximum number of entries of each kind; if there are more, the least recently used entries are removed."""

FULL = (errno.ENOSPC, errno.EDQUOT)


def cache_folder() -> Path:
    """Return the folder of the cache: `MLA_CACHE`, else `mla` in `XDG_CACHE_HOME`, else ~/.cache/mla.

    A relative `XDG_CACHE_HOME` is ignored, as the XDG base directory specification requires.

    Raises
    ------
    InputError
        The path contains blanks, which make does not support.
    """
    shared = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(shared) if Path(shared).is_absolute() else Path.home() / ".cache"
    folder = Path(os.environ.get("MLA_CACHE") or base / "mla").absolute()
    if any(c.isspace() for c in str(folder)):
        raise InputError(f"MLA_CACHE must be a path without blanks, not {shown(str(folder))}")
    return folder


def cache_key(parts: Iterable[str | bytes]) -> str:
    """Return the key of an entry, a hash of all inputs that determine the entry."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:32]


def cached(
    kind: str,
    key: str,
    make: Callable[[Path, int], None],
    watch: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Path:
    """Return the folder of the entry with a key, after building the entry if it does not exist.

    If the entry exists, nothing is written, so the cache may be read-only.

    Parameters
    ----------
    kind : str
        Kind of the entry, which is the name of the subfolder for such entries.
    key : str
        Key of the entry, as returned by `cache_key`.
    make : Callable
        Function that builds the entry, called as `make(folder, lock)` with an empty folder. Its child processes should
        inherit the file descriptor `lock`, so that the lock remains held if this process is killed while they are still
        writing.
    watch : Callable
        Function that returns a context, which is active while this process builds the entry or waits for another
        process to build it.

    Raises
    ------
    DiskFullError
        The disk is full; no incomplete entry remains.
    InputError
        `MLA_CACHE` is not a folder in which files can be created.
    WorkError
        The cache cannot be written.
    """
    shelf = cache_folder() / kind
    entry = shelf / key
    if not _exists(entry):
        _make_shelf(shelf)
        try:
            with watch(), _locked(shelf / f"{key}.lock") as lock:
                if not entry.exists():
                    _fill(entry, make, lock)
            _prune(shelf)
        except OSError as error:
            raise _explained(error, shelf) from error
    with suppress(OSError):  # in a read-only cache, the order of use is not recorded
        os.utime(entry)
    return entry


def _exists(entry: Path) -> bool:
    try:
        return entry.exists()
    except OSError:  # the path is not valid; the creation of its folder reports the reason
        return False


def _make_shelf(shelf: Path) -> None:
    """Create the folder for entries of one kind.

    If this fails and `MLA_CACHE` is set, the error message names it, since the user can change it.
    """
    try:
        shelf.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in (*FULL, errno.EIO) or not os.environ.get("MLA_CACHE"):
            raise _explained(error, shelf) from error
        named = shown(os.environ["MLA_CACHE"])
        message = f"MLA_CACHE must be a folder in which files can be made, not {named}: {error.strerror}"
        raise InputError(message) from error


def _fill(entry: Path, make: Callable[[Path, int], None], lock: int) -> None:
    part = entry.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir()
        make(part, lock)
        part.rename(entry)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _locked(path: Path, flags: int = 0) -> Iterator[int]:
    fd = above_standard(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | flags)
        yield fd
    finally:
        os.close(fd)


def _prune(shelf: Path) -> None:
    """Remove the least recently used entries beyond the limit, and the incomplete folders that killed builds left.

    Such a folder is recognized by its lock, which is free. Lock files are not removed, since otherwise two processes
    could hold locks on different files with the same name.
    """
    for part in shelf.glob("*.part"):
        with suppress(BlockingIOError), _locked(part.with_suffix(".lock"), fcntl.LOCK_NB):
            shutil.rmtree(part, ignore_errors=True)
    entries = [path for path in shelf.iterdir() if path.is_dir() and not path.suffix]
    entries.sort(key=lambda path: path.stat().st_mtime)
    for old in entries[:-MAX_ENTRIES]:
        shutil.rmtree(old, ignore_errors=True)


def _explained(error: OSError, shelf: Path) -> WorkError:
    if error.errno in FULL:
        return DiskFullError(f"no room left on the disk of the cache {shelf}; free some, or set MLA_CACHE")
    return WorkError(f"the cache {shelf} cannot be used: {reason_of(error)}; set MLA_CACHE to move it")
