"""Latest-start scheduling of LOADs: late enough to hold nothing up, early enough to be in time."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from compiler.commands.command_cycles import cycles, effort
from compiler.commands.commands import Command, Tile, TileStep
from compiler.options import DramTiming
from hw.config import MlaConfig

#: Cycles from a command's first request to its results beyond the memory's latency and its beats.
_UNIT = 25
#: Cycles beside the memory's latency by which a load should be done before it is needed: delays of units.
_MARGIN = 300
#: Cycles from the last sum of a tile to MATRIX's first with its results, beyond those of FUSE's points.
#: The best for a chain of small dense layers (RTL n16, latency 100; ad01 with 40, 120, 250 and 400).
_RESULT = 250
#: MATRIX also goes before loads that find room in the queue so many cycles before it: the sequencer takes them for it.
_LEAD = 100


@dataclass(frozen=True)
class Load:
    """A load, the first slot it may come in, and the slot that needs it."""

    command: Command
    early: int
    needed: int


def due(
    config: MlaConfig, steps: Sequence[TileStep], loads: Sequence[Load], dram: DramTiming
) -> list[tuple[int, Command]]:
    """The slot each load is due in, loads in order.

    As late as it may be to be there in time, the bus busy with those behind it; and not before there is room for it:
    a load that comes sooner than it can start would fill the short queue of LOAD and hold the sequencer up, while
    MATRIX could begin with what is there.
    """
    times = _Times(config, steps, loads, dram)
    slots, start = [0] * len(loads), times.reads[-1]
    for index in reversed(range(len(loads))):
        load = loads[index]
        in_time = times.reads[load.needed] - _MARGIN - dram.latency
        start = min(start, in_time) - cycles(load.command, config.n) * dram.beat(config.n)
        slots[index] = max(bisect_right(times.reads, start) - 1, times.room(index))
    last, out = 0, []
    for load, slot in zip(loads, slots, strict=True):
        last = max(last, min(max(slot, load.early), load.needed))
        out.append((last, load.command))
    return out


def _bound_by_bus(steps: Sequence[TileStep], n: int, beat: float) -> set[int]:
    """Layers whose loads take longer than MATRIX."""
    balance: dict[int, float] = defaultdict(float)
    for step in steps:
        for command in step.loads:
            balance[command.layer] += cycles(command, n) * beat
        if step.matrix:
            balance[step.matrix[0].layer] -= effort(step, n).matrix
    return {layer for layer, more in balance.items() if more > 0}


class _Times:
    """When steps begin and requests of loads start if commands are issued in time.

    `begins` has also the end of the last step; `reads` is the same without the time that stores have the bus, and with
    the wait for what another step makes where the bus is busier than MATRIX: it may go on for later steps meanwhile.
    """

    def __init__(self, config: MlaConfig, steps: Sequence[TileStep], loads: Sequence[Load], dram: DramTiming):
        self.config, self.beat = config, dram.beat(config.n)
        self.starts: list[float] = []
        self.begins: list[float] = []
        self.reads: list[float] = []
        stored = 0.0
        free = [0.0]  # when the step before a slot is done
        late = 0.0  # the same with the wait for results
        made: dict[Tile, float] = {}  # when they are there
        bound = _bound_by_bus(steps, config.n, self.beat)
        address = bus = 0.0  # when the next request can go out, when the bus is free
        for slot, step in enumerate(steps):
            there = 0.0
            while len(self.starts) < len(loads) and loads[len(self.starts)].needed == slot:
                load = loads[len(self.starts)]
                address = max(address, free[load.early])
                self.starts.append(address)
                bus = max(bus, address + dram.latency + _UNIT) + cycles(load.command, config.n) * self.beat
                address += self._requests(load.command)
                there = bus
            self.begins.append(max(free[-1], there))
            waits = [made.get(t, 0.0) for c in step.matrix if c.layer in bound for t in c.sources]
            late = max(late, there, *waits)
            self.reads.append(max(late - stored, *self.reads[-1:], 0.0))
            work = effort(step, config.n)
            free.append(self.begins[-1] + work.whole)
            late += work.matrix
            for command in step.fuse:
                made[command.target] = late + cycles(command, config.n) + _RESULT
            late = max(late, self.reads[-1] + stored + work.whole)
            stores = work.stores * self.beat
            bus, stored = bus + stores, stored + stores
        self.begins.append(free[-1])
        self.reads.append(max(late - stored, *self.reads[-1:], 0.0))

    def room(self, index: int) -> int:
        """The first slot whose step begins when the queue has room for a load."""
        before = index - self.config.queue_depth
        return bisect_right(self.begins, self.starts[before] + _LEAD) if before >= 0 else 0

    def _requests(self, command: Command) -> int:
        """Bursts of a load, one a cycle."""
        get = {name: value for name, value in command.fields.items() if isinstance(value, int)}.get
        burst = self.config.max_burst * self.config.n
        return prod(get(name, 1) for name in ("z_count", "y_count")) * -(-get("len", 1) // burst)
