"""Ordering of all conflicting accesses by semaphores between units, based on the boxes of the commands."""

import random
from dataclasses import dataclass, field

from cosim.semantics.bounding_box import BoundingBox, boxes
from hw.config import MlaConfig
from hw.isa.enums import SEMAPHORES_PER_PAIR, SEQUENCER, Unit
from tests.support.program_gen.commands import config_of
from tests.support.program_gen.fuse import meets
from tests.support.program_gen.items import (
    Fence,
    Group,
    Issue,
    Item,
    MacroCall,
    Observe,
    Pair,
    ProgramText,
    Scalar,
    Stop,
    Sync,
)


def effects(config: MlaConfig, command: Issue) -> list[BoundingBox]:
    """Return the boxes that a command reads or writes."""
    c = config_of(command)
    out = []
    for item in boxes(config, command.unit, c):
        if item.space == "slot":
            size = 16 * config.n
            item = BoundingBox("param", item.low * size, (item.high + 1) * size - 1)
        out.append(item)
    if command.unit == Unit.FUSE and (c.table or c.table2):
        size = 512 * (1 + c.table_wide)
        out.append(BoundingBox("table", c.table_slot * 512, c.table_slot * 512 + size - 1))
    return out


def conflict(first: Issue, second: Issue, config: MlaConfig) -> bool:
    """Return True if the second command must wait for the first.

    A unit's writes stay in order and follow its earlier reads; only the unit's reads may overtake earlier writes.
    """
    same = first.unit == second.unit
    return any(
        meets(a, b) and ((a.write and not b.write) if same else (a.write or b.write))
        for a in effects(config, first)
        for b in effects(config, second)
    )


@dataclass
class Masks:
    """Semaphores of one command, and the number of commands per unit that have certainly retired when it starts."""

    wait: int = 0
    signal: int = 0
    known: list[int] = field(default_factory=lambda: [0] * len(Unit))


class Order:
    """Assignment of semaphore masks to the commands of programs in execution order.

    Parameters
    ----------
    config : MlaConfig
        Sizes of the memories.
    seed : int
        Seed of the choice among equivalent semaphores.
    """

    def __init__(self, config: MlaConfig, seed: int):
        self.config = config
        self.rng = random.Random(seed)
        self.masks: dict[int, Masks] = {}
        self.syncs: dict[int, int] = {}
        self.fences: set[int] = set()
        self._epoch()

    def _epoch(self) -> None:
        """Record that all issued commands have retired."""
        self.issued: list[list[Issue]] = [[] for _ in Unit]
        self.unit_known = [[0] * len(Unit) for _ in Unit]
        self.seq_known = [0] * len(Unit)
        self.last_signal: dict[tuple[int, int, int], int] = {}

    def run(self, macros: list[MacroCall], programs: list[ProgramText]) -> None:
        """Assign masks to every command."""
        seen = set()
        for macro in macros:
            if macro.header is not None or macro.unbound or macro.invalid:
                self._epoch()
                continue
            program = programs[macro.program]
            if program.shared:
                self._epoch()
            if macro.program not in seen or not program.shared:
                self._body(program.body)
            seen.add(macro.program)
            if program.shared or not program.halt:
                self._epoch()

    def _body(self, body: list[Item]) -> None:
        for item in body:
            if isinstance(item, Issue):
                self._issue(item)
            elif isinstance(item, Pair):
                for command in item.commands:
                    self._issue(command)
            elif isinstance(item, Fence):
                self._fence(item.mask)
            elif isinstance(item, Sync):
                self._sync(item)
            elif isinstance(item, Observe) or (isinstance(item, Scalar) and item.fenced):
                self._epoch()
            elif isinstance(item, Group):
                self._epoch()
                self._body(item.body)
                self._epoch()
            elif isinstance(item, Stop):
                self._epoch()
                return

    def _fence(self, mask: int) -> None:
        if mask == 15:
            self._epoch()
        for unit in Unit:
            if mask >> unit & 1:
                self._learn(self.seq_known, unit, len(self.issued[unit]))

    def _learn(self, known: list[int], unit: int, count: int) -> None:
        """Record that `count` commands of `unit` have retired, and all commands that the last of them waited for."""
        if count:
            behind = self.masks[id(self.issued[unit][count - 1])].known
            for other in Unit:
                known[other] = max(known[other], behind[other])
        known[unit] = max(known[unit], count)

    def _sync(self, item: Sync) -> None:
        self.syncs[id(item)] = -1
        count = len(self.issued[item.unit])
        if not count:
            return
        free = self._free(item.unit, SEQUENCER, count)
        if free:
            self.syncs[id(item)] = item.unit << 2 | self._signal(item.unit, SEQUENCER, count, free)
            self._learn(self.seq_known, item.unit, count)

    def _free(self, producer: int, consumer: int, count: int) -> list[int]:
        """Return the semaphores of a pair of units that are not yet signaled by the producer's command number
        `count`.
        """
        return [
            k for k in range(SEMAPHORES_PER_PAIR) if self.last_signal.get((producer, consumer, k), 0) < count
        ]

    def _signal(self, producer: int, consumer: int, count: int, free: list[int]) -> int:
        k = self.rng.choice(free)
        self.last_signal[producer, consumer, k] = count
        self.masks[id(self.issued[producer][count - 1])].signal |= 1 << (consumer << 2 | k)
        return k

    def _issue(self, command: Issue) -> None:
        """Assign the waits that a command needs; if no semaphore is free, put a fence before the command."""
        unit = command.unit
        mask = Masks(
            command.wait,
            command.signal,
            [max(p) for p in zip(self.unit_known[unit], self.seq_known, strict=True)],
        )
        self.masks[id(command)] = mask
        for producer in Unit:
            needed = max(
                (
                    n
                    for n, other in enumerate(self.issued[producer], 1)
                    if conflict(other, command, self.config)
                ),
                default=0,
            )
            if self.rng.random() < 0.05:
                needed = len(self.issued[producer])
            if needed <= mask.known[producer]:
                continue
            choices = [
                (count, free)
                for count in range(needed, len(self.issued[producer]) + 1)
                if (free := self._free(producer, unit, count))
            ]
            if not choices:
                self._epoch()
                self.fences.add(id(command))
                mask.known = [0] * len(Unit)
                break
            count, free = self.rng.choice(choices)
            mask.wait |= 1 << (producer << 2 | self._signal(producer, unit, count, free))
            self._learn(mask.known, producer, count)
        self.unit_known[unit] = list(mask.known)
        self.issued[unit].append(command)
