"""Timeline of compiled commands: a simulation of the sequencer, the queues, the units and the bus, command by command.

The timeline includes what layer-by-layer models do not know: which layers overlap, how far LOAD runs ahead, and how
long the sequencer needs to issue commands. It does not model conflicts between units at the banks of a memory.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from operator import ne
from typing import NamedTuple

from compiler.codegen.executable import CommandStream
from compiler.codegen.semaphores import Issued
from compiler.commands.command_cycles import cycles
from compiler.commands.commands import Command
from compiler.options import DramTiming
from hw.config import MlaConfig
from hw.isa.commands import FUSE_STAGE, UNIT_FIELDS
from hw.isa.enums import Post, Unit

# The following constants were fitted to measured cycles of the chains of `python -m scripts.study_fusion` with the
# seeds 20, 21 and 22 (n16, default memory).
#: Cycles from the doorbell to the first instruction, and from the last result to the interrupt.
_BEGIN, _END = 84, 60
#: Cycles from an instruction `issue` until an idle unit starts the command.
_ISSUE = 6
#: Cycles from the request of a load to its first write, in addition to the memory latency, and from the last write
#: until another unit may start.
_LOAD, _LOADED = 22, 2
#: Maximum number of beats that LOAD requests ahead of their data.
_AHEAD = 180
#: Cycles from the end of MATRIX's last row until its sums are complete, in addition to those in which N weight rows
#: enter the array and N sums leave it.
_SUMS = 16
#: Cycles from FUSE's last point to its result; until FUSE starts the next command; and for each reciprocal.
_RESULT, _NEXT, _DIGITS = 69, 5, 3
#: Cycles from the last beat of a store to its response, and until STORE starts the next command.
_ANSWER, _STORED = 8, 4
#: Maximum number of loads whose data are awaited at the same time (`hw/units/load/unit.py`).
_MAX_LOADS = 16
#: Instruction cycles of a pipelined sequencer, and cycles of its LOAD and STORE for each beat.
_PIPELINED_WORD, _PIPELINED_BEAT = 4, 2

_DEFAULTS = [tuple(item.default for item in UNIT_FIELDS[unit]) for unit in Unit]
_INDEX = [{item.name: index for index, item in enumerate(UNIT_FIELDS[unit])} for unit in Unit]


class CommandTime(NamedTuple):
    """Times of a command, in cycles after the first instruction.

    Parameters
    ----------
    begin, end : float
        First cycle in which the command occupies its unit, or in which its data arrive, and the cycle after the last.
    retired : float
        Cycle from which commands that wait for this command may start.
    """

    begin: float
    end: float
    retired: float


def waits(stream: CommandStream) -> list[list[int]]:
    """Return, for each command, the numbers of the commands for which it waits.

    For each pair of units, the i-th wait consumes the i-th signal.
    """
    given: dict[tuple[int, int], deque[int]] = {}
    out = []
    for number, issued in enumerate(stream.issued):
        taken = [
            given[producer, issued.unit].popleft() for producer in Unit if issued.wait >> (producer << 2) & 1
        ]
        out.append(taken)
        for consumer in Unit:
            if issued.signal >> (consumer << 2) & 1:
                given.setdefault((issued.unit, consumer), deque()).append(number)
    return out


def timeline(config: MlaConfig, stream: CommandStream, dram: DramTiming) -> list[CommandTime]:
    """Return the times of all commands of a stage, in order."""
    simulation = _Simulation(config, dram)
    for command, issued, needed in zip(stream.commands, stream.issued, waits(stream), strict=True):
        simulation.run(command, issued, needed)
    return simulation.out


def timeline_cycles(config: MlaConfig, streams: Iterable[CommandStream], dram: DramTiming) -> float:
    """Return the cycles of stages that run one after another, from the doorbell to the interrupt of each."""
    total = 0.0
    for stream in streams:
        times = timeline(config, stream, dram)
        total += _BEGIN + max((each.retired for each in times), default=0.0) + _END
    return total


class _Simulation:
    """State of the sequencer, the units and the bus after the commands so far."""

    def __init__(self, config: MlaConfig, dram: DramTiming):
        self.config, self.latency = config, dram.latency + _LOAD
        self.beat = dram.beat(config.n) * (_PIPELINED_BEAT if config.pipelined else 1)
        self.word = _PIPELINED_WORD if config.pipelined else 1
        self.out: list[CommandTime] = []
        self.now = 0.0  # time of the sequencer
        self.bus = 0.0  # time at which the bus is free
        self.written = 0.0  # time at which LOAD's writes so far are done; they are in order
        self.fields: list[tuple[int, ...]] = list(_DEFAULTS)
        self.free, self.retired = [0.0] * len(Unit), [0.0] * len(Unit)
        self.queues = [deque[float]() for _ in Unit]
        self.loads = deque[float]()

    def run(self, command: Command, issued: Issued, needed: Sequence[int]) -> None:
        """Simulate the next command, which waits for the commands with the numbers `needed`."""
        unit = command.unit
        # One instruction sets each field that differs from the unit's previous command.
        self.now += (1 + sum(map(ne, issued.values, self.fields[unit]))) * self.word
        self.fields[unit] = issued.values
        queue = self.queues[unit]
        if len(queue) == self.config.queue_depth:
            self.now = max(self.now, queue.popleft())  # an entry is free once the oldest command has started
        begin = max(self.now + _ISSUE, self.free[unit], *(self.out[number].retired for number in needed))
        if unit == Unit.LOAD:
            if len(self.loads) == _MAX_LOADS:
                begin = max(begin, self.loads.popleft())
            time = self._load(begin, command, issued)
            self.loads.append(time.retired)
        elif unit == Unit.STORE:
            time = self._store(begin, command, issued)
        elif unit == Unit.MATRIX:
            time = self._matrix(begin, command)
        else:
            time = self._fuse(begin, command, issued)
        queue.append(begin)
        self.retired[unit] = max(self.retired[unit], time.retired)  # in order
        self.out.append(time._replace(retired=self.retired[unit]))

    def _load(self, begin: float, command: Command, issued: Issued) -> CommandTime:
        lines = _lines(command)
        if not cycles(command, self.config.n):  # a fill
            start = max(begin, self.written)
            self.free[Unit.LOAD], self.written = begin + lines, start + lines
        else:
            start = max(begin + self.latency, self.bus, self.written)
            self.written = self.bus = start + self._beats(command, issued) * self.beat
            self.free[Unit.LOAD] = max(begin + lines, self.bus - self.latency - _AHEAD)
        return CommandTime(start, self.written, self.written + _LOADED)

    def _store(self, begin: float, command: Command, issued: Issued) -> CommandTime:
        taken = self._beats(command, issued) * self.beat
        self.bus += taken
        self.free[Unit.STORE] = begin + taken + _STORED
        return CommandTime(begin, begin + taken, begin + taken + _ANSWER)

    def _matrix(self, begin: float, command: Command) -> CommandTime:
        end = begin + cycles(command, self.config.n)
        self.free[Unit.MATRIX] = end
        return CommandTime(begin, end, end + 2 * self.config.n + _SUMS)

    def _fuse(self, begin: float, command: Command, issued: Issued) -> CommandTime:
        taken = cycles(command, self.config.n)
        if FUSE_STAGE.unpack(issued.values[_INDEX[Unit.FUSE]["stage"]])["post"] in (Post.RECIP, Post.RSQRT):
            taken += _DIGITS * _count(command, "n_count") * _lines(command, "y_count", "x_count")
        self.free[Unit.FUSE] = begin + taken + _NEXT
        return CommandTime(begin, begin + taken, begin + taken + _RESULT)

    def _beats(self, command: Command, issued: Issued) -> int:
        """Return the number of beats of a load or store, whose lines need not begin at the start of a beat."""
        index, n, size = _INDEX[command.unit], self.config.n, _count(command, "len")
        start = issued.values[index["dram"]] % n
        across, down = (issued.values[index[name]] % n for name in ("dram_y", "dram_z"))
        lines = _lines(command)
        if not across and not down:
            return lines * -(-(start + size) // n)
        rows, planes = (_count(command, name) for name in ("y_count", "z_count"))
        # The starts of lines and planes in their beats recur after N of them.
        total = sum(
            -(-((start + row * across + plane * down) % n + size) // n)
            for plane in range(min(planes, n))
            for row in range(min(rows, n))
        )
        return total * lines // (min(planes, n) * min(rows, n))


def _count(command: Command, name: str) -> int:
    value = command.fields.get(name, 1)
    assert isinstance(value, int)
    return value


def _lines(command: Command, *names: str) -> int:
    first, second = names or ("z_count", "y_count")
    return _count(command, first) * _count(command, second)
