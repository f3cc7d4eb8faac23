"""Programs that compute only what depends on changed pixels (`compiler.runtime.regions`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.buffer_allocation import joint_peak
from compiler.codegen.executable import (
    CommandStream,
    Regions,
    Relocation,
    StageExecutable,
    align_up,
    share_memory,
)
from compiler.codegen.generate import LayerCodegen
from compiler.codegen.split_programs import ProgramPart
from compiler.initial_schedule.fit_memory import fit
from compiler.initial_schedule.initial import estimates, initial_schedule
from compiler.ir.graph import Graph, rebuild, unused_name
from compiler.ir.tensor import Tensor
from compiler.lowering.fusion_groups import fuse_epilogues, group
from compiler.lowering.lower import lower
from compiler.options import CompileOptions
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.known_results import WAIT_FOR_ALL, check_single, reusing, single
from compiler.runtime.regions import AxisTile, RegionPlan, RegionPlanner, Span
from compiler.runtime.session import Session, dram_bytes
from compiler.runtime.size_variants import check_room
from compiler.runtime.stages import Stage
from cosim.golden import GoldenDevice
from hw.errors import InputError
from hw.isa.assembler import assemble
from hw.isa.commands import FUSE_DIMS, UNIT_FIELDS, field_number
from hw.isa.enums import Unit
from hw.isa.micro_instruction import LOOP_IMM, OPERAND_BASE, REGISTERS, MicroOp, decode, encode
from hw.isa.program import Program

#: Register with the differences: bits of rows of blocks, of columns of blocks, and of other inputs.
_DIFFERENCES = REGISTERS - 1
#: Number of bits in that register that are used.
_BITS = 30
#: Number of buffers of differences in the accumulator: FUSE reads one while MATRIX writes the others.
_SUM_BUFFERS = 3
#: Number of pieces of the inputs whose loads are issued before a piece is compared.
_PIECES_AHEAD = 3
#: Numbers of sizes of windows that are tried.
_SIZES = (3, 2, 1)
#: Cycles per layer and size of windows, in ascending order, that are tried until the program fits.
_PRICES = (0, 32, 64, 128, 256, 512)
_CLEAR = [f"clear {unit.name.lower()}" for unit in Unit]


@dataclass(frozen=True)
class Buffer:
    """Image in the memory of a stage, with a border.

    Parameters
    ----------
    start : int
        Offset of the first pixel in the memory in bytes.
    pitch, pixel : int
        Distance between rows and between pixels in bytes.
    """

    start: int
    pitch: int
    pixel: int

    def offset(self, row: int, column: int) -> int:
        """Return the offset of a pixel, which may be in the border."""
        return self.start + row * self.pitch + column * self.pixel


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of an input that are loaded together with their copy, and compared.

    Parameters
    ----------
    row : int
        First row; -1 if the input is not the image that is compared block by block.
    operand, offset : int
        Operand with the address of the input, and offset of the piece in bytes.
    rows, line : int
        Number of rows, and bytes of a row.
    copy, pitch : int
        Offset of the copy in the memory of the stage, and distance between its rows in bytes.
    parts : tuple of (int, int, int, int, int)
        Comparisons: first row of the piece and number of rows, first byte and number of bytes of each
        row, and mask of the bits that a difference sets.
    """

    row: int
    operand: int
    offset: int
    rows: int
    line: int
    copy: int
    pitch: int
    parts: tuple[tuple[int, int, int, int, int], ...]


@dataclass(frozen=True, eq=False)
class Subroutine:
    """Code of a group of layers for windows of one size, or of the layers after the groups.

    Parameters
    ----------
    code : StageExecutable
        Code with one program.
    operands : tuple of str
        Names of the inputs and outputs, in the order of the operands from 1.
    nodes : tuple of str
        Name of a node of each layer.
    """

    code: StageExecutable
    operands: tuple[str, ...]
    nodes: tuple[str, ...]

    @property
    def words(self) -> tuple[int, ...]:
        """Words of the program, without the halt at the end."""
        return self.code.parts[0].program.words[:-1]

    @property
    def registers(self) -> int:
        """Highest register that the program changes."""
        values = [decode(word) for word in self.words]
        return max((each["d"] for each in values if each["opcode"] == MicroOp.ADD), default=0)

    def linked(self, address: int, memory: Relocation, tags: Mapping[int, int]) -> list[int]:
        """Return the words of the subroutine at an address of the program.

        Registers contain the addresses of inputs and outputs: register 30 that of the first one, 29 that of the second.
        """
        out = []
        for word in self.words:
            values = decode(word)
            op, index = MicroOp(values.pop("opcode")), values["b"] - OPERAND_BASE
            if op is MicroOp.LOOP:
                loop = LOOP_IMM.unpack(values["imm"] & 0xFFFFFFFF)
                values["imm"] = LOOP_IMM.pack(end=loop["end"] + address, count=loop["count"])
            elif op is MicroOp.TAG:
                values["imm"] = tags[values["imm"]]
            elif op is MicroOp.SET and index == 0:
                values["imm"] = memory.relocate(values["imm"])
            elif op is MicroOp.SET and 0 < index <= len(self.operands):
                values["b"] = _DIFFERENCES - index
            out.append(encode(op, **values))
        return [*out, encode(MicroOp.RET)]


def executed(words: Sequence[int]) -> int:
    """Return how many instructions a program without branches executes."""
    times = np.ones(len(words), np.int64)
    for at, word in enumerate(words):
        values = decode(word)
        if values["opcode"] == MicroOp.LOOP:
            loop = LOOP_IMM.unpack(values["imm"] & 0xFFFFFFFF)
            times[at + 1 : loop["end"]] *= loop["count"]
    return int(times.sum())


#: Spans of tensors, by name, on both axes.
_Spans = tuple[Mapping[str, Span], Mapping[str, Span]]
#: Rectangles of the image, and subroutines with the offsets of their inputs and outputs in the buffers.
_Calls = tuple[list[tuple[Span, Span]], list[tuple[Subroutine, list[int]]]]


@dataclass(frozen=True, eq=False)
class _Window:
    """Window with its calls.

    Parameters
    ----------
    size : int
        Index of the size of the window; the last one is the whole image.
    mask : int
        Bits of the rows and columns of blocks in the window.
    calls : (list, list)
        Rectangles of the image, and the calls.
    """

    size: int
    mask: int
    calls: _Calls


@dataclass(frozen=True, eq=False)
class _Linked:
    """Windows and subroutines of a program.

    Parameters
    ----------
    windows : list of _Window
        All windows, the whole image last.
    tail : Subroutine or None
        The layers after the groups.
    """

    windows: list[_Window]
    tail: Subroutine | None

    @property
    def subroutines(self) -> list[Subroutine]:
        """All subroutines, each once."""
        found = dict.fromkeys(each for window in self.windows for each, _ in window.calls[1])
        return [*found, *([self.tail] if self.tail else [])]


class _Text:
    """Assembly text under construction, in which every line except labels is one word."""

    def __init__(self, name: str):
        self.name, self._lines, self._words = name, list[str](), 0

    def __len__(self) -> int:
        """Return the number of words."""
        return self._words

    def add(self, *lines: str) -> None:
        """Append instructions or words."""
        self._lines += lines
        self._words += len(lines)

    def label(self, name: str) -> None:
        """Define a label at the next word."""
        self._lines.append(f"{name}:")

    def call(self, name: str, addresses: Sequence[tuple[int, int]]) -> None:
        """Append the call of a subroutine with addresses: each an operand and an offset to add."""
        for number, (operand, offset) in enumerate(addresses, 1):
            self.add(f"add r{_DIFFERENCES - number}, op{operand}, {offset}")
        self.add(f"call {name}")

    def wait(self, count: int, modulus: int) -> None:
        """Append instructions without effect, of which `count` modulo `modulus` are executed."""
        count %= modulus
        if count > 1:
            self.add(f"loop {count - 1}, {len(self) + 2}")
        if count:
            self.add("add r0, r0")

    @property
    def program(self) -> Program:
        """The assembled program."""
        return assemble("\n".join(self._lines), self.name)


def with_regions(
    network: CompiledNetwork, streams: Sequence[CommandStream], options: CompileOptions
) -> CompiledNetwork:
    """Make every stage compute only what depends on changed pixels, or reuse its last results if nothing has changed.

    Parameters
    ----------
    network : CompiledNetwork
        Network in which each stage is one program.
    streams : sequence of CommandStream
        Commands of the stages on the accelerator, in order.
    options : CompileOptions
        Options with which the network was compiled.

    Raises
    ------
    InputError
        No stage begins with convolutions or pooling of an image, or what a stage needs does not fit the machine.
    """
    if any(stage.control for stage in network.stages):
        raise InputError(f"reuse: {network.name!r} has control flow")
    stages, found = list(network.stages), False
    coded = [number for number, stage in enumerate(stages) if stage.code]
    for number, stream in zip(coded, streams, strict=True):
        stage = stages[number]
        made = _RegionCompiler(network, stage, stream, options).compiled()
        found = found or made is not None
        assert stage.code is not None
        stages[number] = made or reusing(network, stage, stage.code, options.offset)
    if not found:
        raise InputError(
            f"reuse: {network.name!r} has no regions that could be computed alone: its first layers must be "
            "convolutions or pooling of an input of 8-bit pixels, large enough that computing a part of it takes fewer "
            "cycles; reuse without regions compares whole inputs"
        )
    check_room(network.config, stages)
    return replace(network, stages=tuple(stages))


class _RegionCompiler:
    """Compiler of a stage that computes only what depends on changed pixels.

    Parameters
    ----------
    network : CompiledNetwork
        Network with the stage.
    stage : Stage
        Stage on the accelerator.
    stream : CommandStream
        Commands of the stage.
    options : CompileOptions
        Options with which the network was compiled.
    """

    def __init__(
        self, network: CompiledNetwork, stage: Stage, stream: CommandStream, options: CompileOptions
    ):
        assert stage.code is not None
        self.network, self.stage, self.code, self.options = network, stage, stage.code, options
        self.machine, self.config = network.config, options.limits.within(network.config)
        lowered = stream.lowered
        self.graph = lowered.graph
        cycles = estimates(self.config, lowered, options.dram)
        self.planner = RegionPlanner(
            self.graph,
            [layer.nodes for layer in lowered.layers],
            [cycles[layer.name][0] for layer in lowered.layers],
            self.config,
        )
        self.plan: RegionPlan | None = None
        self._made: dict[tuple, Subroutine] = {}

    def compiled(self) -> Stage | None:
        """Return the stage with the program; None if computing parts of the image would not save cycles.

        Raises
        ------
        InputError
            No program fits the machine.
        """
        shortest, best = inf, None
        for count, whole in product(_SIZES, (True, False)):
            for price in _PRICES:
                self.plan = self.planner.plan(count, price, whole=whole)
                if self.plan is None:
                    break
                if best and self.plan.cycles >= best[0].cycles:
                    continue
                self._place_buffers()
                parts = _Linked(self._windows(), self._tail())
                length = len(self._linked(parts, self.contents).code.programs[0].words)  # type: ignore[union-attr]
                shortest = min(shortest, length)
                if length <= self.machine.wis_words:
                    best = self.plan, parts
                    break
        if best:
            self.plan, parts = best
            self._place_buffers()
            contents = _after_zeros(self.network, self._linked(parts, self.contents, all_differ=True))
            return self._linked(parts, contents)
        if shortest < inf:
            raise InputError(
                f"reuse: the program for regions of {self.graph.name!r} has {shortest:,} words, and the instruction "
                f"store has {self.machine.wis_words:,}"
            )
        return None

    def _place_buffers(self) -> None:
        """Choose the places of the copies of inputs and outputs and of the results of groups in the stage's memory.

        Attribute `contents` is the initial contents of the buffers: zero points in the borders, and zeros.
        """
        planner, plan = self.planner, self.plan
        assert planner.image is not None and plan is not None
        grouped = {name for each in plan.groups for name in planner.results(each)}
        names = [*self.graph.inputs, *sorted(grouped), *(n for n in self.graph.outputs if n not in grouped)]
        self.buffers: dict[str, Buffer] = {}
        fills: list[tuple[int, int, int]] = []
        at = 0
        for name in dict.fromkeys(names):
            tensor = self.graph.tensors[name]
            if name not in grouped and name != planner.image.name:
                self.buffers[name] = Buffer(at, tensor.bytes, tensor.bytes)
                at += align_up(tensor.bytes)
                continue
            pixel = tensor.bytes // (tensor.shape[1] * tensor.shape[2])
            (above, below), (left, right) = planner.border(name)
            pitch = (left + tensor.shape[2] + right) * pixel
            pitch = (
                pitch if pitch == tensor.shape[2] * pixel else -(-pitch // self.machine.n) * self.machine.n
            )
            start = align_up(at + above * pitch + left * pixel)
            end = start + (tensor.shape[1] + below) * pitch
            if pitch != tensor.shape[2] * pixel:
                zero = tensor.quantization.zero_point[0] if tensor.quantization else 0
                fills.append((at, end, zero & 0xFF))
            self.buffers[name] = Buffer(start, pitch, pixel)
            at = align_up(end)
        self._pitches = tuple((name, buffer.pitch) for name, buffer in self.buffers.items())
        self.contents = np.zeros(at, np.uint8)
        for start, end, value in fills:
            self.contents[start:end] = value

    def _windows(self) -> list["_Window"]:
        """Return all windows, the smallest first and the whole image last."""
        plan, planner = self.plan, self.planner
        assert plan is not None and planner.image is not None
        found = []
        for number, (high, wide) in enumerate(plan.sizes):
            rows, columns = (
                planner.spans(axis, plan.sizes[number][axis], plan.blocks[axis]) for axis in (0, 1)
            )
            if len(rows) * len(columns) == 1:
                continue
            for i, of_rows in enumerate(rows):
                for j, of_columns in enumerate(columns):
                    mask = self._mask(range(i, i + high), range(j, j + wide))
                    found.append(_Window(number, mask, self._calls([(of_rows, of_columns)])))
        rows, columns = (planner.covering(axis, plan.sizes[-1][axis], plan.blocks[axis]) for axis in (0, 1))
        each = [(of_rows, of_columns) for of_rows in rows for of_columns in columns]
        return [*found, _Window(len(plan.sizes) - (len(each) == 1), 0, self._calls(each))]

    def _calls(self, windows: "Sequence[_Spans]") -> "_Calls":
        """Return the rectangles of the image in windows, and the calls of the groups for all of these windows."""
        assert self.plan is not None and self.planner.image is not None
        name = self.planner.image.name
        calls = [self._call(span, spans) for span in self.plan.groups for spans in windows]
        return [(rows[name], columns[name]) for rows, columns in windows], calls

    def _call(self, span: range, spans: Sequence[Mapping[str, Span]]) -> tuple[Subroutine, list[int]]:
        """Return the subroutine of a group for a window, and the offsets of its inputs and outputs in the buffers."""
        tiles = [self.planner.tile(span, axis, spans[axis]) for axis in (0, 1)]
        rows, columns = tiles
        assert rows is not None and columns is not None
        key = span, rows.key, columns.key, self._pitches
        graph, places = _tile_graph(self.planner, span, rows, columns)
        if key not in self._made:
            pitches = {name: self.buffers[places[name][0]].pitch for name in (*graph.inputs, *graph.outputs)}
            self._made[key] = self._subroutine(graph, pitches)
        addresses = [
            self.buffers[places[n][0]].offset(*places[n][1:]) for n in (*graph.inputs, *graph.outputs)
        ]
        return self._made[key], addresses

    def _tail(self) -> Subroutine | None:
        """Compile the layers after the groups; None if there are none."""
        assert self.plan is not None
        done = {node.name for each in self.plan.groups for node in self.planner.nodes(each)}
        nodes = [node for node in self.graph if node.name not in done]
        if not nodes:
            return None
        made = {name for node in nodes for name in node.outputs}
        read = dict.fromkeys(t.name for node in nodes for t in self.graph.ins(node) if not t.constant)
        outputs = [name for name in self.graph.outputs if name in made]
        inputs = [name for name in read if name not in made]
        pitches = {name: self.buffers[name].pitch for name in inputs if name not in self.graph.inputs}
        return self._subroutine(rebuild(self.graph, nodes, inputs=inputs, outputs=outputs), pitches)

    def _subroutine(self, graph: Graph, pitches: dict[str, int]) -> Subroutine:
        """Compile a graph to one program; `pitches` contains the distances of the rows of inputs and outputs."""
        fusions, options = tuple(fuse_epilogues(graph)), self.options
        lowered = lower(graph, group(graph, fusions), options.rounding, self.config)
        lowered.pitches = {
            name: pitch
            for name, pitch in pitches.items()
            if pitch != graph.tensors[name].bytes // graph.tensors[name].shape[1]
        }
        schedule = single(initial_schedule(self.config, lowered, fusions, options.dram), lowered, None)
        layers = {name: replace(layer, split_last_tile=False) for name, layer in schedule.layers.items()}
        schedule = replace(schedule, layers=layers)
        for each in (schedule, schedule.unpacked()):  # without compact weights, programs are shorter
            seen: list[CommandStream] = []
            counts = 0, len(lowered.layers)
            _, code = fit(
                self.config, lowered, each, counts, 0, seen, options.dram, LayerCodegen(self.config)
            )
            if len(code.parts) == 1:
                break
        check_single(self.graph.name, code)
        for name, pitch in lowered.pitches.items():
            tensor = graph.tensors[name]
            _check_rows(seen[-1], code.operand_numbers[name], pitch, tensor.bytes // tensor.shape[1], name)
        nodes = tuple(layer.nodes[0] for layer in lowered.layers)
        return Subroutine(code, (*graph.inputs, *graph.outputs), nodes)

    def _linked(self, parts: "_Linked", contents: NDArray[np.uint8], *, all_differ: bool = False) -> Stage:
        """Return the stage with one program, which begins with the comparison and ends with the subroutines.

        Parameters
        ----------
        parts : _Linked
            Windows and subroutines.
        contents : array of uint8
            Initial contents of the buffers.
        all_differ : bool
            True to compute everything even if no input has changed.
        """
        windows, tail, subroutines = parts.windows, parts.tail, parts.subroutines
        plan, image = self.plan, self.planner.image
        assert plan is not None and image is not None
        memory = share_memory([each.code for each in subroutines], contents, self.options.offset)
        at = memory.more
        text = _Text(f"regions of {self.graph.name}")
        registers = max(max(each.registers for each in subroutines), 1)
        operands = max(len(each.operands) for each in subroutines)
        if registers + operands >= _DIFFERENCES:
            raise InputError(
                f"reuse: the programs for regions of {image.name!r} need {registers + operands} registers, of which "
                f"there are {_DIFFERENCES - 1}"
            )
        zeroed = [*range(1, registers + 1), *range(_DIFFERENCES - operands, _DIFFERENCES)]
        meet = [*_CLEAR, *(f"add r{r}, r0" for r in zeroed), f"tag {self.code.tags[0]}"]
        if any(_uses_lines(each) for each in subroutines):
            meet += [WAIT_FOR_ALL, "set matrix.word, dw=1", "issue matrix", "clear matrix"]
        meet.append(WAIT_FOR_ALL)

        text.add(WAIT_FOR_ALL, f"tag {self.code.tags[0]}")
        pixels = (
            1 << len(range(0, image.shape[1], plan.blocks[0])) + len(range(0, image.shape[2], plan.blocks[1]))
        ) - 1
        pieces, others = self._pieces(at)
        places = self._places(pieces)
        self._compare(text, pieces, places)
        if all_differ:
            text.add(f"or r{_DIFFERENCES}, r{_DIFFERENCES}, {pixels | others}")
        sizes = [
            (min(a * plan.blocks[0], image.shape[1]), min(b * plan.blocks[1], image.shape[2]))
            for a, b in plan.sizes
        ]
        sizes = [*dict.fromkeys([*sizes, (image.shape[1], image.shape[2])])]
        modulus = 1 << (2 * len(sizes) + 2).bit_length()
        text.add(*meet, f"and r1, r{_DIFFERENCES}, r0, {pixels}", "beq r1, r0, rest")
        base, tests = len(text), list[int]()
        buffer, line = self.buffers[image.name], image.bytes // image.shape[1]
        text.add(f"set store.dram_y, {buffer.pitch}", f"set store.src_y, {line}")
        for number, window in enumerate(windows[:-1]):
            text.add(f"and r1, r{_DIFFERENCES}, r0, {pixels & ~window.mask}", f"beq r1, r0, window{number}")
            tests.append(len(text) - base)
        tests.append(len(text) - base)
        names = {id(each): f"layers{number}" for number, each in enumerate(subroutines)}
        prologues = {
            id(each): [*_CLEAR, *(f"add r{number}, r0" for number in range(1, each.registers + 1))]
            for each in subroutines
        }
        lengths = {id(each): len(prologues[id(each)]) + executed(each.words) + 1 for each in subroutines}
        order = [len(windows) - 1, *range(len(windows) - 1)]
        for number in order:
            text.label(f"window{number}")
            before, start = tests[number], len(text)
            rectangles, calls = windows[number].calls
            text.add(f"set store.len, {(rectangles[0][1][1] - rectangles[0][1][0]) * buffer.pixel}")
            for (top, bottom), (left, _) in rectangles:
                for piece, (place, _) in zip(pieces, places, strict=True):
                    low, high = max(top, piece.row), min(bottom, piece.row + piece.rows)
                    if piece.row >= 0 and low < high:
                        text.add(
                            f"set store.y_count, {high - low}",
                            f"set store.dram, op0, {at + buffer.offset(low, left)}",
                            f"set store.src, {place + (low - piece.row) * line + left * buffer.pixel}",
                            "issue store",
                        )
            for subroutine, addresses in calls:
                text.call(names[id(subroutine)], [(0, at + each) for each in addresses])
                before += lengths[id(subroutine)]
            text.wait(windows[number].size + 1 - before - (len(text) - start) - 1, modulus)
            text.add("beq r0, r0, rest")
        text.label("rest")
        text.add(*meet, f"beq r{_DIFFERENCES}, r0, end")
        base += len(meet) + 1
        start, before = len(text), 0
        if tail:
            places = self.code.operand_numbers
            addresses = [
                (places[name], 0) if name in self.graph.inputs else (0, at + self.buffers[name].start)
                for name in tail.operands
            ]
            text.call(names[id(tail)], addresses)
            before = lengths[id(tail)]
        text.wait(len(sizes) + 1 - before - (len(text) - start), modulus)
        text.label("end")
        start = len(text)
        text.add(*meet)
        self._copy_outputs(text, at)
        text.add("halt")
        base += len(text) - start
        tags = {node: info.tag for info in self.stage.infos for node in info.nodes}
        for each, moved in zip(subroutines, memory.moved, strict=True):
            text.label(names[id(each)])
            mine = dict(
                reversed([(tag, tags[node]) for tag, node in zip(each.code.tags, each.nodes, strict=True)])
            )
            text.add(*prologues[id(each)])
            text.add(*(f".word {word}" for word in each.linked(len(text), moved, mine)))
        program = text.program
        regions = Regions((image.shape[1], image.shape[2]), tuple(sizes), base % modulus, modulus)
        code = replace(
            self.code,
            parts=(ProgramPart(program, tuple(range(len(self.code.tags)))),),
            image=memory.image,
            memory=memory.size,
            mutable=contents.size,
            peak=joint_peak([each.code.peak for each in subroutines]),
            regions=regions,
        )
        return replace(self.stage, code=code)

    def _compare(self, text: _Text, pieces: Sequence[Piece], places: Sequence[tuple[int, int]]) -> None:
        """Append the comparison of all inputs with their copies, and the update of the copies except the image's.

        MATRIX multiplies the bytes by the identity matrix and those of the copy by its negative, so that sums are
        differences. FUSE counts those that are zero, while MATRIX computes the next ones.
        """
        n = self.machine.n
        tiles, room = self.machine.sp_bytes - n - 2 * n * n, self.machine.acc_rows // _SUM_BUFFERS
        text.add(
            "set load.word, fill=1", f"set load.dst, {tiles}", f"set load.len, {2 * n * n}", "issue load"
        )
        text.add(f"set load.y_count, {n}", f"set load.dst_y, {n + 1}", "set load.len, 1")
        for number, value in enumerate((1, 0xFF)):
            text.add(f"set load.word, fill=1 fill_value={value}", f"set load.dst, {tiles + number * n * n}")
            text.add("issue load")
        text.add("set load.word, fill=0")
        text.add(
            f"set matrix.w_base, {tiles}",
            f"set matrix.w_row, {n}",
            f"set matrix.w_ic, {n * n}",
            "set matrix.ic_count, 2",
            f"set matrix.a_v, {n}",
            "set matrix.acc_x, 1",
            f"set fuse.stage, d_dst=sp d_dtype=i8 tail_dim={FUSE_DIMS.index('x')}",
            "set fuse.a_v, 1",
            f"set fuse.d_base, {self.machine.sp_bytes - n}",
        )
        parts = [
            (number, piece, part, index == 0)
            for number, piece in enumerate(pieces)
            for index, part in enumerate(self._chunks(piece, room))
        ]
        loaded, multiplied, settle = 0, 0, list[str]()
        for at, (number, piece, part, _) in enumerate(parts):
            while multiplied < min(at + _SUM_BUFFERS - 1, len(parts)):
                coming, other, chunk, first = parts[multiplied]
                while loaded < min(coming + _PIECES_AHEAD, len(pieces)):
                    self._load(text, pieces[loaded], places[loaded])
                    loaded += 1
                text.add(*self._differences(other, places[coming], chunk, multiplied % _SUM_BUFFERS * room))
                text.add(f"issue matrix, {'wait(load:0), ' if first else ''}signal(fuse:0)")
                multiplied += 1
            text.add(*settle[:2], *self._count(part, at % _SUM_BUFFERS * room))
            text.add("issue fuse, wait(matrix:0)", *settle[2:])
            settle = [
                "fence fuse",
                f"seq r1, %fuse_zeros, r0, {part[1] * part[3]}",
                "xor r1, r1, r0, 1",
                f"mul r1, r1, r0, {part[4]}",
                f"or r{_DIFFERENCES}, r{_DIFFERENCES}, r1",
            ]
            if piece.row < 0 and (at + 1 == len(parts) or parts[at + 1][0] != number):
                text.add(f"set store.len, {piece.line}", f"set store.src, {places[number][0]}")
                text.add(f"set store.dram, op0, {piece.copy}", *settle, "issue store")
                settle = []
        text.add(*settle)

    def _chunks(self, piece: Piece, room: int) -> list[tuple[int, int, int, int, int]]:
        """Return the comparisons of a piece, divided so that the differences fit `room` rows of the accumulator."""
        n, out = self.machine.n, list[tuple[int, int, int, int, int]]()
        for row, rows, start, size, mask in piece.parts:
            points = -(-size // n)
            for left in range(0, points, room):
                width = min(room, points - left)
                high = max(room // width, 1)
                many = min(width * n, size - left * n)
                out += [
                    (row + top, min(high, rows - top), start + left * n, many, mask)
                    for top in range(0, rows, high)
                ]
        return out

    def _places(self, pieces: Sequence[Piece]) -> list[tuple[int, int]]:
        """Return the scratchpad addresses of each piece and of its copy.

        Pieces, copies, and adjacent pieces are in different banks, since one piece is compared while the next one is
        loaded. MATRIX also reads up to N - 1 bytes after a piece. The last rows are for weights and results.
        """
        size, n = self.machine.sp_bytes, self.machine.n
        sides = 2 if len(pieces) > 1 else 1
        room, used, out = size // (2 * sides), [0] * sides, list[tuple[int, int]]()
        for number, piece in enumerate(pieces):
            side = number % sides
            out.append((side * room + used[side], size // 2 + side * room + used[side]))
            used[side] += align_up(piece.rows * piece.line + n)
        if max(used) > room - n - 2 * n * n:
            names = ", ".join(repr(name) for name in self.graph.inputs)
            total = sum(self.graph.tensors[name].bytes for name in self.graph.inputs)
            raise InputError(
                f"reuse: two copies of {names} of {total:,} bytes do not fit the scratchpad of {size:,}"
            )
        return out

    def _load(self, text: _Text, piece: Piece, place: tuple[int, int]) -> None:
        """Append the loads of a piece of an input and of its copy."""
        text.add(
            f"set load.dram, op{piece.operand}, {piece.offset}",
            f"set load.dst, {place[0]}",
            f"set load.len, {piece.rows * piece.line}",
            "set load.y_count, 1",
            "issue load",
            f"set load.dram, op0, {piece.copy}",
            f"set load.dst, {place[1]}",
        )
        if piece.pitch != piece.line:
            text.add(
                f"set load.len, {piece.line}",
                f"set load.y_count, {piece.rows}",
                f"set load.dram_y, {piece.pitch}",
                f"set load.dst_y, {piece.line}",
            )
        text.add("issue load, signal(matrix:0)")

    def _differences(
        self, piece: Piece, place: tuple[int, int], part: tuple[int, int, int, int, int], sums: int
    ) -> list[str]:
        """Return instructions that set the fields for the differences of a rectangle of bytes."""
        row, rows, start, size, _ = part
        points = -(-size // self.machine.n)
        return [
            f"set matrix.a_base, {place[0] + row * piece.line + start}",
            f"set matrix.a_ic, {place[1] - place[0]}",
            f"set matrix.a_u, {piece.line}",
            f"set matrix.x_count, {points}",
            f"set matrix.y_count, {rows}",
            f"set matrix.acc_base, {sums}",
            f"set matrix.acc_y, {points}",
        ]

    def _count(self, part: tuple[int, int, int, int, int], sums: int) -> list[str]:
        """Return instructions that set the fields for counting the differences that are zero."""
        n, (_, rows, _, size, _) = self.machine.n, part
        points = -(-size // n)
        return [
            f"set fuse.a_base, {sums}",
            f"set fuse.a_u, {points}",
            f"set fuse.x_count, {points}",
            f"set fuse.y_count, {rows}",
            f"set fuse.lanes_tail, {(size - 1) % n + 1}",
        ]

    def _pieces(self, at: int) -> tuple[list[Piece], int]:
        """Return the pieces of all inputs, and the mask of the bits that stand for other inputs than the image."""
        plan, image, places = self.plan, self.planner.image, self.code.operand_numbers
        assert plan is not None and image is not None
        (height, width), (_, rows, columns, _) = plan.blocks, image.shape
        buffer, line = self.buffers[image.name], image.bytes // rows
        high, wide = -(-rows // height), -(-columns // width)
        wide_parts = [
            (j * width * buffer.pixel, min(width, columns - j * width) * buffer.pixel, 1 << high + j)
            for j in range(wide)
        ]
        high_parts = [(i * height, min(height, rows - i * height), 1 << i) for i in range(high)]
        copy, place = at + self.buffers[image.name].start, places[image.name]
        if plan.bands:
            parts = [(first, count, 0, line, bit) for first, count, bit in high_parts]
            parts += [(0, rows, start, size, bit) for start, size, bit in wide_parts]
            pieces = [Piece(0, place, 0, rows, line, copy, buffer.pitch, tuple(parts))]
        else:
            pieces = [
                Piece(
                    first,
                    place,
                    first * line,
                    count,
                    line,
                    copy + first * buffer.pitch,
                    buffer.pitch,
                    tuple((0, count, start, size, bit | other) for start, size, other in wide_parts),
                )
                for first, count, bit in high_parts
            ]
        others = [name for name in self.graph.inputs if name != image.name]
        if high + wide + min(len(others), 1) > _BITS:
            raise InputError(f"reuse: {high} x {wide} blocks of {image.name!r} are more than {_BITS}")
        bit = 1 << high + wide if others else 0
        for name in others:
            size = self.graph.tensors[name].bytes
            place = at + self.buffers[name].start
            pieces.append(Piece(-1, places[name], 0, 1, size, place, size, ((0, 1, 0, size, bit),)))
        return pieces, bit

    def _mask(self, rows: range, columns: range) -> int:
        """Return the mask of the bits of a window."""
        assert self.plan is not None and self.planner.image is not None
        high = -(-self.planner.image.shape[1] // self.plan.blocks[0])
        return sum(1 << i for i in rows) | sum(1 << high + j for j in columns)

    def _copy_outputs(self, text: _Text, at: int) -> None:
        """Append the copy of all outputs from the stage's memory to their places."""
        offset = 0
        for name in self.graph.outputs:
            size = self.graph.tensors[name].bytes
            text.add(
                f"set load.dram, op0, {at + self.buffers[name].start}",
                f"set load.dst, {offset}",
                f"set load.len, {size}",
                "issue load, signal(store:0)",
                f"set store.dram, op{self.code.operand_numbers[name]}",
                f"set store.src, {offset}",
                f"set store.len, {size}",
                "issue store, wait(load:0)",
            )
            offset += size
            if offset > self.machine.sp_bytes:
                raise InputError(
                    f"reuse: outputs of {offset:,} bytes do not fit the scratchpad of {self.machine.sp_bytes:,}"
                )


def _tile_graph(
    planner: RegionPlanner, span: range, rows: AxisTile, columns: AxisTile
) -> tuple[Graph, dict[str, tuple[str, int, int]]]:
    """Return the graph of a group for a rectangle, and the tensor, row and column of each input and output by name."""
    nodes, source = planner.nodes(span), planner.graph
    made = {node.outputs[0] for node in nodes}
    changed: dict[str, Tensor] = {}
    places: dict[str, tuple[str, int, int]] = {}
    views: dict[tuple, str] = {}
    new = []
    for node in nodes:
        read, inputs = (rows.read[node.name], columns.read[node.name]), list[str]()
        for name in node.inputs:
            tensor = source.tensors[name]
            if tensor.constant or name in made:
                inputs.append(name)
                continue
            view = views.setdefault(
                (name, *read),
                unused_name(name, views.values(), source.tensors)
                if any(known == name for known, *_ in views)
                else name,
            )
            changed[view] = _cut(replace(tensor, name=view), *read)
            places[view] = name, read[0][0], read[1][0]
            inputs.append(view)
        (out,) = node.outputs
        changed[out] = _cut(source.tensors[out], rows.made[out], columns.made[out])
        attributes = dict(node.attributes)
        if "pads" in attributes:
            before, after = zip(rows.pads[node.name], columns.pads[node.name], strict=True)
            attributes["pads"] = (*before, *after)
        new.append(replace(node, inputs=tuple(inputs), attributes=attributes))
    outputs = planner.results(span)
    places |= {name: (name, rows.made[name][0], columns.made[name][0]) for name in outputs}
    graph = rebuild(source, new, inputs=list(views.values()), outputs=outputs, changed=changed)
    return graph, places


def _cut(tensor: Tensor, rows: Span, columns: Span) -> Tensor:
    """Return a tensor with the shape of a rectangle of pixels."""
    return replace(tensor, shape=(1, rows[1] - rows[0], columns[1] - columns[0], tensor.shape[3]))


def _uses_lines(subroutine: Subroutine) -> bool:
    """Return True if a subroutine has depthwise commands, which leave pixels in the line buffers."""
    word = UNIT_FIELDS[Unit.MATRIX][0]
    fields = [decode(each) for each in subroutine.words]
    return any(
        each["opcode"] == MicroOp.SET
        and each["d"] == field_number(Unit.MATRIX, word.name)
        and each["imm"] & 1
        for each in fields
    )


def _check_rows(stream: CommandStream, operand: int, pitch: int, line: int, name: str) -> None:
    """Check that commands access only the pixels of a tensor whose rows are not contiguous.

    Raises
    ------
    InputError
        A command accesses bytes between two rows, because its layer can only access contiguous tensors.
    """
    for command in stream.issued:
        if command.region != operand or command.unit not in (Unit.LOAD, Unit.STORE):
            continue
        names = [field.name for field in UNIT_FIELDS[command.unit]]
        c = dict(zip(names, command.values, strict=True))
        ys, zs = np.arange(c["y_count"]), np.arange(c["z_count"])
        starts = c["dram"] + np.add.outer(ys * c["dram_y"], zs * c["dram_z"])
        if (starts % pitch + c["len"] > line).any():
            layer = stream.lowered.layers[command.layer].name
            raise InputError(f"reuse: layer {layer!r} cannot access parts of the rows of {name!r}")


def _after_zeros(network: CompiledNetwork, stage: Stage) -> NDArray[np.uint8]:
    """Return the contents of the memory that a stage changes, after a run with inputs of zeros."""
    assert stage.code is not None
    made = replace(network, inputs=stage.inputs, outputs=stage.outputs, stages=(stage,), states=())
    with GoldenDevice(made.config, dram_bytes(made)) as device:
        session = Session(device, made)
        session.run({tensor.name: np.zeros(tensor.shape, tensor.dtype) for tensor in stage.inputs})
        base = session.loaded[0].base
        return np.array(device.dram[base + stage.code.constants : base + stage.code.image.size])
