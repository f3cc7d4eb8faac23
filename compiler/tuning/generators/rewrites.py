"""Rewrites of micro-programs that keep every unit's commands, and their order within the unit.

As each semaphore has one producing and one consuming unit, results do not depend on how commands of different units are
interleaved, only whether there is a way on: that the validator proves. These rewrites need not be right, only likely.
"""

from collections.abc import Callable, Sequence

from compiler.tuning.generators.program_ir import DEFAULTS, Instruction, Item, ProgramLoop, fields_set
from hw.isa.enums import Unit
from hw.isa.micro_instruction import MicroOp

Values = dict[int, tuple[int, int, int] | None]
Rewrite = Callable[[Sequence[Item]], list[Item]]


def lazy(items: Sequence[Item]) -> list[Item]:
    """Fields are set right before the command that needs them, and only if they change: commands go out earlier."""
    values: Values = dict(DEFAULTS)
    return _Lazy(values).run(items, last=True)


class _Lazy:
    """Holds settings back until they are needed; `values` are what the machine's fields hold, None if unknown."""

    def __init__(self, values: Values):
        self.values = values
        self.held: dict[int, Instruction] = {}
        self.out: list[Item] = []

    def run(self, items: Sequence[Item], *, last: bool) -> list[Item]:
        """The items; `last`: nothing comes behind them that needs what is held back."""
        for item in items:
            if isinstance(item, ProgramLoop):
                self._loop(item)
            elif item.op is MicroOp.SET:
                self.held.pop(item.d, None)
                self.held[item.d] = item
            else:
                self._release(item)
                self.out.append(item)
        if not last:
            self._flush(list(self.held))
        return self.out

    def _release(self, item: Instruction) -> None:
        """What an instruction needs, or would change."""
        if item.op is MicroOp.ISSUE:
            self._flush([d for d, held in self.held.items() if held.unit == item.unit])
        elif item.op is MicroOp.ADD:
            self._flush([d for d, held in self.held.items() if item.d in held.registers])
            for d, value in self.values.items():
                if value and item.d in value[:2]:
                    self.values[d] = None

    def _flush(self, numbers: Sequence[int]) -> None:
        for d in numbers:
            item = self.held.pop(d)
            if self.values[d] != item.value:
                self.values[d] = item.value
                self.out.append(item)

    def _loop(self, loop: ProgramLoop) -> None:
        """All that is held goes before it; of what it sets or counts with nothing is known in it."""
        self._flush(list(self.held))
        changed = fields_set(loop.body)
        self.values |= dict.fromkeys(changed)
        counted = _counted(loop.body)
        for d, value in self.values.items():
            if value and counted & set(value[:2]):
                self.values[d] = None
        inner = _Lazy(dict(self.values))
        body = inner.run(loop.body, last=False)
        self.values = inner.values
        self.out.append(ProgramLoop(loop.count, tuple(body)))


def _counted(items: Sequence[Item]) -> set[int]:
    """Registers that change."""
    out: set[int] = set()
    for item in items:
        if isinstance(item, ProgramLoop):
            out |= _counted(item.body)
        elif item.op is MicroOp.ADD:
            out.add(item.d)
    return out


def eager(items: Sequence[Item]) -> list[Item]:
    """Fields are set right behind the command before: what waits for room in one queue holds up no other."""
    out: list[Item] = []
    for item in items:
        if isinstance(item, ProgramLoop):
            out.append(ProgramLoop(item.count, tuple(eager(item.body))))
        elif item.op is MicroOp.SET:
            out.insert(_earliest(out, item), item)
        else:
            out.append(item)
    return out


def _earliest(before: Sequence[Item], item: Instruction) -> int:
    """The first place at which a field may be set: behind the last thing that the order matters with."""
    for at in range(len(before), 0, -1):
        other = before[at - 1]
        if isinstance(other, ProgramLoop) or other.op is MicroOp.FENCE:
            return at
        if other.op is MicroOp.ADD and other.d in item.registers:
            return at
        if other.op is MicroOp.SET and other.d == item.d:
            return at
        if other.op is MicroOp.ISSUE and other.unit == item.unit:
            return at
    return 0


def peeled(items: Sequence[Item]) -> list[Item]:
    """The first turn of each outermost loop by itself: its first command need not wait for all that others set."""
    out: list[Item] = []
    for item in items:
        if isinstance(item, ProgramLoop) and item.count > 1:
            out += item.body
            left = item.count - 1
            out += item.body if left == 1 else [ProgramLoop(left, item.body)]
        else:
            out.append(item)
    return out


def moved(items: Sequence[Item], unit: Unit, steps: int) -> list[Item]:
    """Commands of a unit, with their settings, past so many commands of others: forward if that is positive."""
    return _moved(lazy(items), unit, steps)


def _moved(items: Sequence[Item], unit: Unit, steps: int) -> list[Item]:
    groups = _grouped(items)
    way = -1 if steps > 0 else 1
    for number in range(len(groups))[::-way]:
        at = number
        for _ in range(abs(steps) if _unit(groups[number]) is unit else 0):
            beside = at + way
            other = _unit(groups[beside]) if 0 <= beside < len(groups) else None
            if other is None or other is unit:
                break
            groups[at], groups[beside] = groups[beside], groups[at]
            at = beside
    return [
        ProgramLoop(item.count, tuple(_moved(item.body, unit, steps)))
        if isinstance(item, ProgramLoop)
        else item
        for group in groups
        for item in group
    ]


def _grouped(items: Sequence[Item]) -> list[list[Item]]:
    """Commands with the settings before them; everything else by itself."""
    out: list[list[Item]] = []
    waiting: list[Item] = []
    for item in items:
        if isinstance(item, Instruction) and item.op is MicroOp.SET:
            waiting.append(item)
        elif isinstance(item, Instruction) and item.op is MicroOp.ISSUE:
            out.append([*waiting, item])
            waiting = []
        else:
            out += [[each] for each in waiting]
            out.append([item])
            waiting = []
    return out + [[each] for each in waiting]


def _unit(group: Sequence[Item]) -> Unit | None:
    """Whose command a group is; None: it is none, and stays where it is."""
    last = group[-1]
    return last.unit if isinstance(last, Instruction) and last.op is MicroOp.ISSUE else None
