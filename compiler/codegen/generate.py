"""Driver of code generation: steps of layers, one sequence, addresses, semaphores, programs."""

from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.buffer_allocation import MemoryFullError, peak_use, plan
from compiler.codegen.channel_block_streaming import interleave_blocks, layout_of, streamed_layers
from compiler.codegen.executable import CommandStream, StageExecutable
from compiler.codegen.linearize import lifetimes, linearize, workers
from compiler.codegen.list_scheduler import interleave
from compiler.codegen.semaphores import Issued, reach, synchronize
from compiler.codegen.split_programs import cut, written
from compiler.commands.commands import (
    BufferMemory,
    BufferRef,
    CircularBuffer,
    Command,
    Numbers,
    TensorLayout,
    TileStep,
    simplify_commands,
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

#: Inputs of the code generation of a layer: its schedule and the layouts of its tensors.
_Grounds = tuple[LayerSchedule, dict[str, TensorLayout]]


class LayerCodegen:
    """Memoized code generation for the layers of one network under successive schedules.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the target machine.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        #: Programs that have been written.
        self.programs = written()
        self._rings: dict[tuple[str, bool], CircularBuffer] = {}
        self._made: dict[str, tuple[_Grounds, list[TileStep]]] = {}

    def ring(self, tensor: Tensor, inside: bool) -> CircularBuffer:
        """Ring of a tensor, in the scratchpad or in DRAM; the same object each time."""
        key = (tensor.name, inside)
        if key not in self._rings:
            self._rings[key] = self._ring(tensor, inside)
        return self._rings[key]

    def steps(
        self, number: int, layer: Layer, schedule: LayerSchedule, homes: dict[str, TensorLayout]
    ) -> list[TileStep]:
        """Steps of a layer; `number` is its index in the network."""
        # The order of loads and the split into programs are decided later, from the steps.
        grounds = (
            replace(schedule, prefetch=0, same_program_as_previous=False),
            {name: homes[name] for name in layer.shapes},
        )
        made = self._made.get(layer.name)
        if made is None or made[0] != grounds:
            context = CodegenContext(self.config, number, schedule, grounds[1])
            made = self._made[layer.name] = (grounds, kind_of(layer).steps(context, layer))
        return made[1]

    def _ring(self, tensor: Tensor, inside: bool) -> CircularBuffer:
        if tensor.data is not None:
            return CircularBuffer(
                BufferMemory.DRAM, tensor.name, tensor.bytes, data=tensor.data.reshape(-1).view(np.uint8)
            )
        if inside:
            return CircularBuffer(BufferMemory.SP, tensor.name, tensor.bytes + 4 * self.config.n)
        return CircularBuffer(BufferMemory.DRAM, tensor.name, tensor.bytes)


_ALIGN = 64
#: Default values of the fields of each unit, and index, minimum and maximum of each field by name.
_DEFAULTS = [tuple(item.default for item in UNIT_FIELDS[unit]) for unit in Unit]
_PLACES = [
    {item.name: (number, item.low, item.high) for number, item in enumerate(UNIT_FIELDS[unit])}
    for unit in Unit
]


def generate(
    config: MlaConfig,
    lowered: LoweredNetwork,
    schedule: Schedule,
    numbers: tuple[int, int] | None = None,
    offset: int = 0,
    seen: list[CommandStream] | None = None,
    maker: LayerCodegen | None = None,
    dram: DramTiming = DEFAULT_DRAM,
) -> StageExecutable:
    """The code of a network, or of a stage of one, under a schedule.

    Parameters
    ----------
    numbers : (int, int), optional
        Number of layers in the preceding stages and in all stages; adjacent layers share tags if there are too few.
    offset : int
        Bytes at the start of the model's memory that belong to other code.
    seen : list, optional
        Receives the command stream before the programs are emitted.
    maker : StepMaker, optional
        Cache of the layers' steps for further schedules of the same network.
    dram : Dram
        The memory that loads are to be in time from.

    Raises
    ------
    InputError
        The schedule exceeds the resources of the machine.
    """
    before, count = numbers or (0, len(lowered.layers))
    code, stream = _Generator(config, lowered, schedule, before, count, offset, maker, dram).run()
    if seen is not None:
        seen.append(stream)
    return code


class _Generator:
    def __init__(
        self,
        config: MlaConfig,
        lowered: LoweredNetwork,
        schedule: Schedule,
        before: int,
        count: int,
        offset: int,
        maker: LayerCodegen | None = None,
        dram: DramTiming = DEFAULT_DRAM,
    ):
        self.dram = dram
        self.maker = maker or LayerCodegen(config)
        self.config, self.lowered, self.schedule = config, lowered, schedule
        self.offset = -(-offset // _ALIGN) * _ALIGN
        self.graph = lowered.graph
        unknown = [layer.name for layer in lowered.layers if layer.name not in schedule.layers]
        if unknown:
            raise InputError(f"schedule: no schedule for layer {', '.join(map(repr, unknown))}")
        #: Operand with the address of a ring in DRAM; rings that are not listed are in the model's memory.
        self.regions: dict[CircularBuffer, int] = {}
        self.handed = streamed_layers(config.n, lowered, schedule.layers)
        self.homes = self._homes()
        self.tags = self._tags(before, count)

    def run(self) -> tuple[StageExecutable, CommandStream]:
        steps, prefetch, after = self._steps()
        commands = linearize(self.config, steps, prefetch, after, self.dram)
        lives = lifetimes(commands)
        starts = self._places(commands, lives)
        image, memory = self._dram(lives, starts)
        issued = [self._resolve(command, starts) for command in commands]
        _tag_with_neighbours(issued)
        synchronize(self.config, issued)
        layers = self.lowered.layers
        joined = [self.schedule.layers[layer.name].same_program_as_previous for layer in layers]
        parts = cut(
            self.config, issued, [layer.name for layer in layers], joined, self.tags, self.maker.programs
        )
        places = {
            name: self.regions[self.homes[name].ring] for name in (*self.graph.inputs, *self.graph.outputs)
        }
        stream = CommandStream(self.lowered, self.homes, commands, starts, issued)
        peak = peak_use(self.config, lives)
        return StageExecutable(self.config, parts, self.tags, image, memory, places, peak), stream

    def _tags(self, before: int, count: int) -> tuple[int, ...]:
        """Counter tag of each layer: a separate one while tags suffice, otherwise that of the previous layer."""
        out: list[int] = []
        for number, layer in enumerate(self.lowered.layers):
            own = self.schedule.layers[layer.name].own_counter_tag or not out
            out.append(
                (before + number) * self.config.tags // max(count, self.config.tags) if own else out[-1]
            )
        return tuple(out)

    def _places(
        self, commands: list[Command], lives: dict[CircularBuffer, tuple[int, int]]
    ) -> dict[CircularBuffer, int]:
        """Start addresses of rings; the error of a ring that does not fit names the layers that prefetch there."""
        try:
            return plan(self.config, lives, workers(commands))
        except MemoryFullError as error:
            here = commands[error.first].layer
            users = {command.layer for command in commands[error.first : error.last + 1]} | {here}
            layers = self.lowered.layers
            raise MemoryFullError(
                f"layer {layers[here].name!r}: {error}",
                error.memory,
                error.first,
                error.last,
                error.rings,
                tuple(layers[number].name for number in sorted(users)),
            ) from None

    def _homes(self) -> dict[str, TensorLayout]:
        inside: dict[str, bool] = {}
        for layer in self.lowered.layers:
            root = self.lowered.root(layer.y)
            inside[root] = inside.get(root, True) and self.schedule.layers[layer.name].on_chip
        outside = {self.lowered.root(name) for name in (*self.graph.inputs, *self.graph.outputs)}
        out: dict[str, TensorLayout] = {}
        for number in self.handed:
            layer = self.lowered.layers[number]
            tensor, schedule = self.graph.tensors[layer.y], self.schedule.layers[layer.name]
            out[layer.y] = layout_of(self.config.n, tensor, layer.shapes[layer.y], schedule)
        names = dict.fromkeys(name for layer in self.lowered.layers for name in layer.shapes)
        for name in (*names, *self.graph.inputs, *self.graph.outputs):
            root = self.lowered.root(name)
            self._home(name, root not in outside and inside.get(root, False), out)
        for operand, name in enumerate((*self.graph.inputs, *self.graph.outputs), 1):
            self.regions.setdefault(out[name].ring, operand)
        return out

    def _home(self, name: str, inside: bool, out: dict[str, TensorLayout]) -> TensorLayout:
        """Layout of a tensor: a separate buffer, a reshaped view of another tensor, or a part of one."""
        if name in out:
            return out[name]
        tensor, lowered = self.graph.tensors[name], self.lowered
        image = image_of(tensor)
        size = DTYPE_BYTES[image.dtype]
        pixel = image.c * size
        if name in lowered.parts:
            part = lowered.parts[name]
            whole = self._home(part.of, inside, out)
            ring, offset = whole.ring, whole.offset + whole.to(part.start, size)
            pixel = whole.pixel if part.gaps else pixel
        elif name in lowered.views:
            whole = self._home(lowered.views[name], inside, out)
            ring, offset = whole.ring, whole.offset
        else:
            ring, offset = self.maker.ring(tensor, inside), 0
        out[name] = TensorLayout(ring, image.h, image.w, image.c, pixel, image.w * pixel, offset)
        return out[name]

    def _steps(self) -> tuple[list[TileStep], list[int], dict[int, int]]:
        """All steps in order, and for each the step from which on its loads may come, or must."""
        steps: list[TileStep] = []
        layers: list[int] = []
        schedules = [self.schedule.layers[layer.name] for layer in self.lowered.layers]
        each = zip(self.lowered.layers, schedules, strict=True)
        made = [self.maker.steps(number, *pair, self.homes) for number, pair in enumerate(each)]
        for number, mine in enumerate(made):
            if number - 1 in self.handed:
                continue
            both = [(0, step) for step in mine]
            if number in self.handed:
                ahead = schedules[number].stream_channel_blocks // self.handed[number] - 1
                both = interleave_blocks(mine, made[number + 1], ahead)
            steps += [step for _, step in both]
            layers += [number + which for which, _ in both]
        order, after = interleave(self.config, steps, layers, [schedule.interleave for schedule in schedules])
        firsts = {layer: at for at, (layer, _) in reversed(list(enumerate(order)))}
        prefetch = [max(firsts[layer] - schedules[layer].prefetch, 0) for layer, _ in order]
        return [step for _, step in order], prefetch, after

    def _dram(
        self, lives: dict[CircularBuffer, tuple[int, int]], starts: dict[CircularBuffer, int]
    ) -> tuple[NDArray[np.uint8], int]:
        """Assign addresses in the model's memory: constants first, then intermediate tensors."""
        mine = [ring for ring in lives if ring.memory == BufferMemory.DRAM and ring not in self.regions]
        at = self.offset
        for ring in sorted(mine, key=lambda ring: ring.data is None):
            starts[ring] = at
            at += -(-ring.total // _ALIGN) * _ALIGN
        constant = [(ring, ring.data) for ring in mine if ring.data is not None]
        end = max((starts[ring] + ring.total for ring, _ in constant), default=0)
        image = np.zeros(end, np.uint8)
        for ring, data in constant:
            image[starts[ring] : starts[ring] + ring.total] = data
        starts |= dict.fromkeys(self.regions, 0)
        return image, at

    def _resolve(self, command: Command, starts: dict[CircularBuffer, int]) -> Issued:
        place = command.fields.get("dram")
        region = self.regions.get(place.ring, 0) if isinstance(place, BufferRef) else 0
        here = tuple([starts[ring] for ring in command.rings])
        numbers = command.numbers
        if numbers is None or numbers.starts != here or numbers.region != region:
            issued = Issued(command.unit, command.layer, self._values(command, starts), region)
            numbers = Numbers(here, issued.values, region, reach(self.config, issued))
            command.numbers = numbers
        return Issued(command.unit, command.layer, numbers.values, region, reach=numbers.reach)

    def _values(self, command: Command, starts: dict[CircularBuffer, int]) -> tuple[int, ...]:
        unit = command.unit
        values = list(_DEFAULTS[unit])
        for name, value in simplify_commands(unit, command.fields, self.config.n).items():
            number, low, high = _PLACES[unit][name]
            value = value.resolve(starts[value.ring]) if isinstance(value, BufferRef) else int(value)
            if not low <= value <= high:
                UNIT_FIELDS[unit][number].check(value, f"{unit.name.lower()}.")
            values[number] = value
        return tuple(values)


def _tag_with_neighbours(commands: list[Issued]) -> None:
    """Count prefetching loads for the layer during which they run, since a tag change costs about a hundred cycles.

    A layer of nothing but loads begins when those before it have nothing more to do.
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
