"""List scheduling that interleaves the tile steps of several layers by earliest start time."""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep, cycles
from compiler.util.tiles import ceil_div
from cosim.semantics.bounding_box import BoundingBox, boxes
from cosim.semantics.command_fields import unpack_fields
from hw.config import MlaConfig
from hw.isa.commands import MATRIX_WORD, UNIT_FIELDS

#: Cycles from the last sum to the first result that another unit can read.
_DELAY = 150
#: Number of steps by which MATRIX commands are issued in advance.
_MATRIX_LEAD_STEPS = 1
#: Cycles of a FUSE command besides its points: if it drains sums, and in a FUSE-only step, whose commands usually read
#: results of the previous one. Of 30, 45, 60, 75, 90 and 100, these take fewest cycles for KWS and the BERT layer of
#: docs/benchmarks.md (RTL n16).
_DRAIN_START, _FUSE_ONLY_START = 30, 90
#: Position of the lowest bit of the buffer index in an address.
_BUFFER_BIT = 48


def interleave(
    config: MlaConfig,
    steps: Sequence[TileStep],
    layers: Sequence[int],
    interleavable: Sequence[bool],
    chains: Mapping[int, int] = MappingProxyType({}),
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
    chains : mapping of int to int
        For the layers that stream blocks of rows to each other, which are interleaved with each other only, the number
        of their chain.

    Returns
    -------
    order : list of (int, TileStep)
        Steps in order, with their layers.
    after : dict
        First position at which the inputs of each interleaved step exist, by position of the step.
    """
    order: list[tuple[int, TileStep]] = []
    after: dict[int, int] = {}
    for (chain, is_interleavable), part in groupby(
        zip(layers, steps, strict=True), key=lambda each: (chains.get(each[0]), interleavable[each[0]])
    ):
        mine = part_in_order = list(part)
        if is_interleavable and chain is not None:
            mine, inputs = _UnitScheduler(config, mine).run()
            after |= {len(order) + at: len(order) + position for at, position in enumerate(inputs)}
        elif is_interleavable and mine[0][0] != mine[-1][0]:
            mine = [(layer, piece) for layer, step in mine for piece in _pieces(step)]
            needs = dict(_needs(config, mine))
            queues: dict[int, list[int]] = defaultdict(list)
            for number, (layer, _) in enumerate(mine):
                queues[layer].append(number)
            works = {number: _work(step, config) for number, (_, step) in enumerate(mine)}
            # Steps of a layer remain in order, and those without MATRIX commands may be copies that others read.
            free = not any(needs.values()) and all(
                len({works[step][0] > 0 for step in each}) == 1 for each in queues.values()
            )
            listed = _spread(queues, works) if free else _list_schedule(queues, works, needs)
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


#: Cycles from the last row of a MATRIX command, and from the last point of a FUSE command, to results that another
#: command can read, and cycles between two FUSE commands.
_SUMS, _RESULTS, _NEXT_COMMAND = 42, 75, 6


class _Queue(IntEnum):
    """Queues of a layer's parts: parts of a queue remain in order."""

    MATRIX = 0
    DRAIN = 1  # FUSE commands of steps with MATRIX commands
    AHEAD = 2  # FUSE-only steps that may run ahead of other steps of the layer
    FUSE = 3


class _Part(NamedTuple):
    """Commands of a step on one unit."""

    layer: int
    queue: _Queue
    step: TileStep


def _parts(layer: int, step: TileStep) -> Iterator[_Part]:
    """Yield a step in parts with the commands of one unit: all MATRIX commands, or one FUSE command."""
    if step.matrix:
        yield _Part(layer, _Queue.MATRIX, replace(step, fuse=[], stores=[], unit_cycles=None))
    loads = [] if step.matrix else step.loads
    queue = _Queue.DRAIN if step.matrix else _Queue.AHEAD if step.ahead else _Queue.FUSE
    commands = [[command] for command in step.fuse] or ([] if step.matrix else [[]])
    for number, fuse in enumerate(commands, 1):
        part = TileStep(block=step.block, loads=loads if number == 1 else [], fuse=fuse)
        part.stores = step.stores if number == len(commands) else []
        yield _Part(layer, queue, part)


class _UnitScheduler:
    """List scheduling of the commands of layers that stream blocks of rows, which models each unit separately.

    The next part is always the one that can start first. Ties are resolved in favor of drains, without which MATRIX
    would have to wait for the accumulator, then of products whose results other layers of the chain need, then of the
    oldest block.
    """

    def __init__(self, config: MlaConfig, steps: Sequence[tuple[int, TileStep]]):
        self.config = config
        parts = [part for layer, step in steps for part in _parts(layer, step)]
        self.sums = _SumPlaces(config, [part.step for part in parts])
        self.parts = [part._replace(step=self.sums.numbered(at, part.step)) for at, part in enumerate(parts)]
        self.queues: dict[tuple[int, _Queue], list[int]] = defaultdict(list)
        for at, part in enumerate(self.parts):
            self.queues[part.layer, part.queue].append(at)
        numbers = {key: number for number, key in enumerate(self.queues)}
        each = [(numbers[part.layer, part.queue], part.step) for part in self.parts]
        self.needs = dict(_needs(config, each))
        for at in range(len(self.parts)):
            self.needs[at] |= self.sums.needs_of_drains(at, self.needs)
        self.stored = {command.write().buffer for _, step in steps for command in step.stores}

    def run(self) -> tuple[list[tuple[int, TileStep]], list[int]]:
        """Return the parts in issue order with their layers, and the positions from which their inputs exist."""
        begins = self._begins()
        times: dict[int, float] = {}
        last: dict[tuple[int, _Queue], float] = {}
        for at, begin in begins.items():
            key = self.parts[at].layer, self.parts[at].queue
            # MATRIX commands are issued in advance, so that MATRIX has work when FUSE's queue is full.
            time = begin - _MATRIX_LEAD_STEPS * self._cycles(self.parts[at].step.matrix)
            times[at] = last[key] = max(
                [time, last.get(key, time), *(times[need] for need in self.needs[at])]
            )
        order = sorted(begins, key=lambda at: times[at])
        positions = {at: position for position, at in enumerate(order)}
        inputs = [max((positions[need] + 1 for need in self.needs[at]), default=0) for at in order]
        return [(self.parts[at].layer, self.sums.placed(self.parts[at].step)) for at in order], inputs

    def _begins(self) -> dict[int, int]:
        """Return the start times of all parts, in the order in which they are scheduled."""
        free = {True: 0, False: 0}  # times at which MATRIX and FUSE become idle
        heads = dict.fromkeys(self.queues, 0)
        done: dict[int, int] = {}
        out: dict[int, int] = {}
        while len(out) < len(self.parts):
            found = []
            for (layer, queue), mine in self.queues.items():
                if heads[layer, queue] == len(mine):
                    continue
                at = mine[heads[layer, queue]]
                needs = self.needs[at] | self.sums.needs_of_place(at)
                if needs <= done.keys():
                    ready = max((done[need] for need in needs), default=0) + self._loading(at)
                    matrix = queue is _Queue.MATRIX
                    begin = max(ready, free[matrix])
                    age = layer if matrix else self.parts[at].step.block
                    found.append((begin, queue > _Queue.DRAIN, age, queue, layer, at))
            begin, _, _, queue, layer, at = min(found)
            heads[layer, queue] += 1
            self.needs[at] |= self.sums.take(at)
            step, matrix = self.parts[at].step, queue is _Queue.MATRIX
            end = begin + self._cycles(step.matrix if matrix else step.fuse)
            free[matrix] = end if matrix else end + _NEXT_COMMAND
            done[at] = end + (_SUMS if matrix else _RESULTS)
            out[at] = begin
        return out

    def _cycles(self, commands: Sequence[Command]) -> int:
        return sum(cycles(command, self.config) for command in commands)

    def _loading(self, at: int) -> int:
        """Return the cycles until a part has loaded results that other steps have stored."""
        loads = [
            command
            for command in self.parts[at].step.loads
            if any(ref.buffer in self.stored for ref in command.reads())
        ]
        return self._cycles(loads) + _DELAY if loads else 0


class _SumPlaces:
    """Places in the accumulator of the sums of several layers, which take turns in the order of the MATRIX commands.

    FUSE cannot read a bank of the accumulator while MATRIX adds to sums in this bank. Each tile of sums is therefore in
    another bank than the tile before it, and what FUSE writes to the accumulator is in other banks than all tiles. The
    layers keep their own buffers if there is no room for two tiles.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the target machine.
    steps : sequence of TileStep
        Steps with the commands of one unit each, in an order in which they can run.
    """

    def __init__(self, config: MlaConfig, steps: Sequence[TileStep]):
        #: Number of each step's tile, and the steps that drain each tile; first steps of tiles.
        self.tiles: dict[int, int] = {}
        self.drains: dict[int, set[int]] = defaultdict(set)
        self.first: set[int] = set()
        #: Buffers with sums, which this object replaces.
        self.buffers: set[CircularBuffer] = set()
        #: Tiles in the order in which MATRIX computes them; their places are used in rotation.
        self.order: list[int] = []
        self.place: dict[int, BufferRef] = {}
        self.places = self._find_places(config, steps)
        if self.places:
            self._find_tiles(steps)
        size = max((buffer.total for buffer in self.buffers), default=1)
        self.all = CircularBuffer(BufferMemory.ACC, "sums", size, max(len(self.first), 1))

    def _find_places(self, config: MlaConfig, steps: Sequence[TileStep]) -> list[BufferRef]:
        """Return the places of tiles, alternating between banks; none if the layers keep their own buffers."""
        refs = {ref.buffer for step in steps for command in step.fuse for ref in command.refs()}
        scratch = {command.write().buffer for step in steps for command in step.fuse}
        self.buffers = {command.write().buffer for step in steps for command in step.matrix} - scratch
        rows = config.acc_rows // config.acc_banks
        others = [buffer for buffer in refs - self.buffers if buffer.memory == BufferMemory.ACC]
        banks = config.acc_banks - ceil_div(sum(buffer.total for buffer in others), rows)
        size = max((buffer.total for buffer in self.buffers), default=0)
        each = rows // size if size else 0
        if banks * each < 2:
            return []
        made = [
            CircularBuffer(BufferMemory.ACC, f"sums{bank}", rows // each, each, family="sums")
            for bank in range(banks)
        ]
        return [BufferRef(buffer, number) for number in range(each) for buffer in made]

    def _find_tiles(self, steps: Sequence[TileStep]) -> None:
        """Number the tiles: a MATRIX command begins a tile if its buffer is new, or has been drained."""
        current: dict[CircularBuffer, int] = {}
        drained: set[CircularBuffer] = set()
        for at, step in enumerate(steps):
            for command in step.matrix:
                buffer = command.write().buffer
                if buffer in self.buffers:
                    if buffer not in current or buffer in drained:
                        drained.discard(buffer)
                        current[buffer] = len(self.first)
                        self.first.add(at)
                    self.tiles[at] = current[buffer]
            for command in step.fuse:
                for buffer in self.buffers & {ref.buffer for ref in command.reads()}:
                    drained.add(buffer)
                    self.tiles[at] = current[buffer]
                    self.drains[current[buffer]].add(at)

    def numbered(self, at: int, step: TileStep) -> TileStep:
        """Return a step whose sums are in a buffer of all tiles, so that no tile waits for the place of another."""
        if at not in self.tiles:
            return step
        tile = self.tiles[at]
        return _replaced(
            step, lambda ref: BufferRef(self.all, tile, ref.offset) if ref.buffer in self.buffers else ref
        )

    def placed(self, step: TileStep) -> TileStep:
        """Return a step of `numbered` with the places of its sums."""

        def place(ref: BufferRef) -> BufferRef:
            if ref.buffer is not self.all:
                return ref
            return self.place[ref.index].plus(ref.offset)

        return _replaced(step, place)

    def needs_of_drains(self, at: int, needs: Mapping[int, set[int]]) -> set[int]:
        """Return the steps that the drains of a tile need, if a step begins the tile, except steps of the tile.

        Otherwise, tiles that cannot be drained yet could take all places.
        """
        if at not in self.first:
            return set()
        return {need for drain in self.drains[self.tiles[at]] for need in needs[drain] if need < at}

    def needs_of_place(self, at: int) -> set[int]:
        """Return the steps that drain the tile whose place a step takes; none if it does not begin a tile."""
        if at not in self.first or len(self.order) < len(self.places):
            return set()
        return self.drains[self.order[-len(self.places)]]

    def take(self, at: int) -> set[int]:
        """Give the next place to the tile that a step begins, if any; return the result of `needs_of_place`."""
        needs = self.needs_of_place(at)
        if at in self.first:
            self.place[self.tiles[at]] = self.places[len(self.order) % len(self.places)]
            self.order.append(self.tiles[at])
        return needs


def _replaced(step: TileStep, change: Callable[[BufferRef], BufferRef]) -> TileStep:
    """Return a step with other addresses in the MATRIX and FUSE commands that have different ones."""

    def changed(command: Command) -> Command:
        fields = {
            name: change(value) if isinstance(value, BufferRef) else value
            for name, value in command.fields.items()
        }
        same = all(value is command.fields[name] for name, value in fields.items())
        if same:
            return command
        return Command(command.unit, command.layer, fields, origin=command.origin or command)

    commands = {name: [changed(each) for each in getattr(step, name)] for name in ("matrix", "fuse")}
    return replace(step, **commands, unit_cycles=None)


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
    start = _DRAIN_START if step.matrix else _FUSE_ONLY_START
    loads = sum(cycles(c, config) for c in step.loads)
    matrix, fuse = (
        sum(cycles(c, config) for c in step.matrix),
        sum(cycles(c, config) + start for c in step.fuse),
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
            on_fuse = not works[step][0] and not works[step][2]
            if ready and not on_fuse:  # FUSE executes its commands in order
                ready += _DELAY
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
        done[step] = max(begin + matrix + fuse, free[1])
        out.append((step, begin, ready))
    return out


def _spread(
    queues: dict[int, list[int]], works: dict[int, tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    """Return independent steps as `_list_schedule` does, with FUSE-only steps where FUSE would wait for MATRIX.

    Either all steps of a layer have MATRIX commands, or none.

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
            if owner[need] < owner[step]:  # not a write to memory that a later layer has read
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


def overlap(config: MlaConfig, first: Command, second: Command) -> bool:
    """Return True if two commands may access the same elements of a buffer and at least one of them writes."""
    shared = set(first.buffers) & set(second.buffers)
    numbers = {buffer: number for number, buffer in enumerate(shared)}
    ours, theirs = (
        [
            item
            for item in boxes(config, command.unit, unpack_fields(command.unit, _values(command, numbers)))
            if item.high >> _BUFFER_BIT
        ]
        for command in (first, second)
    )
    return any((a.write or b.write) and a.meets(b) for a in ours for b in theirs)


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
