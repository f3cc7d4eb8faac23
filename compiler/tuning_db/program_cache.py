"""Programs in memory, in front of the database: what runs again and again is not read again."""

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from compiler.cache.content_store import ContentStore
from compiler.cache.proofs import prove
from compiler.runtime.session import Session
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import Entry
from compiler.tuning_db.keys import EntryKey
from compiler.validate import MacroCall, ValidationError
from cosim.semantics.command_checks import DramWindow

_log = logging.getLogger(__name__)

MOST_ENTRIES, MOST_BYTES = 256, 256 << 20


@dataclass(frozen=True)
class Placement:
    """Where programs find what they work on.

    Parameters
    ----------
    operands : tuple of tuples of int
        For each code of an entry the operands of its macro-instructions.
    windows : tuple of tuples of (int, int, int)
        For each code the parts of DRAM that its programs may touch, as `compiler.validate.validate` takes them.
    """

    operands: tuple[tuple[int, ...], ...]
    windows: tuple[tuple[DramWindow, ...], ...]

    @staticmethod
    def of(session: Session) -> "Placement":
        """Where a session has laid its network, for the first of its samples."""
        most = session.network.config.windows
        return Placement(
            tuple(tuple(each.operands(0)) for each in session.loaded),
            tuple(tuple(each.windows([0], most)) for each in session.loaded),
        )


@dataclass
class _Held:
    """An entry, and where it has been proved."""

    entry: Entry
    proved: set[Placement] = field(default_factory=set)


class ProgramCache:
    """The programs used last, each with where it has been proved. Threads may share it.

    What another process puts into the database is seen once `forget` has been called, or the entry has gone.

    Parameters
    ----------
    database : Database
        Where entries come from and go to.
    proofs : Store or None
        Remembers proofs from run to run; None: everything is proved once by this object.
    most_entries, most_bytes : int
        Bounds; the least recently used go first.

    Attributes
    ----------
    hits, misses : int
        Programs that were here, and that were asked of the database.
    """

    def __init__(
        self,
        database: TuningDatabase,
        proofs: ContentStore | None = None,
        most_entries: int = MOST_ENTRIES,
        most_bytes: int = MOST_BYTES,
    ):
        self.database, self.proofs = database, proofs
        self.most_entries, self.most_bytes = most_entries, most_bytes
        self.hits = self.misses = 0
        self._held: OrderedDict[EntryKey, _Held] = OrderedDict()
        self._bytes = 0
        self._lock = threading.RLock()

    def best(self, key: EntryKey) -> Entry | None:
        """The best program; None if there is none."""
        held = self._find(key)
        return None if held is None else held.entry

    def runnable(self, key: EntryKey, placement: Placement) -> Entry | None:
        """The best program, proved harmless where it is to run; None if there is none, or it is refused (a warning)."""
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
        """As `Database.put_best`; the better one of the two is here from now on."""
        with self._lock:
            self.forget(entry.key)  # if it was not kept, another process may have a better one
            kept = self.database.put_best(entry)
            if kept:
                self._hold(entry)
        return kept

    def drop_best(self, key: EntryKey) -> None:
        """As `Database.drop_best`."""
        self.forget(key)
        self.database.drop_best(key)

    def forget(self, *keys: EntryKey) -> None:
        """Ask the database again for these keys, without any for all."""
        with self._lock:
            for key in keys or list(self._held):
                held = self._held.pop(key, None)
                self._bytes -= held.entry.bytes if held else 0

    def _find(self, key: EntryKey) -> _Held | None:
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                self.hits += 1
                self._held.move_to_end(key)
                return held
            self.misses += 1
            entry = self.database.best(key)
            return None if entry is None else self._hold(entry)

    def _hold(self, entry: Entry) -> _Held:
        self.forget(entry.key)
        held = self._held[entry.key] = _Held(entry)
        self._bytes += entry.bytes
        while len(self._held) > self.most_entries or (self._bytes > self.most_bytes and len(self._held) > 1):
            self.forget(next(iter(self._held)))
        return held


def _prove(entry: Entry, placement: Placement, proofs: ContentStore | None) -> None:
    """Prove each code of an entry; its macro-instructions may follow one another without a pause."""
    for code, operands, windows in zip(entry.codes, placement.operands, placement.windows, strict=True):
        calls = [MacroCall(program, operands) for _ in range(2) for program in code.programs]
        prove(code.config, calls, windows, proofs)
