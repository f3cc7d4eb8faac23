"""Assignment of semaphores, by which each command waits for the commands that it must not overtake."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from cosim.semantics.bounding_box import BoundingBox, boxes
from cosim.semantics.command_fields import unpack_fields
from hw.config import MlaConfig
from hw.isa.enums import SEMAPHORE_MAX, Unit

#: Unit whose commands overlap: a later FUSE command may read before an earlier one has written.
_SELF = Unit.FUSE
_UNITS = tuple(Unit)


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


def reach(config: MlaConfig, command: "Issued") -> list[BoundingBox]:
    """Return the regions that a command accesses, in bytes; each DRAM operand is a separate address space."""
    unit, c = command.unit, unpack_fields(command.unit, list(command.values))
    out = []
    for item in boxes(config, unit, c):
        if item.space == "slot":
            item = BoundingBox("param", item.low * 16 * config.n, (item.high + 1) * 16 * config.n - 1)
        if item.space == "dram":
            item = replace(item, space=f"dram{command.region}")
        out.append(item)
    if unit == Unit.FUSE and (c.table or c.table2):
        out.append(BoundingBox("table", c.table_slot * 512, c.table_slot * 512 + 511))
    return out


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
            if producer != command.unit or producer == _SELF:
                _order(command, queue, producer)
        mine.add(command)
    for producer, consumer in product(Unit, Unit):
        _bound_tokens(commands, producer, consumer)


def _bound_tokens(commands: Sequence[Issued], producer: Unit, consumer: Unit) -> None:
    """Limit the tokens of a semaphore to its range, so that no signal must wait for a command that is issued later.

    The k-th wait takes the token of the k-th signal. If the 64th of several signals precedes the first of their waits,
    this wait takes the token of the last of these signals, and the other signals and waits are removed: commands of a
    unit start and retire in order, so they remain ordered.
    """
    signal, wait = 1 << (consumer << 2), 1 << (producer << 2)
    signals = [at for at, c in enumerate(commands) if c.unit == producer and c.signal & signal]
    if len(signals) <= SEMAPHORE_MAX:
        return
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
