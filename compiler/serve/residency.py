"""Which programs are in the instruction store: brought in while others run, given up by use."""

from collections.abc import Iterable
from dataclasses import dataclass

from compiler.codegen.programs import Part
from compiler.dispatch.bind import candidates
from compiler.dispatch.guard import Guard
from cosim.driver import Driver

#: Words of a part's programs, and the guards.
Key = tuple[tuple[tuple[int, ...], ...], tuple[Guard, ...]]


@dataclass
class _Resident:
    """Programs in the store: their segments, the opcode that is their own, macro-instructions on their way to it."""

    segments: list[int]
    opcode: int
    expected: int = 0
    used: int = 0


def _key(part: Part) -> Key:
    return tuple(each.words for each in part.programs), tuple(variant.guard for variant in part.instead)


class Residency:
    """Keeps programs in the instruction store, each with an opcode of its own; the same words are there once.

    Programs that the machine chooses among have one opcode, and come and go together.

    An opcode is never bound anew while a macro-instruction in the ring names it: such a one carries operands that are
    right for one version of a network alone.

    Parameters
    ----------
    driver : Driver
        The machine's driver; nobody else loads programs.

    Attributes
    ----------
    loads, evictions, load_cycles : int
        Programs loaded, programs given up for others, and cycles from the first word of a load to its check.
    """

    def __init__(self, driver: Driver):
        self.driver, self.config = driver, driver.config
        self._known: dict[Key, _Resident] = {}
        self._clock = 0
        self.loads = self.evictions = self.load_cycles = 0

    def __contains__(self, part: Part) -> bool:
        return _key(part) in self._known

    def opcode(self, part: Part) -> int:
        """The opcode of resident programs."""
        return self._known[_key(part)].opcode

    def expect(self, part: Part) -> None:
        """A macro-instruction has been sent to resident programs."""
        entry = self._known[_key(part)]
        self._clock += 1
        entry.expected, entry.used = entry.expected + 1, self._clock

    def done(self, part: Part) -> None:
        """One of them has completed."""
        self._known[_key(part)].expected -= 1

    def bring(self, part: Part, keep: Iterable[Part] = (), soon: Iterable[Part] = ()) -> bool:
        """Load programs if they are not there; False if there is no room for them now.

        Parameters
        ----------
        part : Part
            What is needed.
        keep : iterable of Part
            Stay, even if nothing is on its way to them.
        soon : iterable of Part
            What is needed next, in order: whatever is needed last, or never, goes first.
        """
        if part in self:
            return True
        out = self._leaving(part, {_key(each) for each in keep}, [_key(each) for each in soon])
        if out is None:
            return False
        for key in out:
            self._unload(key)
        self.evictions += len(out)
        start, store = self.driver.device.cycle, self.driver.programs
        segments = [store.load(program, dma=True) for program in part.programs]
        self.load_cycles += self.driver.device.cycle - start
        opcode = min(set(range(self.config.opcodes)) - {each.opcode for each in self._known.values()})
        store.bind(opcode, candidates(part, segments))
        self._known[_key(part)] = _Resident(segments, opcode)
        self.loads += len(segments)
        return True

    def leave(self, parts: Iterable[Part], keep: Iterable[Part]) -> None:
        """Unload programs that nothing is on its way to, but for those to keep."""
        kept = {_key(each) for each in keep}
        for key in {_key(each) for each in parts} - kept:
            entry = self._known.get(key)
            if entry and not entry.expected and not any(map(self.driver.programs.in_use, entry.segments)):
                self._unload(key)

    def _unload(self, key: Key) -> None:
        for segment in self._known.pop(key).segments:
            self.driver.programs.unload(segment)

    def forget_expected(self) -> None:
        """Nothing is on its way any more: the ring has been emptied."""
        for entry in self._known.values():
            entry.expected = 0

    def _leaving(self, part: Part, keep: set[Key], soon: list[Key]) -> list[Key] | None:
        """Programs that make room by leaving; None if even all that may leave do not."""
        distance = {key: place for place, key in reversed(list(enumerate(soon)))}
        free = [key for key, each in self._known.items() if not each.expected and key not in keep]
        free.sort(key=lambda key: (-distance.get(key, len(soon)), self._known[key].used))
        out: list[Key] = []
        while not self._room(part, out):
            if len(out) == len(free):
                return None
            out.append(free[len(out)])
        return out

    def _room(self, part: Part, out: list[Key]) -> bool:
        """Whether programs fit, in words, segments and opcodes, once some have left."""
        segments = [segment for key in out for segment in self._known[key].segments]
        lengths = [len(program.words) for program in part.programs]
        return len(self._known) - len(out) < self.config.opcodes and self.driver.programs.fit(
            lengths, segments
        )
