"""Loop re-rolling: loops found in a straight sequence of commands."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from operator import ne

from compiler.codegen.semaphores import Issued

#: Longest body that is looked for, in commands or loops.
_LONGEST = 40
#: Commands a loop must save to be worth its own instructions.
_WORTH = 3

Delta = dict[int, int]


@dataclass(frozen=True, eq=False)
class CommandLoop:
    """A stretch of commands that is repeated.

    Parameters
    ----------
    count : int
        Number of iterations.
    body : tuple
        Items of the first iteration.
    deltas : tuple of dict
        Change of the fields per iteration, for each command of the body (those of inner loops included).
    """

    count: int
    body: tuple["Item", ...]
    deltas: tuple[Delta, ...]

    @cached_property
    def leaves(self) -> tuple[Issued, ...]:
        """The commands of the body."""
        return tuple(leaf for item in self.body for leaf in leaves(item))

    @cached_property
    def key(self) -> tuple:
        """Key that is equal for two loops that can be iterations of one loop."""
        deltas = tuple(tuple(sorted(delta.items())) for delta in self.deltas)
        return "loop", self.count, tuple(key(item) for item in self.body), deltas

    @cached_property
    def depth(self) -> int:
        """Loops nested, itself included."""
        return 1 + max((item.depth for item in self.body if isinstance(item, CommandLoop)), default=0)


Item = Issued | CommandLoop


def leaves(item: Item) -> Sequence[Issued]:
    """The commands of an item, each once."""
    return item.leaves if isinstance(item, CommandLoop) else (item,)


def key(item: Item) -> tuple:
    """Key that is equal for two items that can be iterations of one loop."""
    return (
        item.key
        if isinstance(item, CommandLoop)
        else (item.unit, item.layer, item.region, item.wait, item.signal)
    )


def reroll(commands: Sequence[Issued], most_depth: int) -> list[Item]:
    """The same commands as loops, at most `most_depth` nested."""
    items: list[Item] = list(commands)
    for _ in range(most_depth):
        rolled = _pass(items, most_depth)
        if len(rolled) == len(items):
            break
        items = rolled
    return items


def _pass(items: list[Item], most_depth: int) -> list[Item]:
    """Replace what repeats, from left to right, by what saves most at each place."""
    names: dict[tuple, int] = {}
    keys = [names.setdefault(key(item), len(names)) for item in items]
    blocked = [isinstance(item, CommandLoop) and item.depth >= most_depth for item in items]
    out: list[Item] = []
    at = 0
    while at < len(items):
        best: tuple[int, int, tuple[Delta, ...]] | None = None
        for length in range(1, min(_LONGEST, (len(items) - at) // 2) + 1):
            found = None if blocked[at + length - 1] else _repeats(items, keys, at, length)
            if blocked[at + length - 1]:
                break
            if found and (best is None or (found[0] - 1) * length > (best[0] - 1) * best[1]):
                best = (found[0], length, found[1])
        if best and sum(len(leaves(item)) for item in items[at : at + best[1]]) * (best[0] - 1) >= _WORTH:
            count, length, deltas = best
            out.append(CommandLoop(count, tuple(items[at : at + length]), deltas))
            at += count * length
        else:
            out.append(items[at])
            at += 1
    return out


def _repeats(
    items: list[Item], keys: list[int], at: int, length: int
) -> tuple[int, tuple[Delta, ...]] | None:
    """Number of repetitions of a stretch, and the changes per iteration; None if it does not repeat."""
    if keys[at : at + length] != keys[at + length : at + 2 * length]:
        return None
    deltas = _differences(items[at : at + length], items[at + length : at + 2 * length])
    count, here = 2, at + length
    while keys[at : at + length] == keys[here + length : here + 2 * length]:
        following = items[here + length : here + 2 * length]
        if _differences(items[here : here + length], following) != deltas:
            break
        count, here = count + 1, here + length
    return count, deltas


def _differences(first: Sequence[Item], second: Sequence[Item]) -> tuple[Delta, ...]:
    return tuple(
        {i: y.values[i] - x.values[i] for i in compress(range(len(x.values)), map(ne, x.values, y.values))}
        if x.values != y.values
        else {}
        for left, right in zip(first, second, strict=True)
        for x, y in zip(leaves(left), leaves(right), strict=True)
    )
