"""In-memory LRU cache of the database's best programs."""

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from compiler.cache.content_store import ContentStore
from compiler.runtime.session import Session
from compiler.runtime.validation import prove
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import Entry, EntryKey
from compiler.validate import MacroCall, ValidationError
from cosim.semantics.command_checks import DramWindow

_log = logging.getLogger(__name__)

MAX_CACHED_ENTRIES, MAX_CACHED_BYTES = 256, 256 << 20


@dataclass(frozen=True)
class Placement:
    """DRAM addresses and windows of loaded programs.

    Parameters
    ----------
    operands : tuple of tuples of int
        Operands of the macro-instructions in each stage of an entry.
    windows : tuple of tuples of (int, int, int)
        DRAM windows that the programs of each stage may access, in the form that `compiler.validate.validate` expects.
    """

    operands: tuple[tuple[int, ...], ...]
    windows: tuple[tuple[DramWindow, ...], ...]

    @staticmethod
    def of_session(session: Session) -> "Placement":
        """Return the placement of a session's network for the first sample."""
        most = session.network.config.windows
        return Placement(
            tuple(tuple(each.operands(0)) for each in session.loaded),
            tuple(tuple(each.windows([0], most)) for each in session.loaded),
        )


@dataclass
class _CacheEntry:
    """Cached entry, with the placements for which it was proved safe."""

    entry: Entry
    proved: set[Placement] = field(default_factory=set)


class ProgramCache:
    """Thread-safe LRU cache of best programs and of the placements for which they were proved safe.

    An update by another process becomes visible when the entry has been evicted, for example by `forget`.

    Parameters
    ----------
    database : TuningDatabase
        Database whose programs are cached.
    proofs : ContentStore or None
        Persistent cache of proofs; None: proofs last as long as this object.
    max_entries, max_bytes : int
        Maximum number and maximum total size of entries; the least recently used entries are evicted first.

    Attributes
    ----------
    hits, misses : int
        Number of lookups served from memory, and number of lookups that required the database.
    """

    def __init__(
        self,
        database: TuningDatabase,
        proofs: ContentStore | None = None,
        max_entries: int = MAX_CACHED_ENTRIES,
        max_bytes: int = MAX_CACHED_BYTES,
    ):
        self.database, self.proofs = database, proofs
        self.max_entries, self.max_bytes = max_entries, max_bytes
        self.hits = self.misses = 0
        self._entries: OrderedDict[EntryKey, _CacheEntry] = OrderedDict()
        self._bytes = 0
        self._lock = threading.RLock()

    def best(self, key: EntryKey) -> Entry | None:
        """Return the best program of a key; None if there is none."""
        held = self._find(key)
        return None if held is None else held.entry

    def runnable(self, key: EntryKey, placement: Placement) -> Entry | None:
        """Return the best program of a key if it is safe at a placement, else None; log a warning if a proof fails."""
        held = self._find(key)
        if held is None:
            return None
        if placement not in held.proved:
            try:
                _prove(held.entry, placement, self.proofs)
            except ValidationError as error:
                _log.warning("the best program of subgraph %s is not used: %s", key.subgraph, error)
                return None
            held.proved.add(placement)
        return held.entry

    def put_best(self, entry: Entry) -> bool:
        """Store a program with `TuningDatabase.put_best` and update the cache; return True if it was stored."""
        with self._lock:
            self.forget(entry.key)  # if it is not stored, another process may have stored a better one
            kept = self.database.put_best(entry)
            if kept:
                self._hold(entry)
        return kept

    def drop_best(self, key: EntryKey) -> None:
        """Remove the best program of a key from the database and the cache."""
        self.forget(key)
        self.database.drop_best(key)

    def forget(self, *keys: EntryKey) -> None:
        """Evict the entries of some keys, or all entries if no key is given."""
        with self._lock:
            for key in keys or list(self._entries):
                held = self._entries.pop(key, None)
                self._bytes -= held.entry.bytes if held else 0

    def _find(self, key: EntryKey) -> _CacheEntry | None:
        with self._lock:
            held = self._entries.get(key)
            if held is not None:
                self.hits += 1
                self._entries.move_to_end(key)
                return held
            self.misses += 1
            entry = self.database.best(key)
            return None if entry is None else self._hold(entry)

    def _hold(self, entry: Entry) -> _CacheEntry:
        self.forget(entry.key)
        held = self._entries[entry.key] = _CacheEntry(entry)
        self._bytes += entry.bytes
        while len(self._entries) > self.max_entries or (
            self._bytes > self.max_bytes and len(self._entries) > 1
        ):
            self.forget(next(iter(self._entries)))
        return held


def _prove(entry: Entry, placement: Placement, proofs: ContentStore | None) -> None:
    """Prove that each executable of an entry is safe when it runs twice in direct succession."""
    for code, operands, windows in zip(entry.codes, placement.operands, placement.windows, strict=True):
        calls = [MacroCall(program, operands) for _ in range(2) for program in code.programs]
        prove(code.config, calls, windows, proofs)
