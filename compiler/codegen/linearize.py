"""Linearization of all layers' steps into one command sequence, with late loads and delayed FUSE commands."""

import hashlib
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.list_scheduler import overlap
from compiler.commands.commands import (
    BufferRef,
    CircularBuffer,
    Command,
    Tile,
    TileStep,
    cycles,
    transfer,
    unit_cycles,
)
from compiler.options import DEFAULT_DRAM, DramTiming
from hw.config import MlaConfig
from hw.isa.enums import SEMAPHORE_MAX, Unit

#: Maximum number of loads issued ahead of their readers: half of the semaphores' range (docs/machine.md).
_MAX_LOADS_AHEAD = SEMAPHORE_MAX // 2


def linearize(
    config: MlaConfig,
    steps: Sequence[TileStep],
    prefetch: Sequence[int],
    after: Mapping[int, int] | None = None,
    dram: DramTiming = DEFAULT_DRAM,
) -> list[Command]:
    """Return the commands of all steps in issue order.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the target machine.
    steps : sequence of TileStep
        Steps in order of execution.
    prefetch : sequence of int
        For each step, the first step before which its loads may be issued.
    after : dict, optional
        For steps of interleaved layers, the first step at which the data that they load has been stored.
    dram : DramTiming
        DRAM latency and bandwidth.
    """
    arranger = _Arranger(config, steps, prefetch, after or {})
    return arranger.run(due(config, steps, list(arranger.loads()), dram))


def share_kept_buffers(layers: Sequence[list[TileStep]], may_share: Sequence[bool]) -> list[list[TileStep]]:
    """Let layers that keep the same data in the scratchpad use the same buffers, which the first of them loads.

    Parameters
    ----------
    layers : sequence of list of TileStep
        Steps of each layer, in order of execution.
    may_share : sequence of bool
        For each layer, True if its steps are not interleaved with those of other layers.

    Returns
    -------
    list of list of TileStep
        Steps of each layer; those of layers without kept buffers are the same objects.
    """
    known: dict[tuple, CircularBuffer] = {}
    out = []
    for steps, may in zip(layers, may_share, strict=True):
        loads: dict[CircularBuffer, list[Command]] = {}
        for command in (each for step in steps for each in step.loads):
            if may and command.target[0].kept:
                loads.setdefault(command.target[0], []).append(command)
        found = {buffer: known.setdefault(_contents(buffer, each), buffer) for buffer, each in loads.items()}
        shared = {buffer: other for buffer, other in found.items() if other is not buffer}
        out.append([_with_buffers(step, shared) for step in steps] if shared else steps)
    return out


def _contents(buffer: CircularBuffer, loads: Sequence[Command]) -> tuple:
    """Return a key that is equal for buffers with the same shape and contents; `loads` fill the buffer."""
    sources = dict.fromkeys(ref.buffer for command in loads for ref in command.reads())
    data = tuple(
        None if each.data is None else hashlib.sha256(each.data.tobytes()).digest() for each in sources
    )
    numbers = {each: number for number, each in enumerate((*sources, buffer))}
    fields = tuple(
        (name, replace(value, buffer=numbers[value.buffer]) if isinstance(value, BufferRef) else value)  # type: ignore[arg-type]
        for command in loads
        for name, value in command.fields.items()
    )
    # Data that are not constant are the same only if they are in the same buffer.
    return buffer.memory, buffer.size, buffer.depth, data, tuple(s for s in sources if s.data is None), fields


def _with_buffers(step: TileStep, shared: Mapping[CircularBuffer, CircularBuffer]) -> TileStep:
    """Return a step that uses other buffers in place of some, without the loads that fill these."""

    def moved(command: Command) -> Command:
        if not any(buffer in shared for buffer in command.buffers):
            return command
        fields = {
            name: replace(value, buffer=shared.get(value.buffer, value.buffer))
            if isinstance(value, BufferRef)
            else value
            for name, value in command.fields.items()
        }
        return Command(command.unit, command.layer, fields)

    return replace(
        step,
        unit_cycles=None,
        loads=[command for command in step.loads if command.target[0] not in shared],
        matrix=[moved(command) for command in step.matrix],
    )


def _conflict(first: Command, second: Command) -> bool:
    """Return True if two commands must keep their order."""
    a, b = first.target, second.target
    return a == b or a in second.sources or b in first.sources


def lifetimes(commands: Sequence[Command]) -> dict[CircularBuffer, tuple[int, int]]:
    """Return the first and the last position of the sequence at which each buffer is in use."""
    out: dict[CircularBuffer, tuple[int, int]] = {}
    for at, command in enumerate(commands):
        for buffer in command.buffers:
            first, _ = out.get(buffer, (at, at))
            out[buffer] = (first, at)
    return out


def accessing_layers(commands: Sequence[Command]) -> dict[CircularBuffer, frozenset[int]]:
    """Return the layers that access each buffer by commands other than loads, which may be prefetched."""
    out: dict[CircularBuffer, set[int]] = {}
    for command in commands:
        for buffer in command.buffers:
            users = out.setdefault(buffer, set())
            if command.unit != Unit.LOAD:
                users.add(command.layer)
    return {buffer: frozenset(users) for buffer, users in out.items()}


#: Cycles from the first request of a command to its results, in addition to memory latency and beats.
_UNIT = 25
#: Cycles, in addition to the memory latency, by which a load should complete before it is needed.
_MARGIN = 300
#: Cycles from the last sum of a tile to MATRIX's first sum of its results, in addition to FUSE's cycles for the points.
#: The value was the best of 40, 120, 250 and 400 for ad01, a chain of small dense layers (RTL n16, latency 100).
_RESULT = 250
#: MATRIX commands also precede loads that fit the queue at most this many cycles earlier, because the sequencer needs
#: time to issue them.
_MATRIX_LEAD_CYCLES = 100


@dataclass(frozen=True)
class Load:
    """Load command, the first slot in which it may be issued, and the slot that needs its data."""

    command: Command
    early: int
    needed: int


class _Arranger:
    def __init__(
        self, config: MlaConfig, steps: Sequence[TileStep], prefetch: Sequence[int], after: Mapping[int, int]
    ):
        self.config = config
        self.steps, self.prefetch, self.after = steps, prefetch, after
        self.out: list[Command] = []
        self.waiting: list[tuple[int, Command]] = []  # drains and stores, with the slot in which they are due

    def run(self, in_time: Sequence[tuple[int, Command]]) -> list[Command]:
        loads = deque(in_time)
        for slot, step in enumerate(self.steps):
            if slot and self._many_loads(self.steps[slot - 1], step):
                self._due(slot + 1)
            while loads and loads[0][0] <= slot:
                self._emit(loads.popleft()[1])
            if slot in self.after and not step.matrix:
                self._emit_fuse_only(step)
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

    @staticmethod
    def _many_loads(before: TileStep, step: TileStep) -> bool:
        """Return True if the stores of `before` must precede the loads of `step`.

        The loads of both steps together exceed the range of the semaphores, and `before` only moves data.
        """
        only_moves = not before.matrix and not before.fuse
        return only_moves and len(before.loads) + len(step.loads) > SEMAPHORE_MAX

    def _emit_fuse_only(self, step: TileStep) -> None:
        """Emit a FUSE-only step of interleaved layers, before delayed FUSE commands of preceding MATRIX steps."""
        for command in (*step.fuse, *step.stores):
            self._emit(command, exact=True)

    def loads(self) -> Iterator[Load]:
        """Yield all loads in order, with the first slot at which the buffer is free and the source has been written."""
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
                    early = max(early, made.get(ref.buffer, 0))
                if len(readers) >= _MAX_LOADS_AHEAD:
                    early = max(early, min(readers[-_MAX_LOADS_AHEAD] + 1, slot))
                readers.append(slot)
                yield Load(command, early, slot)
            for command in (*step.matrix, *step.fuse, *step.stores):
                free.update(dict.fromkeys(command.tiles, slot + 1))
            for command in step.stores:
                (fresh if slot in self.after else made)[command.write().buffer] = slot + 1

    def _due(self, slot: int) -> None:
        """Emit all delayed commands that are due in a slot."""
        for entry in [entry for entry in self.waiting if entry[0] <= slot]:
            if entry in self.waiting:
                self._flush(entry)

    def _emit(self, command: Command, exact: bool = False) -> None:
        """Emit a command after the delayed commands that it depends on; `exact` compares addresses in their tiles."""
        for entry in list(self.waiting):
            if (
                entry in self.waiting
                and _conflict(entry[1], command)
                and not (exact and not overlap(self.config, entry[1], command))
            ):
                self._flush(entry)
        self.out.append(command)

    def _flush(self, entry: tuple[int, Command]) -> None:
        """Emit a delayed command, after the delayed commands that must precede it."""
        command = entry[1]
        for other in self.waiting[: self.waiting.index(entry)]:
            first = other[1].unit == command.unit or _conflict(other[1], command)
            if first and other in self.waiting:
                self._flush(other)
        self.waiting.remove(entry)
        self.out.append(command)


def due(
    config: MlaConfig, steps: Sequence[TileStep], loads: Sequence[Load], dram: DramTiming
) -> list[tuple[int, Command]]:
    """Return the loads in order with the slot in which each is due.

    Each load is issued as late as possible for its data to arrive in time, but not before its buffer is free. The bus
    time of the following loads is taken into account. A load that is issued before it can start would occupy LOAD's
    short queue and stall the sequencer even if MATRIX could start.
    """
    times = _Times(config, steps, loads, dram)
    slots, start = [0] * len(loads), times.reads[-1]
    for index in reversed(range(len(loads))):
        load = loads[index]
        in_time = times.reads[load.needed] - _MARGIN - dram.chip_latency
        start = min(start, in_time) - cycles(load.command, config) * dram.beat(config.beat_bytes)
        slots[index] = max(bisect_right(times.reads, start) - 1, times.room(index))
    last, out = 0, []
    for load, slot in zip(loads, slots, strict=True):
        last = max(last, min(max(slot, load.early), load.needed))
        out.append((last, load.command))
    return out


def _bound_by_bus(steps: Sequence[TileStep], config: MlaConfig, beat: float) -> set[int]:
    """Return the layers whose loads take longer than their MATRIX commands."""
    balance: dict[int, float] = defaultdict(float)
    for step in steps:
        for command in step.loads:
            balance[command.layer] += cycles(command, config) * beat
        if step.matrix:
            balance[step.matrix[0].layer] -= unit_cycles(step, config).matrix
    return {layer for layer, more in balance.items() if more > 0}


class _Times:
    """Start times of steps and of load requests, assuming that commands are issued in time.

    `begins` also includes the end of the last step. `reads` holds the start times of steps without the bus time of
    stores. For layers that are limited by the bus rather than by MATRIX, `reads` includes the wait for results of other
    steps, during which loads of later steps can continue.
    """

    def __init__(self, config: MlaConfig, steps: Sequence[TileStep], loads: Sequence[Load], dram: DramTiming):
        self.config, self.beat = config, dram.beat(config.beat_bytes)
        self.starts: list[float] = []
        self.begins: list[float] = []
        self.reads: list[float] = []
        stored = 0.0
        free = [0.0]  # end of the step before each slot
        late = 0.0  # end of the previous step, including the wait for results
        made: dict[Tile, float] = {}  # time at which results are available
        bound = _bound_by_bus(steps, config, self.beat)
        address = bus = 0.0  # earliest time of the next request, and time at which the bus is free
        for slot, step in enumerate(steps):
            there = 0.0
            while len(self.starts) < len(loads) and loads[len(self.starts)].needed == slot:
                load = loads[len(self.starts)]
                address = max(address, free[load.early])
                self.starts.append(address)
                bus = max(bus, address + dram.chip_latency + _UNIT) + cycles(load.command, config) * self.beat
                address += self._requests(load.command)
                there = bus
            self.begins.append(max(free[-1], there))
            waits = [made.get(t, 0.0) for c in step.matrix if c.layer in bound for t in c.sources]
            late = max(late, there, *waits)
            self.reads.append(max(late - stored, *self.reads[-1:], 0.0))
            work = unit_cycles(step, config)
            free.append(self.begins[-1] + work.whole)
            late += work.matrix
            for command in step.fuse:
                made[command.target] = late + cycles(command, config) + _RESULT
            late = max(late, self.reads[-1] + stored + work.whole)
            stores = work.stores * self.beat
            bus, stored = bus + stores, stored + stores
        self.begins.append(free[-1])
        self.reads.append(max(late - stored, *self.reads[-1:], 0.0))

    def room(self, index: int) -> int:
        """Return the first slot whose step begins after the queue has room for the load with the given index."""
        before = index - self.config.queue_depth
        return bisect_right(self.begins, self.starts[before] + _MATRIX_LEAD_CYCLES) if before >= 0 else 0

    def _requests(self, command: Command) -> int:
        """Return the number of bursts of a load; one burst is requested per cycle."""
        lines, size = transfer(command)
        return lines * -(-size // (self.config.max_burst * self.config.beat_bytes))
