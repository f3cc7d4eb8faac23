"""Semaphores: every command waits for those commands of other units that it must not overtake.

Commands of a unit retire in order, so that to wait for one is to wait for all before it. The first semaphore of each
(producer, consumer) pair is enough: the i-th wait takes the i-th signal, and a command only waits for what it does not
know.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cosim.golden.bounds import Box, boxes
from cosim.golden.command import unpack_fields
from hw.config import MlaConfig
from hw.isa.enums import Unit

#: Pairs of commands of one unit that overlap: a later FUSE may read before an earlier one has written.
_SELF = Unit.FUSE


@dataclass(eq=False)
class Issued:
    """A command with its numbers.

    Parameters
    ----------
    unit : Unit
        Who carries it out.
    layer : int
        Layer it belongs to.
    values : tuple of int
        All fields of the unit, in the order of its table.
    region : int
        Operand that the address in DRAM is relative to.
    wait, signal : int
        Masks as `issue` takes them.
    """

    unit: Unit
    layer: int
    values: tuple[int, ...]
    region: int = 0
    wait: int = 0
    signal: int = 0
    known: list[int] = field(default_factory=lambda: [0] * len(Unit), repr=False)
    reach: list[Box] = field(default_factory=list, repr=False)


def reach(config: MlaConfig, command: "Issued") -> list[Box]:
    """What a command touches, parameter slots in bytes, tables included; each region of DRAM is a space of its own."""
    unit, c = command.unit, unpack_fields(command.unit, list(command.values))
    out = []
    for item in boxes(config, unit, c):
        if item.space == "slot":
            item = Box("param", item.low * 16 * config.n, (item.high + 1) * 16 * config.n - 1)
        if item.space == "dram":
            item = replace(item, space=f"dram{command.region}")
        out.append(item)
    if unit == Unit.FUSE and (c.table or c.table2):
        out.append(Box("table", c.table_slot * 512, c.table_slot * 512 + 511))
    return out


def synchronize(config: MlaConfig, commands: Sequence[Issued]) -> None:
    """Give each command its masks."""
    queues: list[list[Issued]] = [[] for _ in Unit]
    for command in commands:
        command.reach = reach(config, command)
        if queues[command.unit]:
            command.known = list(queues[command.unit][-1].known)
        for producer in Unit:
            if producer != command.unit or producer == _SELF:
                _order(command, queues[producer], producer)
        queues[command.unit].append(command)


def _order(command: Issued, queue: list[Issued], producer: Unit) -> None:
    needed = next(
        (
            count
            for count in range(len(queue), command.known[producer], -1)
            if _conflict(queue[count - 1], command)
        ),
        0,
    )
    if not needed:
        return
    maker = queue[needed - 1]
    maker.signal |= 1 << (command.unit << 2)
    command.wait |= 1 << (producer << 2)
    command.known[producer] = needed
    for other in Unit:
        command.known[other] = max(command.known[other], maker.known[other])


def _conflict(first: Issued, second: Issued) -> bool:
    return any(
        (a.write or b.write) and a.meets(b)
        for a in first.reach
        for b in second.reach
        if first.unit != second.unit or (a.write and not b.write)
    )
