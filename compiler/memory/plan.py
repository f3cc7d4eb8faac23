"""Places of rings: no two that are in use at the same time overlap."""

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.codegen.command import Memory, Ring
from hw.config import MlaConfig
from hw.errors import InputError


class MemoryFullError(InputError):
    """Something does not fit a memory of the machine.

    Attributes
    ----------
    memory : Memory
        Which.
    first, last : int
        Places of the sequence between which too much is in use.
    rings : tuple of str
        What is in use between them: what is so for longest comes first.
    layers : tuple of str
        Layers that have a part in it.
    """

    def __init__(
        self, message: str, memory: Memory, first: int, last: int, rings: tuple[str, ...],
        layers: tuple[str, ...] = (),
    ):  # fmt: skip
        super().__init__(message)
        self.memory, self.first, self.last, self.rings, self.layers = memory, first, last, rings, layers


@dataclass(frozen=True)
class _Taken:
    start: int
    end: int
    first: int
    last: int


def plan(config: MlaConfig, lives: Mapping[Ring, tuple[int, int]]) -> dict[Ring, int]:
    """Start of every ring that lies in the machine; rings in DRAM are left out.

    Larger ones first, each in banks that nothing else in use uses if there are such, else as low as it fits.

    Raises
    ------
    MemoryFullError
        They do not fit.
    """
    starts: dict[Ring, int] = {}
    for memory, (capacity, bank, align) in _sizes(config).items():
        rings = [ring for ring in lives if ring.memory == memory]
        for banked in (True, False):
            try:
                starts |= _place(rings, lives, capacity, bank if banked else capacity, align)
                break
            except MemoryFullError:
                if not banked:
                    raise
    return starts


def _sizes(config: MlaConfig) -> dict[Memory, tuple[int, int, int]]:
    """Capacity, size of a bank, alignment."""
    return {
        Memory.SP: (config.sp_bytes, config.sp_bytes // config.sp_banks, config.n),
        Memory.ACC: (config.acc_rows, config.acc_rows // config.acc_banks, 1),
        Memory.SLOT: (config.param_slots, config.param_slots, 1),
        Memory.TABLE: (config.table_slots, config.table_slots, 1),
    }


def _place(
    rings: list[Ring], lives: Mapping[Ring, tuple[int, int]], capacity: int, bank: int, align: int
) -> dict[Ring, int]:
    starts: dict[Ring, int] = {}
    taken: list[_Taken] = []
    for ring in sorted(rings, key=lambda r: (-r.total, lives[r])):
        first, last = lives[ring]
        near = [t for t in taken if t.first <= last and first <= t.last]
        start = _start(ring.total, near, capacity, bank, align)
        if start is None:
            here = [r for r in rings if lives[r][0] <= last and first <= lives[r][1]]
            names = tuple(r.name for r in sorted(here, key=lambda r: lives[r][0] - lives[r][1]))
            raise MemoryFullError(_message(ring, here, capacity), ring.memory, first, last, names)
        starts[ring] = start
        taken.append(_Taken(start, start + ring.total, first, last))
    return starts


def _start(size: int, near: list[_Taken], capacity: int, bank: int, align: int) -> int | None:
    """Where a ring goes beside those in use at the same time: in the fewest shared banks, then lowest."""
    candidates = {0, *(-(-t.end // align) * align for t in near), *range(0, capacity, bank)}
    fitting = [
        start
        for start in candidates
        if start + size <= capacity and not any(t.start < start + size and start < t.end for t in near)
    ]
    used = {b for t in near for b in range(t.start // bank, (t.end - 1) // bank + 1)}

    def shared(start: int) -> int:
        return sum(b in used for b in range(start // bank, (start + size - 1) // bank + 1))

    return min(fitting, key=lambda start: (shared(start), start), default=None)


def _message(ring: Ring, here: list[Ring], capacity: int) -> str:
    beside = sorted((r for r in here if r is not ring), key=lambda r: -r.total)
    most = ", ".join(f"{r.name} {r.total}" for r in beside[:4])
    return f"{ring.name} of {ring.total} does not fit {ring.memory.value} of {capacity}" + (
        f" beside {most}" if most else ""
    )
