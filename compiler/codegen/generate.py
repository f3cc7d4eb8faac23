"""Driver of code generation: steps of layers, linearization, addresses, semaphores, programs."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, count

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.block_streaming import (
    interleave_blocks,
    interleave_row_blocks,
    layout_of,
    row_blocks_layout,
    row_streams,
    streamed_layers,
)
from compiler.codegen.buffer_allocation import MemoryFullError, allocate_buffers, peak_use
from compiler.codegen.executable import CommandStream, StageExecutable
from compiler.codegen.linearize import accessing_layers, lifetimes, linearize, share_kept_buffers
from compiler.codegen.list_scheduler import interleave
from compiler.codegen.semaphores import Issued, Synchronization, reach, synchronize
from compiler.codegen.split_programs import program_cache, split_into_programs
from compiler.codegen.weight_formats import pack_loads, widen_products
from compiler.codegen.zero_tiles import skip_zero_tiles
from compiler.commands.commands import (
    BufferMemory,
    BufferRef,
    CircularBuffer,
    Command,
    ResolvedFields,
    TensorLayout,
    TileStep,
    simplify_fields,
)
from compiler.commands.tile_buffers import CodegenContext
from compiler.ir.tensor import Tensor
from compiler.layers.base import Layer
from compiler.layers.lowering_context import image_of
from compiler.layers.registry import kind_of
from compiler.lowering.lower import LoweredNetwork
from compiler.options import DEFAULT_DRAM, DramTiming
from compiler.schedule.schedule import LayerSchedule, Schedule
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import DTYPE_BYTES, Unit
from hw.isa.micro_instruction import MAX_OPERANDS

#: Inputs of the code generation of a layer: its schedule and the layouts of its tensors.
_StepsKey = tuple[LayerSchedule, dict[str, TensorLayout]]


class LayerCodegen:
    """Memoized code generation for the layers of one network under successive schedules.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the target machine.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        #: Cache of emitted programs.
        self.programs = program_cache()
        #: Order of the commands that were generated last.
        self.synchronization = Synchronization()
        #: Addresses of buffers under the initial schedule, which other schedules also use where this costs nothing, so
        #: that the programs of unchanged layers remain the same; None while the initial schedule is compiled.
        self.reference: dict[CircularBuffer, int] | None = None
        self._buffers: dict[tuple[str, bool], CircularBuffer] = {}
        #: Last steps of each layer, and its steps under the initial schedule.
        self._steps: dict[str, tuple[_StepsKey, list[TileStep]]] = {}
        self._initial: dict[str, tuple[_StepsKey, list[TileStep]]] = {}

    def keep(self, starts: dict[CircularBuffer, int]) -> None:
        """Make the last steps and the given addresses those of the initial schedule."""
        self.reference, self._initial = starts, dict(self._steps)

    def buffer(self, tensor: Tensor, inside: bool) -> CircularBuffer:
        """Return the buffer of a tensor, in the scratchpad or in DRAM; repeated calls return the same object."""
        key = (tensor.name, inside)
        if key not in self._buffers:
            self._buffers[key] = self._new_buffer(tensor, inside)
        return self._buffers[key]

    def steps(
        self, number: int, layer: Layer, schedule: LayerSchedule, layouts: dict[str, TensorLayout]
    ) -> list[TileStep]:
        """Return the steps of a layer; `number` is its index in the network."""
        # The order of loads and the split into programs are determined later, from the steps.
        grounds = (
            replace(schedule, prefetch=0, same_program_as_previous=False),
            {name: layouts[name] for name in layer.shapes},
        )
        for kept in (self._steps, self._initial):
            if layer.name in kept and kept[layer.name][0] == grounds:
                made = kept[layer.name]
                break
        else:
            context = CodegenContext(self.config, number, schedule, grounds[1])
            steps = widen_products(self.config, kind_of(layer).steps(context, layer))
            if schedule.packed_weights:
                steps = pack_loads(self.config, skip_zero_tiles(self.config, steps))
            made = grounds, steps
        self._steps[layer.name] = made
        return made[1]

    def _new_buffer(self, tensor: Tensor, inside: bool) -> CircularBuffer:
        if tensor.data is not None:
            return CircularBuffer(
                BufferMemory.DRAM, tensor.name, tensor.bytes, data=tensor.data.reshape(-1).view(np.uint8)
            )
        if inside:
            return CircularBuffer(BufferMemory.SP, tensor.name, tensor.bytes + 4 * self.config.n)
        return CircularBuffer(BufferMemory.DRAM, tensor.name, tensor.bytes)


_ALIGN = 64


class ConstantPool:
    """Constants in the model's memory; equal ones, such as the weights of a recurrent layer, have one address.

    Parameters
    ----------
    offset : int
        Address of the first constant.

    Attributes
    ----------
    end : int
        Address after the last constant, aligned.
    """

    def __init__(self, offset: int):
        self.end = offset
        self._known: dict[bytes, tuple[int, NDArray[np.uint8]]] = {}

    def add(self, data: NDArray[np.uint8]) -> int:
        """Return the address of a constant, which is added unless the pool contains it."""
        key = hashlib.sha256(data.tobytes()).digest()
        if key not in self._known:
            self._known[key] = self.end, data
            self.end += -(-data.size // _ALIGN) * _ALIGN
        return self._known[key][0]

    def image(self) -> NDArray[np.uint8]:
        """Return the contents of the memory up to the last constant."""
        size = max((start + data.size for start, data in self._known.values()), default=0)
        image = np.zeros(size, np.uint8)
        for start, data in self._known.values():
            image[start : start + data.size] = data
        return image


#: Default values of the fields of each unit, and index, minimum and maximum of each field by name.
_DEFAULTS = [tuple(item.default for item in UNIT_FIELDS[unit]) for unit in Unit]
_FIELD_RANGES = [
    {item.name: (number, item.low, item.high) for number, item in enumerate(UNIT_FIELDS[unit])}
    for unit in Unit
]


def generate(
    config: MlaConfig,
    lowered: LoweredNetwork,
    schedule: Schedule,
    layer_counts: tuple[int, int] | None = None,
    offset: int = 0,
    seen: list[CommandStream] | None = None,
    codegen: LayerCodegen | None = None,
    dram: DramTiming = DEFAULT_DRAM,
) -> StageExecutable:
    """Generate the code of a network or stage under a schedule.

    Parameters
    ----------
    layer_counts : (int, int), optional
        Number of layers in the preceding stages, and in all stages. Adjacent layers share tags if there are more layers
        than tags.
    offset : int
        Bytes at the start of the model's memory that are reserved for other code.
    seen : list, optional
        List to which the `CommandStream` from which the programs were emitted is appended.
    codegen : LayerCodegen, optional
        Cache of the layers' steps for further schedules of the same network.
    dram : DramTiming
        DRAM timing, which determines the issue order of loads.

    Raises
    ------
    InputError
        The schedule exceeds the resources of the machine.
    """
    before, count = layer_counts or (0, len(lowered.layers))
    executable, stream = StageGenerator(config, lowered, schedule, before, count, offset, codegen, dram).run()
    if seen is not None:
        seen.append(stream)
    return executable


class StageGenerator:
    """Generator of the code of a stage under a schedule; parameters as for `generate`, with the layers before it."""

    def __init__(
        self,
        config: MlaConfig,
        lowered: LoweredNetwork,
        schedule: Schedule,
        before: int,
        count: int,
        offset: int,
        codegen: LayerCodegen | None = None,
        dram: DramTiming = DEFAULT_DRAM,
    ):
        self.dram = dram
        self.codegen = codegen or LayerCodegen(config)
        self.config, self.lowered, self.schedule = config, lowered, schedule
        self.offset = -(-offset // _ALIGN) * _ALIGN
        self.graph = lowered.graph
        unknown = [layer.name for layer in lowered.layers if layer.name not in schedule.layers]
        if unknown:
            raise InputError(f"schedule: no schedule for layer {', '.join(map(repr, unknown))}")
        #: Index of the operand with the address of a buffer in DRAM; other DRAM buffers are in the model's memory.
        self.dram_operands: dict[CircularBuffer, int] = {}
        self.streamed = streamed_layers(config.n, lowered, schedule.layers)
        self.row_streams = row_streams(config.n, lowered, schedule.layers)
        self.layouts = self._layouts()
        self.tags = self._tags(before, count)

    def run(self) -> tuple[StageExecutable, CommandStream]:
        """Generate the code; also return the commands."""
        commands = self.ordered()
        lives = lifetimes(commands)
        starts = self.allocated(commands, lives)
        image, memory = self.dram_image(lives, starts)
        issued = [self._resolve(command, starts) for command in commands]
        tag_with_neighbours(issued)
        synchronize(self.config, issued, self.codegen.synchronization)
        layers = self.lowered.layers
        joined = [self.schedule.layers[layer.name].same_program_as_previous for layer in layers]
        parts = split_into_programs(
            self.config, issued, [layer.name for layer in layers], joined, self.tags, self.codegen.programs
        )
        stream = CommandStream(self.lowered, self.layouts, commands, starts, issued)
        peak = peak_use(self.config, lives)
        return StageExecutable(
            self.config, parts, self.tags, image, memory, self.operand_numbers, peak
        ), stream

    @property
    def operand_numbers(self) -> dict[str, int]:
        """Index of the operand that holds the address of each input and output, by name."""
        return {
            name: self.dram_operands[self.layouts[name].buffer]
            for name in (*self.graph.inputs, *self.graph.outputs)
        }

    def ordered(self) -> list[Command]:
        """Return the commands of all layers, in issue order."""
        steps, prefetch, after = self._steps()
        return linearize(self.config, steps, prefetch, after, self.dram)

    def _tags(self, before: int, count: int) -> tuple[int, ...]:
        """Return the counter tag of each layer; neighbors share one if tags are too few or the schedule requests it."""
        out: list[int] = []
        for number, layer in enumerate(self.lowered.layers):
            own = self.schedule.layers[layer.name].own_counter_tag or not out
            out.append(
                (before + number) * self.config.tags // max(count, self.config.tags) if own else out[-1]
            )
        return tuple(out)

    def allocated(
        self, commands: list[Command], lives: dict[CircularBuffer, tuple[int, int]]
    ) -> dict[CircularBuffer, int]:
        """Return the start addresses of buffers; a MemoryFullError names the layers that run while memory is full."""
        try:
            return allocate_buffers(self.config, lives, accessing_layers(commands), self.codegen.reference)
        except MemoryFullError as error:
            here = commands[error.first].layer
            users = {command.layer for command in commands[error.first : error.last + 1]} | {here}
            layers = self.lowered.layers
            raise MemoryFullError(
                f"layer {layers[here].name!r}: {error}",
                error.memory,
                error.first,
                error.last,
                error.buffers,
                tuple(layers[number].name for number in sorted(users)),
            ) from None

    def _layouts(self) -> dict[str, TensorLayout]:
        inside: dict[str, bool] = {}
        for layer in self.lowered.layers:
            root = self.lowered.root(layer.y)
            inside[root] = inside.get(root, True) and self.schedule.layers[layer.name].on_chip
        outside = {self.lowered.root(name) for name in (*self.graph.inputs, *self.graph.outputs)}
        out: dict[str, TensorLayout] = {}
        for number in self.streamed:
            layer = self.lowered.layers[number]
            tensor, schedule = self.graph.tensors[layer.y], self.schedule.layers[layer.name]
            out[layer.y] = layout_of(self.config.n, tensor, layer.shapes[layer.y], schedule)
        for number, blocks in self.row_streams.items():
            layer = self.lowered.layers[number]
            tensor, count = self.graph.tensors[layer.y], self.schedule.layers[layer.name].stream_row_blocks
            out[layer.y] = row_blocks_layout(self.config.n, tensor, layer.shapes[layer.y], blocks, count)
        names = dict.fromkeys(name for layer in self.lowered.layers for name in layer.shapes)
        for name in (*names, *self.graph.inputs, *self.graph.outputs):
            root = self.lowered.root(name)
            self._layout(name, root not in outside and inside.get(root, False), out)
        count = len(self.graph.inputs) + len(self.graph.outputs)
        if count >= MAX_OPERANDS:  # operand 0 is the address of the model's memory
            raise InputError(
                f"{self.graph.name!r} has a stage on the accelerator with {count:,} inputs and outputs; the limit is "
                f"{MAX_OPERANDS - 1}"
            )
        for operand, name in enumerate((*self.graph.inputs, *self.graph.outputs), 1):
            self.dram_operands.setdefault(out[name].buffer, operand)
        return out

    def _layout(self, name: str, inside: bool, out: dict[str, TensorLayout]) -> TensorLayout:
        """Return the layout of a tensor, in a separate buffer or as a reshaped view or part of another tensor."""
        if name in out:
            return out[name]
        tensor, lowered = self.graph.tensors[name], self.lowered
        image = image_of(tensor)
        size = DTYPE_BYTES[image.dtype]
        pixel = image.c * size
        if name in lowered.parts:
            part = lowered.parts[name]
            whole = self._layout(part.container, inside, out)
            buffer, offset = whole.buffer, whole.offset + whole.byte_offset(part.start, size)
            pixel = whole.pixel if part.gaps else pixel
        elif name in lowered.views:
            whole = self._layout(lowered.views[name], inside, out)
            buffer, offset = whole.buffer, whole.offset
        else:
            buffer, offset = self.codegen.buffer(tensor, inside), 0
        plane, row = 0, image.w * pixel
        if name in lowered.planes:
            pixel, plane = size, tensor.elements // tensor.shape[0] // image.c * size
            row = image.w * pixel
        if pitch := lowered.pitches.get(name):
            buffer, row = replace(buffer, size=image.h * pitch), pitch
        out[name] = TensorLayout(buffer, image.h, image.w, image.c, pixel, row, offset, plane=plane)
        return out[name]

    @cached_property
    def layer_steps(self) -> list[list[TileStep]]:
        """Steps of each layer."""
        schedules = [self.schedule.layers[layer.name] for layer in self.lowered.layers]
        each = zip(self.lowered.layers, schedules, strict=True)
        made = [self.codegen.steps(number, *pair, self.layouts) for number, pair in enumerate(each)]
        return share_kept_buffers(made, [not schedule.interleave for schedule in schedules])

    def _steps(self) -> tuple[list[TileStep], list[int], dict[int, int]]:
        """Return all steps in order, and the arguments `prefetch` and `after` of `linearize`."""
        steps: list[TileStep] = []
        layers: list[int] = []
        chains: dict[int, int] = {}
        schedules = [self.schedule.layers[layer.name] for layer in self.lowered.layers]
        made = self.layer_steps
        for number, mine in enumerate(made):
            if number - 1 in self.streamed or number - 1 in self.row_streams:
                continue
            both = [(0, step) for step in mine]
            if number in self.streamed:
                ahead = schedules[number].stream_channel_blocks // self.streamed[number] - 1
                both = interleave_blocks(mine, made[number + 1], ahead)
            if number in self.row_streams:
                last = next(at for at in count(number) if at not in self.row_streams)
                both = interleave_row_blocks(made[number : last + 1])
                chains |= dict.fromkeys(range(number, last + 1), number)
            steps += [step for _, step in both]
            layers += [number + which for which, _ in both]
        order, after = interleave(
            self.config, steps, layers, [schedule.interleave for schedule in schedules], chains
        )
        firsts = {layer: at for at, (layer, _) in reversed(list(enumerate(order)))}
        prefetch = [max(firsts[layer] - schedules[layer].prefetch, 0) for layer, _ in order]
        return [step for _, step in order], prefetch, after

    def dram_image(
        self, lives: Mapping[CircularBuffer, tuple[int, int]], starts: dict[CircularBuffer, int]
    ) -> tuple[NDArray[np.uint8], int]:
        """Assign addresses in the model's memory: constants first, then intermediate tensors; return image and size."""
        pool = ConstantPool(self.offset)
        self.place_constants(lives, starts, pool)
        return pool.image(), self.place_work(lives, starts, pool.end)

    def place_constants(
        self, lives: Iterable[CircularBuffer], starts: dict[CircularBuffer, int], pool: "ConstantPool"
    ) -> None:
        """Add the constants to a pool, and record their addresses in `starts`."""
        starts |= {buffer: pool.add(buffer.data) for buffer in lives if buffer.data is not None}

    def place_work(self, lives: Iterable[CircularBuffer], starts: dict[CircularBuffer, int], at: int) -> int:
        """Assign addresses from `at` on to intermediate tensors in the model's memory; return the end."""
        for buffer in lives:
            mine = buffer.memory == BufferMemory.DRAM and buffer not in self.dram_operands
            if mine and buffer.data is None:
                starts[buffer] = at
                at += -(-buffer.total // _ALIGN) * _ALIGN
        starts |= dict.fromkeys(self.dram_operands, 0)
        return at

    def _resolve(self, command: Command, starts: dict[CircularBuffer, int]) -> Issued:
        region = 0
        if command.unit == Unit.LOAD or command.unit == Unit.STORE:
            address = command.fields.get("dram")
            region = self.dram_operands.get(address.buffer, 0) if isinstance(address, BufferRef) else 0
        here = tuple([starts[buffer] for buffer in command.buffers])
        numbers = command.resolved
        if numbers is None or numbers.starts != here or numbers.region != region:
            issued = Issued(command.unit, command.layer, self._values(command, starts), region)
            numbers = ResolvedFields(here, issued.values, region, reach(self.config, issued))
            command.resolved = numbers
        return Issued(command.unit, command.layer, numbers.values, region, reach=numbers.reach)

    def _values(self, command: Command, starts: dict[CircularBuffer, int]) -> tuple[int, ...]:
        unit = command.unit
        if command.template is None:
            constants, found = list(_DEFAULTS[unit]), list[tuple[int, BufferRef]]()
            for name, value in simplify_fields(unit, command.fields, self.config.n).items():
                number = _FIELD_RANGES[unit][name][0]
                if isinstance(value, BufferRef):
                    found.append((number, value))
                else:
                    constants[number] = checked_field(unit, name, int(value))
            command.template = tuple(constants), tuple(found)
        values = list(command.template[0])
        for number, ref in command.template[1]:
            values[number] = checked_field(
                unit, UNIT_FIELDS[unit][number].name, ref.resolve(starts[ref.buffer])
            )
        return tuple(values)


def checked_field(unit: Unit, name: str, value: int) -> int:
    """Return the value of a field; raise ValueError if it is out of range."""
    number, low, high = _FIELD_RANGES[unit][name]
    if not low <= value <= high:
        UNIT_FIELDS[unit][number].check(value, f"{unit.name.lower()}.")
    return value


def tag_with_neighbours(commands: list[Issued]) -> None:
    """Attribute prefetching loads to the layer during which they run, since a tag change costs about 100 cycles.

    A layer that consists only of loads begins when the previous layers have issued all their commands.
    """
    last = {c.layer: at for at, c in enumerate(commands) if c.unit != Unit.LOAD}
    layers = sorted({c.layer for c in commands})
    ends = dict(
        zip(layers, accumulate((last.get(layer, -1) for layer in layers), max, initial=-1), strict=False)
    )
    current = 0
    for at, command in enumerate(commands):
        if command.unit != Unit.LOAD or (command.layer not in last and at > ends[command.layer]):
            current = max(current, command.layer)
        command.layer = current
