"""Timeline of compiled commands: a simulation of the sequencer, the queues, the units and the bus, command by command.

The timeline includes what layer-by-layer models do not know: which layers overlap, how far LOAD runs ahead, and how
long the sequencer needs to issue commands. It does not model conflicts between units at the banks of a memory.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import takewhile
from math import ceil, prod
from operator import ne
from typing import NamedTuple

from compiler.codegen.executable import CommandStream
from compiler.codegen.semaphores import Issued
from compiler.commands.commands import Command, cycles, is_packed, tile_cycles, transfer
from compiler.options import DramTiming
from cosim.semantics.command_fields import CommandFields, unpack_fields
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS, UNIT_FIELDS
from hw.isa.enums import DTYPE_BYTES, PAIRS, BSource, Post, Reduce, Unit

# The following constants were read from recordings of the RTL (n16, `mla profile --trace`).
#: Cycles from the doorbell to the first instruction, and from the last result to the interrupt.
_BEGIN, _END = 66, 60
#: Cycles of the sequencer for the first instructions of a program, and for the check of a command of each unit.
_PROLOGUE, _CHECK = 7, {Unit.LOAD: 6, Unit.MATRIX: 9, Unit.FUSE: 12, Unit.STORE: 6}
#: Cycles from the end of a command until a command that waits for it may start.
_TOKEN = 1
#: Cycles from the request of a load to its first write, in addition to the memory latency.
_LOAD = 6
#: Cycles from a MATRIX command to the first of its weight rows, and from its last row to its last sum; cycles between
#: the rows of a command and the weights of a depthwise stream.
_WEIGHTS, _SUMS, _NEXT_STREAM = 3, 36, 6
#: Cycles between the points of two FUSE commands.
_NEXT_COMMAND = 6
#: Cycles from FUSE's last point to its result, fewer for a command that ends with step 3, and more cycles for each
#: result that is reduced across lanes.
_RESULT, _EARLY_RESULT, _ACROSS = 67, 29, 3
#: Cycles from the last beat of a store to its response.
_ANSWER = 18
#: Maximum number of loads whose data are awaited at the same time (`hw/units/load/unit.py`).
_MAX_LOADS = 16
#: Cycles of an instruction of a pipelined sequencer, and cycles of its LOAD and STORE for each beat.
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
        self.step = _PIPELINED_BEAT if config.pipelined else 1  # cycles of LOAD and STORE for a beat or row
        self.beat = dram.beat(config.beat_bytes) * self.step
        self.word = _PIPELINED_WORD if config.pipelined else 1
        self.out: list[CommandTime] = []
        self.now = float(_PROLOGUE)  # time of the sequencer
        self.bus = 0.0  # time at which the bus is free
        self.written = 0.0  # time at which LOAD's writes so far are done; they are in order
        self.answered = 0.0  # time at which STORE's writes so far are acknowledged
        self.rows = (
            0.0,
            0.0,
        )  # times at which MATRIX has issued the rows of the last command but one, and of the last
        self.sums = 0.0  # time at which MATRIX's sums so far are complete
        self.whole = (
            0.0  # time at which the results of FUSE's commands so far that take all steps are written
        )
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
        self.now += _CHECK[unit]
        begin = max(self.now, self.free[unit], *(self.out[number].retired for number in needed))
        if unit == Unit.LOAD:
            if len(self.loads) == _MAX_LOADS:
                begin = max(begin, self.loads.popleft())
            time = self._load(begin, command, issued)
            self.loads.append(time.end)
        elif unit == Unit.STORE:
            time = self._store(begin, command, issued)
        elif unit == Unit.MATRIX:
            time = self._matrix(begin, command, issued)
        else:
            time = self._fuse(begin, issued)
        queue.append(begin)
        self.retired[unit] = max(self.retired[unit], time.retired)  # in order
        self.out.append(time._replace(retired=self.retired[unit]))

    def _load(self, begin: float, command: Command, issued: Issued) -> CommandTime:
        lines, _ = transfer(command)
        if not cycles(command, self.config):  # a fill
            start = max(begin, self.written)
            self.written = start + lines * -(-_count(command, "len") // self.config.n)
            self.free[Unit.LOAD] = begin + 1
        else:
            start = max(begin + self.latency, self.bus, self.written)
            beats = self._beats(command, issued, self.config.beat_bytes)
            # Halves of beats that are not written to multiples of n are written one per cycle.
            halves = 0 if self._whole_rows(command, issued) else self._beats(command, issued, self.config.n)
            self.bus = start + max(beats * self.beat, halves * self.step)
            # Of packed weights, a group is written per cycle.
            groups = _count(command, "z_count") if is_packed(command) else 0
            self.written = max(self.bus, start + lines * groups)
            self.free[Unit.LOAD] = begin + lines
        return CommandTime(start, self.written, self.written + _TOKEN)

    def _store(self, begin: float, command: Command, issued: Issued) -> CommandTime:
        sent = self._beats(command, issued, self.config.beat_bytes) * self.beat
        taken = max(sent, self._beats(command, issued, self.config.n) * self.step)  # a row is read per cycle
        self.bus += sent
        self.free[Unit.STORE] = begin + taken
        self.answered = max(begin + taken + _ANSWER, self.answered + taken)
        return CommandTime(begin, begin + taken, self.answered + _TOKEN)

    def _matrix(self, begin: float, command: Command, issued: Issued) -> CommandTime:
        n, taken = self.config.n, cycles(command, self.config)
        c = unpack_fields(Unit.MATRIX, list(issued.values))
        if c.dw:
            weights, idle = c.taps * c.groups, 0
        else:
            # Tiles are at least `least` cycles apart, but the last one only takes as many as it has rows.
            indices = n // 4 if c.sparse else 0
            least = tile_cycles([c.w_row, c.w_oc, c.w_ic, c.w_ky, c.w_kx], self.config, indices)
            weights = indices + ((c.k_tail or c.k_rows or n) if c.ic_count == 1 else c.k_rows or n)
            if c.sparse or c.x_count * c.y_count < n:
                weights = ceil(weights * least / (n + indices))
            weights += c.scaled
            idle = max(least + c.scaled - c.x_count * c.y_count, 0)
        # The weights of a depthwise stream enter the array after the rows of the previous command.
        start = max(begin + _WEIGHTS + weights, self.rows[1] + (_NEXT_STREAM + weights if c.dw else 0))
        self.free[Unit.MATRIX] = self.rows[1] - 1  # while a command runs, the unit accepts one more
        self.rows = self.rows[1], start + taken
        self.sums = max(start + taken - idle + _SUMS, self.sums)
        return CommandTime(start, start + taken, self.sums + _TOKEN)

    def _fuse(self, begin: float, issued: Issued) -> CommandTime:
        c = unpack_fields(Unit.FUSE, list(issued.values))
        taken = fuse_cycles(self.config, c)
        end = begin + taken
        self.free[Unit.FUSE] = end + _NEXT_COMMAND
        later = c.table_wide or c.residual or c.table2 or c.reduce or c.lane_reduce or c.post
        # Results are in order, so a command leaves the pipeline early only if no other command takes all steps.
        if later or begin < self.whole:
            self.whole = end + _RESULT
            return CommandTime(begin, end, self.whole + _TOKEN)
        return CommandTime(begin, end, end + _EARLY_RESULT + _TOKEN)

    def _whole_rows(self, command: Command, issued: Issued) -> bool:
        """Return True if the bytes of a load go to the scratchpad at multiples of n in their beats."""
        c = unpack_fields(Unit.LOAD, list(issued.values))
        if c.packed or self.config.beat_bytes == self.config.n:
            return True
        apart = (
            c.dst - c.dram,
            (c.y_count - 1) * (c.dst_y - c.dram_y),
            (c.z_count - 1) * (c.dst_z - c.dram_z),
        )
        return not (c.space or c.transpose or any(each % self.config.n for each in apart))

    def _beats(self, command: Command, issued: Issued, n: int) -> int:
        """Return the number of beats of n bytes of a load or store, whose lines may begin anywhere in a beat."""
        index, size = _INDEX[command.unit], _count(command, "len")
        start = issued.values[index["dram"]] % n
        across, down = (issued.values[index[name]] % n for name in ("dram_y", "dram_z"))
        lines, _ = transfer(command)
        if not across and not down:
            return lines * -(-(start + size) // n)
        rows, planes = (_count(command, name) for name in ("y_count", "z_count"))
        planes = lines // rows
        # The starts of lines and planes in their beats recur after n of them.
        total = sum(
            -(-((start + row * across + plane * down) % n + size) // n)
            for plane in range(min(planes, n))
            for row in range(min(rows, n))
        )
        return total * lines // (min(planes, n) * min(rows, n))


def fuse_cycles(config: MlaConfig, c: CommandFields, reads_per_cycle: int = 1) -> int:
    """Return the cycles of a FUSE command, limited by reads of either memory, by writes or by reciprocals.

    `reads_per_cycle` is the number of rows that FUSE reads from each memory per cycle; the machine reads one.
    """
    counts = [getattr(c, f"{dim}_count") for dim in FUSE_DIMS]
    points, results = prod(counts), c.n_count * c.y_count * c.x_count
    reads = {"sp": 0, "acc": 0}
    reads["sp" if c.a_src else "acc"] += points * (DTYPE_BYTES[c.a_dtype] if c.a_src else 1)
    if c.b_src:
        # Operand B is read again only if its address changes.
        still = list(takewhile(lambda dim: not getattr(c, f"b_{dim}"), FUSE_DIMS))
        sp = c.b_src == BSource.SP
        reads["sp" if sp else "acc"] += prod(counts[len(still) :]) * (DTYPE_BYTES[c.b_dtype] if sp else 1)
    if c.residual:
        reads["sp"] += points * DTYPE_BYTES[c.r_dtype]
    across = c.lane_reduce != Reduce.NONE
    written = points if c.reduce == Reduce.NONE else results
    writes = written * (DTYPE_BYTES[c.d_dtype] if c.d_dst and not across else 1)
    digits = 0
    if c.post in PAIRS:
        digits = ceil(results * config.reciprocal_cycles(root=c.post != Post.RECIP))
    read = ceil(max(reads.values()) / reads_per_cycle)
    return max(points * config.fuse_rate, read, writes, digits)


def _count(command: Command, name: str) -> int:
    value = command.fields.get(name, 1)
    assert isinstance(value, int)
    return value
