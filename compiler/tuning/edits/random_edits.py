"""Edits drawn by chance, of those that a sequence of commands allows."""

import random
from collections.abc import Sequence

from compiler.codegen.semaphores import Issued
from compiler.tuning.edits.edit import MOST_DIMS, Edit, EditError, Move, Split, applied, freedom
from hw.config import MlaConfig

#: Part of the edits that split; the others move. Part of the places that lie near the beginning or the end.
_SPLITS, _NEAR = 0.7, 0.5
#: How near, on the average.
_DISTANCE = 4.0
#: Commands split together, and eighths: the more often they stand here the likelier.
_RUNS, _EIGHTHS, _DIMS = (1, 1, 2, 3, 4, 5, 6), (1, 2, 4, 4, 6, 7), (0, 0, 0, 1, MOST_DIMS - 1)
_PATIENCE = 40


def draw_edits(
    config: MlaConfig, commands: Sequence[Issued], rng: random.Random
) -> tuple[Edit, list[Issued]] | None:
    """An edit, and the commands after it; None: none was found that is allowed."""
    for _ in range(_PATIENCE if commands else 0):
        at = _place(len(commands), rng)
        if rng.random() < _SPLITS:
            edit: Edit = Split(at, rng.choice(_RUNS), rng.choice(_DIMS), rng.choice(_EIGHTHS))
        else:
            free = [step for step in freedom(config, commands, at % len(commands)) if step]
            if not free:
                continue
            edit = Move(at, rng.choice(free))
        try:
            return edit, applied(config, commands, [edit])
        except EditError:
            continue
    return None


def _place(count: int, rng: random.Random) -> int:
    """Counted from the nearer end."""
    if rng.random() < _NEAR:
        near = min(int(rng.expovariate(1 / _DISTANCE)), count - 1)
        return near if rng.random() < 0.5 else -1 - near
    at = rng.randrange(count)
    return at if at < count / 2 else at - count
