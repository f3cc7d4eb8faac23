"""Assignment of semaphores, by which each command waits for the commands that it must not overtake."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from compiler.util.lru_cache import LruCache
from cosim.semantics.bounding_box import BoundingBox, boxes
from cosim.semantics.command_fields import CommandFields, unpack_fields
from hw.config import MlaConfig
from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import SEMAPHORE_MAX, BSource, Requant, Unit

#: Unit whose commands overlap: a later FUSE command may read before an earlier one has written.
_SELF = Unit.FUSE
_UNITS = tuple(Unit)
#: Bytes of a lookup table.
_TABLE_BYTES = 512


@dataclass(eq=False)
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
    known: list[int] = field(default_factory=lambda: [0] * len(Unit), repr=False)
    reach: list[BoundingBox] = field(default_factory=list, repr=False)


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
        yield BoundingBox("table", low, low + _TABLE_BYTES - 1), _INDEX[unit]["a_base"], 0


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
            "p_base": c.requant == Requant.SLOT,
        }
        names = [*(name for name, used in parts.items() if used), "d_base"]
    # A stream that reads only padding has no box.
    return ["a_base", *names] if count > len(names) else names


def synchronize(config: MlaConfig, commands: Sequence[Issued]) -> None:
    """Set the wait and signal masks of all commands, with which the commands can always run in the given order."""
    queues = [_Queue() for _ in Unit]
    for command in commands:
        if not command.reach:
            command.reach = reach(config, command)
        mine = queues[command.unit]
        if mine.commands:
            command.known = list(mine.commands[-1].known)
        for producer, queue in zip(_UNITS, queues, strict=True):
            if len(queue.commands) > command.known[producer] and (
                producer != command.unit or producer == _SELF
            ):
                _order(command, queue, producer)
        mine.add(command)
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


class _Queue:
    """Commands of one unit, with the regions that they read and write, by memory."""

    def __init__(self) -> None:
        self.commands: list[Issued] = []
        self._reads: dict[str, list[tuple[int, BoundingBox]]] = defaultdict(list)
        self._writes: dict[str, list[tuple[int, BoundingBox]]] = defaultdict(list)

    def add(self, command: Issued) -> None:
        """Append a command."""
        self.commands.append(command)
        for box in command.reach:
            (self._writes if box.write else self._reads)[box.space].append((len(self.commands), box))

    def last(self, command: Issued, known: int, own: bool) -> int:
        """Return the number of the last queued command that conflicts with `command`; 0 if none after `known` does.

        Within one unit, only reads of data that earlier commands write are conflicts.
        """
        last = known
        for box in command.reach:
            if not (own and box.write) and (boxes := self._writes.get(box.space)) and boxes[-1][0] > last:
                last = _last(boxes, box, last)
            if box.write and not own and (boxes := self._reads.get(box.space)) and boxes[-1][0] > last:
                last = _last(boxes, box, last)
        return last if last > known else 0


def _last(boxes: list[tuple[int, BoundingBox]], box: BoundingBox, known: int) -> int:
    """Return the number of the last command after `known` whose box intersects the given box; `known` if none does."""
    low, high = box.low, box.high
    for number, other in reversed(boxes):
        if number <= known:
            return known
        if other.low <= high and low <= other.high and other.meets(box):
            return number
    return known


def _order(command: Issued, queue: _Queue, producer: Unit) -> None:
    needed = queue.last(command, command.known[producer], producer == command.unit)
    if not needed:
        return
    conflicting = queue.commands[needed - 1]
    conflicting.signal |= 1 << (command.unit << 2)
    command.wait |= 1 << (producer << 2)
    command.known[producer] = needed
    command.known = list(map(max, command.known, conflicting.known))
