"""List scheduling that interleaves the tile steps of several layers by earliest start time."""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from compiler.commands.command_cycles import cycles
from compiler.commands.commands import BufferRef, CircularBuffer, Command, TileStep
from cosim.semantics.bounding_box import BoundingBox, boxes
from cosim.semantics.command_fields import unpack_fields
from hw.config import MlaConfig
from hw.isa.commands import MATRIX_WORD, UNIT_FIELDS

#: Cycles from the last sum to the first result that another unit can read.
_DELAY = 150
#: Number of steps by which MATRIX commands are issued in advance.
_MATRIX_LEAD_STEPS = 2
#: Cycles that a FUSE command waits for the results of the previous command.
_START = 60
#: Position of the lowest bit of the buffer index in an address.
_BUFFER_BIT = 48


def interleave(
    config: MlaConfig, steps: Sequence[TileStep], layers: Sequence[int], interleavable: Sequence[bool]
) -> tuple[list[tuple[int, TileStep]], dict[int, int]]:
    """Order the steps of all layers by list scheduling.

    Layers remain in order if MATRIX commands of one would separate commands of another that continue a stream of
    image rows (depthwise convolutions).

    Parameters
    ----------
    config : MlaConfig
        Configuration of the target machine.
    steps : sequence of TileStep
        All steps, layer by layer.
    layers : sequence of int
        Index of the layer of each step.
    interleavable : sequence of bool
        True for each layer that may be interleaved; consecutive layers of this kind are interleaved together.

    Returns
    -------
    order : list of (int, TileStep)
        Steps in order, with their layers.
    after : dict
        First position at which the inputs of each interleaved step exist, by position of the step.
    """
    order: list[tuple[int, TileStep]] = []
    after: dict[int, int] = {}
    for is_interleavable, part in groupby(
        zip(layers, steps, strict=True), key=lambda each: interleavable[each[0]]
    ):
        mine = part_in_order = list(part)
        if is_interleavable and mine[0][0] != mine[-1][0]:
            mine = [(layer, piece) for layer, step in mine for piece in _pieces(step)]
            needs = dict(_needs(config, mine))
            queues: dict[int, list[int]] = defaultdict(list)
            for number, (layer, _) in enumerate(mine):
                queues[layer].append(number)
            works = {number: _work(step, config) for number, (_, step) in enumerate(mine)}
            listed = _list_schedule(queues, works, needs) if any(needs.values()) else _spread(queues, works)
            listed = _advance_matrix(listed, mine, works, needs)
            if not _streams_continue([mine[number] for number, _, _ in listed]):
                order += part_in_order
                continue
            begins = [begin for _, begin, _ in listed]
            positions = {number: at for at, (number, _, _) in enumerate(listed)}
            for at, (number, _, ready) in enumerate(listed):
                # Start times are estimates: a step may be placed after its estimated end, behind others of its layer.
                made = max((positions[need] + 1 for need in needs[number]), default=0)
                after[len(order) + at] = len(order) + min(max(bisect_left(begins, ready), made), at)
            mine = [mine[number] for number, _, _ in listed]
        order += mine
    return order, after


def _streams_continue(order: Sequence[tuple[int, TileStep]]) -> bool:
    """Return True if every MATRIX command that continues a stream directly follows a command of the same layer."""
    before = -1
    for layer, step in order:
        for command in step.matrix:
            word = command.fields["word"]
            assert isinstance(word, int)
            if layer != before and MATRIX_WORD.unpack(word)["keep"]:
                return False
            before = layer
    return True


def _pieces(step: TileStep) -> list[TileStep]:
    """Split a FUSE-only step into steps of one command, so that it does not delay other units for long."""
    if step.matrix or len(step.fuse) < 2:
        return [step]
    pieces = [TileStep(fuse=[command]) for command in step.fuse]
    pieces[0].loads, pieces[-1].stores = step.loads, step.stores
    return pieces


def _work(step: TileStep, config: MlaConfig) -> tuple[int, int, int]:
    """Return a step's cycles on MATRIX, on FUSE, and for loading the results of other steps."""
    loads = sum(cycles(c, config) for c in step.loads)
    matrix, fuse = (
        sum(cycles(c, config) for c in step.matrix),
        sum(cycles(c, config) + _START for c in step.fuse),
    )
    return matrix, fuse, loads + _DELAY if loads else 0


def _list_schedule(
    queues: dict[int, list[int]], works: dict[int, tuple[int, int, int]], after: dict[int, set[int]]
) -> list[tuple[int, int, int]]:
    """Return the steps in issue order, with their start times and the times at which their inputs are available.

    The next step is always the one that can start first. Ties are resolved in favor of the layer that begins the
    longest chain of FUSE-only layers (`_ranks`).
    """
    ranks = _ranks(queues, works, after)
    free = [0, 0]  # times at which MATRIX and FUSE become idle
    done: dict[int, int] = {}
    out: list[tuple[int, int, int]] = []
    heads = dict.fromkeys(queues, 0)
    while len(out) < len(works):
        best: tuple[int, int, int, int] | None = None
        for layer, head in heads.items():
            if head == len(queues[layer]):
                continue
            step = queues[layer][head]
            if not after[step] <= done.keys():
                continue
            ready = max((done[need] for need in after[step]), default=0)
            begin = max(ready + (works[step][2] if ready else 0), free[0] if works[step][0] else free[1])
            found = (begin, -ranks[layer], layer, ready)
            best = min(best or found, found)
        assert best is not None
        begin, _, layer, ready = best
        step = queues[layer][heads[layer]]
        heads[layer] += 1
        matrix, fuse, _ = works[step]
        if matrix:
            free[0] = begin + matrix
        if fuse:  # the previous tile is drained concurrently
            free[1] = max(free[1], begin) + fuse
        done[step] = max(begin + matrix + fuse, free[1]) + _DELAY
        out.append((step, begin, ready))
    return out


def _spread(
    queues: dict[int, list[int]], works: dict[int, tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    """Return independent steps as `_list_schedule` does, with FUSE-only steps where FUSE would wait for MATRIX.

    FUSE executes its commands in order. If it began with the steps that nothing waits for, MATRIX would wait for room
    in the accumulator.
    """
    order = [step for steps in queues.values() for step in steps]
    alone = deque(step for step in order if not works[step][0])
    out: list[tuple[int, int, int]] = []
    time = spare = 0
    for step in order:
        matrix, fuse, _ = works[step]
        if not matrix:
            continue
        out.append((step, time, 0))
        time, spare = time + matrix, spare + matrix - fuse
        while alone and works[alone[0]][1] <= spare:
            spare -= works[alone[0]][1]
            out.append((alone.popleft(), time, 0))
    return [*out, *((step, time, 0) for step in alone)]


def _advance_matrix(
    listed: list[tuple[int, int, int]],
    steps: Sequence[tuple[int, TileStep]],
    works: dict[int, tuple[int, int, int]],
    after: dict[int, set[int]],
) -> list[tuple[int, int, int]]:
    """Move steps with MATRIX commands to earlier positions, so that MATRIX has work when FUSE's queue is full."""
    times: dict[int, int] = {}
    last: dict[int, int] = {}
    for step, begin, _ in listed:
        layer = steps[step][0]
        time = begin - _MATRIX_LEAD_STEPS * works[step][0]
        times[step] = last[layer] = max([time, last.get(layer, time), *(times[need] for need in after[step])])
    return sorted(((step, times[step], ready) for step, _, ready in listed), key=lambda each: each[1])


def _ranks(
    queues: dict[int, list[int]], works: dict[int, tuple[int, int, int]], after: dict[int, set[int]]
) -> dict[int, int]:
    """Return, for each layer, the cycles of the longest chain of FUSE-only layers that begins with it."""
    owner = {step: layer for layer, mine in queues.items() for step in mine}
    users: dict[int, set[int]] = defaultdict(set)
    for step, needs in after.items():
        for need in needs:
            users[owner[need]].add(owner[step])
    ranks: dict[int, int] = {}
    for layer in sorted(queues, reverse=True):
        alone = sum(fuse for matrix, fuse, _ in (works[step] for step in queues[layer]) if not matrix)
        ranks[layer] = alone + max((ranks[user] for user in users[layer]), default=0)
    return ranks


@dataclass(frozen=True)
class _Touch:
    """Address range of a buffer that a step of a layer reads or writes."""

    at: int
    layer: int
    box: BoundingBox


#: Number of the latest touches that are compared one by one, which usually suffices.
_RECENT = 16


class _Touches:
    """Touches of one buffer by one layer, in order."""

    def __init__(self) -> None:
        self.all: list[_Touch] = []
        self.table = np.zeros((4, _RECENT), np.int64)  # low, high, write and position of each touch

    def add(self, touch: _Touch) -> None:
        """Append a touch."""
        if len(self.all) == self.table.shape[1]:
            self.table = np.concatenate((self.table, np.zeros_like(self.table)), axis=1)
        self.table[:, len(self.all)] = touch.box.low, touch.box.high, touch.box.write, touch.at
        self.all.append(touch)

    def last_conflict(self, touch: _Touch) -> int | None:
        """Return the position of the last step that must not be reordered with the step of `touch`; None if none."""
        for other in reversed(self.all[-_RECENT:]):
            if _conflict(other, touch):
                return other.at
        low, high, write, at = self.table[:, : max(len(self.all) - _RECENT, 0)]
        meets = (low <= touch.box.high) & (high >= touch.box.low)
        hits = np.flatnonzero(meets & (write != touch.box.write))
        return int(at[hits[-1]]) if len(hits) else None


def _needs(config: MlaConfig, steps: Sequence[tuple[int, TileStep]]) -> Iterator[tuple[int, set[int]]]:
    """Yield, for each step, the last step of each other layer that it must not overtake."""
    shared = _shared(steps)
    numbers = {buffer: number for number, buffer in enumerate(shared)}
    seen: dict[CircularBuffer, dict[int, _Touches]] = {buffer: defaultdict(_Touches) for buffer in shared}
    for at, (layer, step) in enumerate(steps):
        needs = set[int]()
        mine = list(_touches(config, step, numbers, at, layer))
        for buffer, touch in mine:
            for other, touches in seen[buffer].items():
                if other != layer:
                    hit = touches.last_conflict(touch)
                    needs |= set() if hit is None else {hit}
        for buffer, touch in mine:
            seen[buffer][layer].add(touch)
        yield at, needs


def _conflict(a: _Touch, b: _Touch) -> bool:
    """Return True if two steps must not be reordered, based on their whole address ranges.

    With exact regions, a layer could start on each channel block separately, but LOAD and FUSE would wait for each
    block. The first two layers of ResNet-18 take 575,773 cycles with exact regions and 510,145 with ranges. Two layers
    that write a tensor, such as operands of a concatenation, write different bytes.
    """
    return a.box.write != b.box.write and a.box.low <= b.box.high and b.box.low <= a.box.high


def _shared(steps: Sequence[tuple[int, TileStep]]) -> list[CircularBuffer]:
    """Return the buffers that more than one layer uses."""
    users: dict[CircularBuffer, set[int]] = defaultdict(set)
    for layer, step in steps:
        for command in step.commands():
            for ref in command.refs():
                users[ref.buffer].add(layer)
    return [buffer for buffer, its in users.items() if len(its) > 1]


def _touches(
    config: MlaConfig, step: TileStep, numbers: dict[CircularBuffer, int], at: int, layer: int
) -> Iterator[tuple[CircularBuffer, _Touch]]:
    """Yield the regions of the shared buffers that a step reads or writes."""
    buffers = list(numbers)
    for command in step.commands():
        if not any(ref.buffer in numbers for ref in command.refs()):
            continue
        for item in boxes(config, command.unit, unpack_fields(command.unit, _values(command, numbers))):
            number = (item.high >> _BUFFER_BIT) - 1
            if number >= 0:
                yield buffers[number], _Touch(at, layer, item)


def _values(command: Command, numbers: dict[CircularBuffer, int]) -> list[int]:
    """Return the field values of a command if the shared buffers are at widely separated addresses."""
    out = []
    for item in UNIT_FIELDS[command.unit]:
        value = command.fields.get(item.name, item.default)
        if isinstance(value, BufferRef):
            shared = value.buffer in numbers and value.scale == 1
            value = value.resolve(numbers[value.buffer] + 1 << _BUFFER_BIT if shared else 0)
        out.append(int(value))
    return out
