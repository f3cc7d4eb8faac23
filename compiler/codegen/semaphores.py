"""Assignment of semaphores, by which each command waits for the commands that it must not overtake."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import NamedTuple

from compiler.util.lru_cache import LruCache
from cosim.semantics.bounding_box import BoundingBox, boxes, reads_slots
from cosim.semantics.command_fields import CommandFields, unpack_fields
from hw.config import MlaConfig
from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import SEMAPHORE_MAX, BSource, Unit

#: Unit whose commands overlap: a later FUSE command may read before an earlier one has written.
_SELF = Unit.FUSE
_UNITS = tuple(Unit)
#: Bytes of a lookup table.
_TABLE_BYTES = 512


@dataclass(eq=False, slots=True)
class Issued:
    """Command with resolved field values and semaphore masks.

    Parameters
    ----------
    unit : Unit
        Unit that executes the command.
    layer : int
        Index of the layer to which the command belongs.
    values : tuple of int
        All fields of the unit, in the order of its table.
    region : int
        Index of the operand to which the address in DRAM is relative.
    wait, signal : int
        Semaphore masks of the `issue` instruction.
    """

    unit: Unit
    layer: int
    values: tuple[int, ...]
    region: int = 0
    wait: int = 0
    signal: int = 0
    known: Sequence[int] = field(default=(0,) * len(Unit), repr=False)
    reach: Sequence[BoundingBox] = field(default=(), repr=False)


#: Indices of the fields that hold addresses, by unit; the regions of a command move with them.
_ADDRESSES = {
    unit: tuple(i for i, item in enumerate(UNIT_FIELDS[unit]) if item.name in names)
    for unit, names in {
        Unit.LOAD: ("dst", "dram"),
        Unit.MATRIX: ("a_base", "w_base", "acc_base"),
        Unit.FUSE: ("a_base", "b_base", "r_base", "p_base", "d_base"),
        Unit.STORE: ("src", "dram"),
    }.items()
}
_INDEX = {unit: {item.name: i for i, item in enumerate(UNIT_FIELDS[unit])} for unit in Unit}
#: Regions of a command at address 0: the box, the index of the field that holds its address, bytes per unit of it.
_Regions = list[tuple[BoundingBox, int, int]]
#: Capacity of the cache of regions; tiles of one shape share an entry.
_MAX_CACHED_REGIONS = 1 << 12
_regions: LruCache[_Regions] = LruCache(_MAX_CACHED_REGIONS)


def reach(config: MlaConfig, command: "Issued") -> list[BoundingBox]:
    """Return the regions that a command accesses, in bytes; each DRAM operand is a separate address space."""
    unit, values = command.unit, command.values
    shape = list(values)
    for index in _ADDRESSES[unit]:
        shape[index] = 0
    key = config.n, unit, command.region, tuple(shape)
    found = _regions.get(key)
    if found is None:
        found = list(_regions_at_zero(config, unit, shape, command.region))
        _regions.put(key, found)
    return [item.moved(values[index] * scale) for item, index, scale in found]


def _regions_at_zero(
    config: MlaConfig, unit: Unit, values: list[int], region: int
) -> Iterator[tuple[BoundingBox, int, int]]:
    """Yield the regions of a command whose addresses are 0, each with the field that moves it and the factor."""
    c, slot = unpack_fields(unit, values), 16 * config.n
    found = list(boxes(config, unit, c))
    for item, name in zip(found, _owners(unit, c, len(found)), strict=True):
        scale = 1
        if item.space == "slot":
            item, scale = BoundingBox("param", item.low * slot, (item.high + 1) * slot - 1), slot
        if item.space == "dram":
            item = replace(item, space=f"dram{region}")
        yield item, _INDEX[unit][name], scale
    if unit == Unit.FUSE and (c.table or c.table2):
        low = c.table_slot * _TABLE_BYTES
        size = _TABLE_BYTES * (2 if c.table_wide else 1)
        yield BoundingBox("table", low, low + size - 1), _INDEX[unit]["a_base"], 0


def _owners(unit: Unit, c: CommandFields, count: int) -> list[str]:
    """Return the field that holds the address of each of the `count` boxes of a command, in their order."""
    if unit == Unit.LOAD:
        return ["dst", "dram"][:count]
    if unit == Unit.STORE:
        return ["src", "dram"]
    if unit == Unit.MATRIX:
        names = ["w_base", "acc_base"]
    else:
        parts = {
            "b_base": c.b_src in (BSource.SP, BSource.ACC),
            "r_base": bool(c.residual),
            "p_base": reads_slots(c),
        }
        names = [*(name for name, used in parts.items() if used), "d_base"]
    # A stream that reads only padding has no box.
    return ["a_base", *names] if count > len(names) else names


class Synchronization:
    """Order of the commands that were synchronized last, which is kept for those with which the next ones begin."""

    def __init__(self) -> None:
        self.queues = [_Queue() for _ in Unit]
        self._commands: list[_Ordered] = []

    def begin(self, commands: Sequence[Issued]) -> int:
        """Order the commands with which the last ones began, too, and return their number."""
        common = 0
        for command, before in zip(commands, self._commands, strict=False):
            # Equal lists might have been computed for other fields; the same list was not.
            if command.unit != before.unit or command.reach is not before.reach or not command.reach:
                break
            common += 1
        del self._commands[common:]
        for queue in self.queues:
            queue.commands = []
        queues = [queue.commands for queue in self.queues]
        for command, before in zip(commands, self._commands, strict=False):
            command.wait, command.known = before.wait, before.known
            for producer, number in before.conflicts:
                queues[producer][number - 1].signal |= 1 << (command.unit << 2)
            queues[command.unit].append(command)
        for queue in self.queues:
            queue.truncate()
        return common

    def order(self, command: Issued) -> None:
        """Make a command wait for the commands before it with which it conflicts."""
        mine, conflicts = self.queues[command.unit], list[tuple[Unit, int]]()
        clock = mine.commands[-1].known if mine.commands else command.known
        for producer, tests in _tests(command):
            queue, known = self.queues[producer], clock[producer]
            if len(queue.commands) > known and (needed := queue.last(command.reach, tests, known)):
                conflicts.append((producer, needed))
                conflicting = queue.commands[needed - 1]
                conflicting.signal |= 1 << (command.unit << 2)
                command.wait |= 1 << (producer << 2)
                clock = list(map(max, clock, conflicting.known))
                clock[producer] = max(clock[producer], needed)
        command.known = clock
        mine.add(command)
        self._commands.append(_Ordered(command.unit, command.reach, command.wait, command.known, conflicts))


class _Ordered(NamedTuple):
    """Command whose order is known, with the commands for which it waits: their units and numbers."""

    unit: Unit
    reach: Sequence[BoundingBox]
    wait: int
    known: Sequence[int]
    conflicts: list[tuple[Unit, int]]


def synchronize(config: MlaConfig, commands: Sequence[Issued], last: Synchronization | None = None) -> None:
    """Set the wait and signal masks of all commands, with which the commands can always run in the given order.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the target machine.
    commands : sequence of Issued
        All commands, in order.
    last : Synchronization, optional
        Order of other commands, which is reused as far as the commands agree, and replaced.
    """
    last = last or Synchronization()
    for command in commands:
        if not command.reach:
            command.reach = reach(config, command)
    for command in commands[last.begin(commands) :]:
        last.order(command)
    signals = Counter((command.unit, command.signal) for command in commands)
    for producer, consumer in product(Unit, Unit):
        mask = 1 << (consumer << 2)
        sent = sum(count for (unit, signal), count in signals.items() if unit == producer and signal & mask)
        if sent > SEMAPHORE_MAX:
            _bound_tokens(commands, producer, consumer)


def _bound_tokens(commands: Sequence[Issued], producer: Unit, consumer: Unit) -> None:
    """Limit the tokens of a semaphore to its range, so that no signal must wait for a command that is issued later.

    The k-th wait takes the token of the k-th signal. If the 64th of several signals precedes the first of their waits,
    this wait takes the token of the last of these signals, and the other signals and waits are removed: commands of a
    unit start and retire in order, so they remain ordered.
    """
    signal, wait = 1 << (consumer << 2), 1 << (producer << 2)
    signals = [at for at, c in enumerate(commands) if c.unit == producer and c.signal & signal]
    waits = [at for at, c in enumerate(commands) if c.unit == consumer and c.wait & wait]
    kept: list[tuple[int, int]] = []
    for sent, taken in zip(signals, waits, strict=True):
        if len(kept) >= SEMAPHORE_MAX and kept[-SEMAPHORE_MAX][1] >= sent:
            first = kept[-SEMAPHORE_MAX][1]
            last = sent if sent < first else kept[-1][0]
            kept[-SEMAPHORE_MAX:] = [(last, first)]
            if last == sent:
                continue
        kept.append((sent, taken))
    for at in set(signals) - {sent for sent, _ in kept}:
        commands[at].signal &= ~signal
    for at in set(waits) - {taken for _, taken in kept}:
        commands[at].wait &= ~wait


#: Kind of an access: its memory, and True if it writes.
_Access = tuple[str, bool]
#: Index of a region of a command, and the kind of accesses of another unit that may conflict with it.
_Test = tuple[int, _Access]


def _tests(command: Issued) -> tuple[tuple[Unit, tuple[_Test, ...]], ...]:
    """Return, for each unit, the regions of a command that the unit's commands may access, with the kind of access."""
    return _tests_of(command.unit, tuple([(item.space, item.write) for item in command.reach]))


@cache
def _tests_of(unit: Unit, kinds: tuple[_Access, ...]) -> tuple[tuple[Unit, tuple[_Test, ...]], ...]:
    """Return the tests of a command of a unit that accesses the given memories.

    Within one unit, only reads of data that earlier commands write are conflicts.
    """
    out = []
    for producer in _UNITS:
        tests: list[_Test] = []
        for number, (space, write) in enumerate(kinds):
            if not (producer == unit and write):
                tests.append((number, (space, True)))
            if write and producer != unit:
                tests.append((number, (space, False)))
        if tests and (producer != unit or producer == _SELF):
            out.append((producer, tuple(tests)))
    return tuple(out)


class _Queue:
    """Commands of one unit, with the regions that they access, by kind of access."""

    def __init__(self) -> None:
        self.commands: list[Issued] = []
        #: Number of the command, first and last address, and box of each region.
        self._regions: dict[_Access, list[tuple[int, int, int, BoundingBox]]] = defaultdict(list)

    def truncate(self) -> None:
        """Forget the regions of commands that are no longer in the queue."""
        for kind, numbered in list(self._regions.items()):
            while numbered and numbered[-1][0] > len(self.commands):
                numbered.pop()
            if not numbered:
                del self._regions[kind]

    def add(self, command: Issued) -> None:
        """Append a command."""
        self.commands.append(command)
        for item in command.reach:
            self._regions[item.space, item.write].append((len(self.commands), item.low, item.high, item))

    def last(self, reach: Sequence[BoundingBox], tests: Sequence[_Test], known: int) -> int:
        """Return the number of the last queued command that a test finds; 0 if there is none after `known`."""
        last, found = known, self._regions
        for number, kind in tests:
            if kind in found and (regions := found[kind])[-1][0] > last:
                last = _last(regions, reach[number], last)
        return last if last > known else 0


def _last(regions: list[tuple[int, int, int, BoundingBox]], box: BoundingBox, known: int) -> int:
    """Return the number of the last command after `known` whose box intersects the given box; `known` if none does."""
    low, high = box.low, box.high
    for number, first, last, other in reversed(regions):
        if number <= known:
            return known
        if first <= high and low <= last and other.meets(box):
            return number
    return known
