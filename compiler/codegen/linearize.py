"""One sequence from the steps of all layers: loads early, drains late."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from compiler.codegen.load_scheduling import Load, due
from compiler.commands.commands import CircularBuffer, Command, Tile, TileStep
from compiler.options import USUAL, DramTiming
from hw.config import MlaConfig
from hw.isa.enums import SEMAPHORE_MAX, Unit

#: So many loads at most go ahead of what reads them: half of what semaphores count to (docs/machine.md).
_AHEAD = SEMAPHORE_MAX // 2


def linearize(
    config: MlaConfig,
    steps: Sequence[TileStep],
    prefetch: Sequence[int],
    after: Mapping[int, int] | None = None,
    dram: DramTiming = USUAL,
) -> list[Command]:
    """All commands in order.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the target machine.
    steps : sequence of TileStep
        Steps in order of execution.
    prefetch : sequence of int
        For each step the one from which on its loads may come.
    after : dict, optional
        For steps of layers that take turns the one from which on their loads find what others of them store.
    dram : DramTiming
        Timing of the memory.
    """
    arranger = _Arranger(steps, prefetch, after or {})
    return arranger.run(due(config, steps, list(arranger.loads()), dram))


class _Arranger:
    def __init__(self, steps: Sequence[TileStep], prefetch: Sequence[int], after: Mapping[int, int]):
        self.steps, self.prefetch, self.after = steps, prefetch, after
        self.out: list[Command] = []
        self.waiting: list[tuple[int, Command]] = []  # (slot it is due in, command): drains and stores

    def run(self, in_time: Sequence[tuple[int, Command]]) -> list[Command]:
        loads = deque(in_time)
        for slot, step in enumerate(self.steps):
            while loads and loads[0][0] <= slot:
                self._emit(loads.popleft()[1])
            if slot in self.after and not step.matrix:
                self._beside(step)
                continue
            for command in step.matrix:
                self._emit(command)
            self._due(slot)
            self.waiting += [(slot + 1, command) for command in step.fuse]
            self.waiting += [(slot + 2, command) for command in step.stores]
            if not step.matrix:
                self._due(slot + 1)
        self._due(len(self.steps) + 2)
        return self.out

    def _beside(self, step: TileStep) -> None:
        """A step of FUSE alone among others: what drains a tile of MATRIX that is not complete yet stays behind it."""
        for command in step.fuse:
            self._emit(command)
        for command in step.stores:
            self._emit(command)

    def loads(self) -> Iterator[Load]:
        """All loads in order; one may come after the last use of what it overwrites and the making of what it reads."""
        free: dict[Tile, int] = {}
        made: dict[CircularBuffer, int] = {}
        fresh: dict[CircularBuffer, int] = {}
        readers: list[int] = []
        for slot, step in enumerate(self.steps):
            if slot not in self.after:
                made |= fresh
                fresh = {}
            for command in step.loads:
                early = max(free.get(command.target, self.prefetch[slot]), self.after.get(slot, 0))
                for ref in command.reads():
                    early = max(early, made.get(ref.ring, 0))
                if len(readers) >= _AHEAD:
                    early = max(early, readers[-_AHEAD] + 1)
                readers.append(slot)
                yield Load(command, early, slot)
            for command in (*step.matrix, *step.fuse, *step.stores):
                free |= dict.fromkeys((*command.sources, command.target), slot + 1)
            for command in step.stores:
                (fresh if slot in self.after else made)[command.write().ring] = slot + 1

    def _due(self, slot: int) -> None:
        """Emit what is due by now."""
        for entry in [entry for entry in self.waiting if entry[0] <= slot]:
            if entry in self.waiting:
                self._flush(entry)

    def _emit(self, command: Command) -> None:
        """Emit a command after everything waiting that it depends on."""
        for entry in list(self.waiting):
            if entry in self.waiting and _conflict(entry[1], command):
                self._flush(entry)
        self.out.append(command)

    def _flush(self, entry: tuple[int, Command]) -> None:
        """Emit what waits, after what waits before it and must come first."""
        command = entry[1]
        for other in self.waiting[: self.waiting.index(entry)]:
            first = other[1].unit == command.unit or _conflict(other[1], command)
            if first and other in self.waiting:
                self._flush(other)
        self.waiting.remove(entry)
        self.out.append(command)


def _conflict(first: Command, second: Command) -> bool:
    """True if two commands must keep their order."""
    a, b = first.target, second.target
    return a == b or a in second.sources or b in first.sources


def lifetimes(commands: Sequence[Command]) -> dict[CircularBuffer, tuple[int, int]]:
    """First and last place of the sequence at which each ring is in use."""
    out: dict[CircularBuffer, tuple[int, int]] = {}
    for at, command in enumerate(commands):
        for ring in command.rings:
            first, _ = out.get(ring, (at, at))
            out[ring] = (first, at)
    return out


def workers(commands: Sequence[Command]) -> dict[CircularBuffer, frozenset[int]]:
    """Layers whose commands work on each ring; those of LOAD, which may come early, do not count."""
    out: dict[CircularBuffer, set[int]] = {}
    for command in commands:
        for ring in command.rings:
            users = out.setdefault(ring, set())
            if command.unit != Unit.LOAD:
                users.add(command.layer)
    return {ring: frozenset(users) for ring, users in out.items()}
