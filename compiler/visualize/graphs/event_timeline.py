"""Estimated timeline of commands: in order, each starts when its unit is free and its semaphores are available."""

import math
from collections import deque
from collections.abc import Sequence

from compiler.codegen.command_stream import CommandStream
from compiler.commands.command_cycles import cycles
from compiler.commands.commands import Command
from compiler.trace import Dram
from compiler.visualize.graphs.view import Cost, View, add_edge, add_node, start
from hw.config import MlaConfig
from hw.isa.enums import Unit

_NOTE = (
    "each command takes the cycles of the schedule's estimate and begins when its queue has had room for it, its "
    "unit is free and what it waits for is done; a LOAD when its data come, which is the memory's latency after it "
    "asked for them, while others ask already. LOAD and STORE in each other's way and the sequencer's time are left "
    "out. Edges: the unit's order, and semaphores"
)
#: Cycles from the last beat of a write to its response.
_ANSWER = 10


def waits(making: CommandStream) -> list[list[int]]:
    """Return for each command the commands it waits for; the i-th wait of a pair takes the i-th signal."""
    given: dict[tuple[int, int], deque[int]] = {}
    out = []
    for number, issued in enumerate(making.issued):
        taken = [
            given[producer, issued.unit].popleft() for producer in Unit if issued.wait >> (producer << 2) & 1
        ]
        out.append(taken)
        for consumer in Unit:
            if issued.signal >> (consumer << 2) & 1:
                given.setdefault((issued.unit, consumer), deque()).append(number)
    return out


def timeline(config: MlaConfig, making: CommandStream, dram: Dram) -> list[tuple[int, int]]:
    """Return the first cycle of each command and the cycle after its last, when dependent commands may start."""
    free: dict[Unit, int] = dict.fromkeys(Unit, 0)
    queues: dict[Unit, deque[int]] = {unit: deque(maxlen=config.queue_depth) for unit in Unit}
    out: list[tuple[int, int]] = []
    issued = loaded = 0
    for command, needed in zip(making.commands, waits(making), strict=True):
        queue = queues[command.unit]
        if len(queue) == config.queue_depth:
            issued = max(issued, queue[0])  # a place is free when the oldest one has begun
        begin = max([issued, free[command.unit], *(out[number][1] for number in needed)])
        taken = _taken(config, command, dram)
        free[command.unit] = begin + taken
        queue.append(begin)
        if command.unit == Unit.LOAD:  # in order, those among them that write without reading
            begin = max(begin + (dram.latency if taken else 0), loaded)
            loaded = begin + taken
        out.append((begin, begin + taken))
    return out


def _taken(config: MlaConfig, command: Command, dram: Dram) -> int:
    """Return the cycles during which a command occupies its unit."""
    taken = cycles(command, config.n)
    if command.unit not in (Unit.LOAD, Unit.STORE):
        return taken
    taken = math.ceil(taken * config.n / (dram.bytes_per_cycle or config.n))
    return taken + (_ANSWER if command.unit == Unit.STORE else 0)


def timeline_view(name: str, makings: Sequence[CommandStream], config: MlaConfig, dram: Dram) -> View:
    """Return a view with commands as nodes, with begin and end; accelerator stages run one after another."""
    view, at = start(name, "timeline", config, _NOTE), 0
    for stage, making in enumerate(makings):
        prefix, layers = f"{stage} " if len(makings) > 1 else "", making.lowered.layers
        times = timeline(config, making, dram)
        last: dict[Unit, int] = {}
        for number, (command, needed) in enumerate(zip(making.commands, waits(making), strict=True)):
            begin, end = times[number]
            add_node(
                view,
                f"{prefix}{number}",
                command.unit.name.lower(),
                command.unit.name,
                group=layers[command.layer].name,
                cycles=end - begin,
                begin=at + begin,
                end=at + end,
            )
            behind = [last[command.unit]] if command.unit in last else []
            for before in dict.fromkeys([*behind, *needed]):
                what = "order" if making.commands[before].unit == command.unit else "semaphore"
                spent = Cost(0, times[before][1] - times[before][0])
                add_edge(view, f"{prefix}{before}", f"{prefix}{number}", what, spent)
            last[command.unit] = number
        at += max((end for _, end in times), default=0)
    view.graph["cycles"] = at
    return view
