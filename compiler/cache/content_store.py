"""Authenticated on-disk store, which returns only unmodified entries written by the same user.

Each entry is a file that begins with an HMAC-SHA-256 of its kind, key and contents. The HMAC key is a secret file in
the same folder that only its owner can read. An entry whose HMAC does not match (damaged, truncated, moved or written
by another user) is treated as missing. An entry is written to a temporary file and renamed, so that readers never see
an incomplete one. If the folder cannot be read or written, a warning is logged, and no error is raised.
"""

import errno
import fcntl
import hashlib
import hmac
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from cosim.rtl.cache import cache_folder
from hw.errors import MlaError

_log = logging.getLogger(__name__)

#: Maximum total size in bytes; the least recently used entries are removed to stay within it.
MAX_BYTES = 1 << 30
#: Maximum number of entries of all kinds.
MAX_ENTRIES = 4096
#: Number and bytes of the entries that this process has added since it enforced the limits, by folder.
_added: dict[Path, tuple[int, int]] = {}
_SECRET = "secret"
_SECRET_BYTES = 32
_CODE_BYTES = 32
_MAGIC = b"MLAE1\n"
#: Share of the limits by which a process may exceed them before it looks for entries to remove (about 20 ms).
_SLACK = 1 / 64
#: Age in seconds beyond which temporary files are assumed to be left by killed processes and are removed.
_STALE = 3600


class ContentStore:
    """Authenticated on-disk store of entries by kind and key.

    Parameters
    ----------
    folder : Path or None
        Folder of the entries; None: the subfolder `compiled` of the user's cache (`MLA_CACHE`).
    max_bytes, max_entries : int
        Limits on the total size and on the number of entries.
    """

    def __init__(
        self, folder: Path | None = None, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES
    ):
        self._folder, self.max_bytes, self.max_entries = folder, max_bytes, max_entries
        self._warned = False

    @cached_property
    def folder(self) -> Path | None:
        """Folder of the entries; None if it cannot be created."""
        try:
            folder = cache_folder() / "compiled" if self._folder is None else self._folder
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            self._warn(f"{error.filename or self._folder}: {error.strerror}")
            return None
        except MlaError as error:
            self._warn(str(error))
            return None
        return folder

    def get(self, kind: str, key: str) -> memoryview | None:
        """Return the contents of an entry; None if it is missing or fails authentication."""
        if self.folder is None or self.secret is None:
            return None
        path = self.folder / f"{kind}-{key}"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"{path}: {error.strerror}")
            return None
        head = len(_MAGIC) + _CODE_BYTES
        contents = memoryview(data)[head:]
        if data[: len(_MAGIC)] != _MAGIC or not hmac.compare_digest(
            data[len(_MAGIC) : head], self._code(kind, key, contents)
        ):
            _log.warning("%s is damaged or was written by another user: ignored", path)
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):  # the time of use cannot be recorded in a read-only folder
            os.utime(path)
        return contents

    def put(self, kind: str, key: str, contents: bytes) -> None:
        """Add or replace an entry."""
        if self.folder is None or self.secret is None or len(contents) > self.max_bytes:
            return
        try:
            self._write(self.folder / f"{kind}-{key}", _MAGIC + self._code(kind, key, contents), contents)
            self._enforce_limits(self.folder, len(contents))
        except OSError as error:
            self._warn(f"{self.folder}: {error.strerror}")

    def _enforce_limits(self, folder: Path, size: int) -> None:
        """Prune at the first entry of this process, and whenever it has added a share of the limits."""
        if folder in _added:
            entries, total = _added[folder]
            _added[folder] = entries + 1, total + size
            if entries + 1 < self.max_entries * _SLACK and total + size <= self.max_bytes * _SLACK:
                return
        self._prune(folder)
        _added[folder] = 0, 0

    def _code(self, kind: str, key: str, contents: bytes | memoryview) -> bytes:
        assert self.secret is not None
        code = hmac.new(self.secret, f"{kind}\0{key}\0".encode(), hashlib.sha256)
        code.update(contents)
        return code.digest()

    @cached_property
    def secret(self) -> bytes | None:
        """The user's secret, created if missing; None if it can be neither read nor created."""
        if self.folder is None:
            return None
        path = self.folder / _SECRET
        try:
            return _own_secret(path) or _common_secret(path)
        except OSError as error:
            self._warn(f"{path}: {error.strerror}")
            return None

    @staticmethod
    def _write(path: Path, *parts: bytes) -> None:
        handle, name = tempfile.mkstemp(prefix=".part-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                for part in parts:
                    file.write(part)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _prune(self, folder: Path) -> None:
        """Remove the least recently used entries beyond the limits, and stale temporary files."""
        entries = sorted(_entries(folder), reverse=True)
        total = 0
        for number, (_, size, name) in enumerate(entries):
            total += size
            if total > self.max_bytes or number >= self.max_entries:
                (folder / name).unlink(missing_ok=True)

    def _warn(self, why: str) -> None:
        """Warn once that caching is disabled."""
        if not self._warned:
            _log.warning("caching is disabled: %s", why)
        self._warned = True


def _entries(folder: Path) -> Iterator[tuple[float, int, str]]:
    """Yield time of last use, size and file name of each entry, and remove stale temporary files."""
    now = time.time()
    for each in os.scandir(folder):
        if each.name == _SECRET:
            continue
        with suppress(FileNotFoundError):  # another process may prune at the same time
            about = each.stat(follow_symlinks=False)
            if each.name.startswith(".") and now - about.st_mtime > _STALE:
                Path(each.path).unlink(missing_ok=True)
            elif not each.name.startswith("."):
                yield about.st_mtime, about.st_size, each.name


def _own_secret(path: Path) -> bytes | None:
    """Return the secret; None unless this user owns the file and nobody else can access it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return None
        raise
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        private = about.st_uid == os.getuid() and not about.st_mode & 0o077 and stat.S_ISREG(about.st_mode)
        secret = file.read(_SECRET_BYTES + 1)
    return secret if private and len(secret) == _SECRET_BYTES else None


def _common_secret(path: Path) -> bytes | None:
    """Read or create the secret under a lock, so that concurrent processes agree on it."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        return _own_secret(path) or _new_secret(path)
    finally:
        os.close(folder)


def _new_secret(path: Path) -> bytes | None:
    """Replace a missing or unusable secret by a new secret."""
    with suppress(FileNotFoundError):
        path.unlink()
    handle, name = tempfile.mkstemp(prefix=".part-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(os.urandom(_SECRET_BYTES))
        with suppress(FileExistsError):
            os.link(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
    return _own_secret(path)
