"""Programs for several lengths of a sequence: streams of commands that differ only in numbers become one program.

The program is generated for the longest of its lengths. The commands of the other lengths are in the same order, at the
same addresses, and have the same semaphores. A number that depends on the length is an operand of the macro-instruction
plus a constant. Operands are shared by all numbers that differ from each other by the same amount for every length, so
that multiples of the length, numbers of tiles, and sizes of last tiles need one operand each.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Self

from compiler.codegen.buffer_allocation import peak_use
from compiler.codegen.emit import ProgramEmitter
from compiler.codegen.executable import CommandStream, StageExecutable
from compiler.codegen.generate import (
    ConstantPool,
    LayerCodegen,
    StageGenerator,
    checked_field,
    tag_with_neighbours,
)
from compiler.codegen.linearize import lifetimes
from compiler.codegen.list_scheduler import overlap
from compiler.codegen.semaphores import Issued, reach, synchronize
from compiler.codegen.split_programs import ProgramPart, rolled
from compiler.commands.commands import BufferRef, CircularBuffer, Command, TileStep, simplify_fields
from compiler.layers.base import Layer
from compiler.layers.matmul import MatmulLayer
from compiler.layers.softmax import SoftmaxLayer
from compiler.lowering.lower import LoweredNetwork
from compiler.options import DEFAULT_DRAM, DramTiming
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.util.tiles import ceil_div
from cosim.semantics.bounding_box import BoundingBox
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import Unit
from hw.isa.micro_instruction import MAX_OPERANDS, OPERAND_BASE, REGISTERS, MicroOp

_WORD = 1 << 32
#: Register that holds the sum of an induction variable and a number that depends on the length.
_SUM = REGISTERS - 1
#: Field of each unit that holds an address in DRAM.
_DRAM = (Unit.LOAD, Unit.STORE)


class LengthsError(InputError):
    """Error for lengths that cannot have one program; they need programs of their own.

    Attributes
    ----------
    longest : int
        The longest of the lengths; 0 if unknown.
    layers : frozenset of str
        Names of the layers whose commands differ in more than numbers.
    """

    def __init__(self, message: str, longest: int = 0, layers: Iterable[str] = ()):
        super().__init__(message)
        self.longest, self.layers = longest, frozenset(layers)


class LengthValue(int):
    """Number that depends on the length; as an integer, it is the number for the longest length.

    Parameters
    ----------
    values : tuple of int
        Number for each length, in ascending order of the lengths; at least two differ.
    """

    values: tuple[int, ...]

    def __new__(cls, values: tuple[int, ...]) -> Self:
        """Return the number with the given values."""
        made = super().__new__(cls, values[-1])
        made.values = values
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LengthValue) and self.values == other.values

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.values)

    def __bool__(self) -> bool:
        return True

    def __add__(self, other: int) -> int:
        return merged([x + y for x, y in zip(self.values, self._each(other), strict=True)])

    __radd__ = __add__

    def __sub__(self, other: int) -> int:
        return merged([x - y for x, y in zip(self.values, self._each(other), strict=True)])

    def __rsub__(self, other: int) -> int:
        return merged([y - x for x, y in zip(self.values, self._each(other), strict=True)])

    def __mul__(self, other: int) -> int:
        return merged([x * y for x, y in zip(self.values, self._each(other), strict=True)])

    __rmul__ = __mul__

    def _each(self, other: int) -> Sequence[int]:
        return other.values if isinstance(other, LengthValue) else [other] * len(self.values)


def merged(values: Sequence[int]) -> int:
    """Return the number with the given value for each length, which is a plain integer if it is always the same."""
    return values[0] if len(set(values)) == 1 else LengthValue(tuple(values))


class LengthOperands:
    """Operands of a program that depend on the length.

    Parameters
    ----------
    first : int
        Index of the operand that is the length itself.
    lengths : sequence of int
        Lengths for which the program can run, in ascending order.

    Attributes
    ----------
    values : list of tuple of int
        For each operand, the length first, its value for each length.
    """

    def __init__(self, first: int, lengths: Sequence[int]):
        self.first = first
        self.values = [tuple(lengths)]
        self._known = {_relative(lengths): 0} if len(lengths) > 1 else {}

    def find(self, value: LengthValue) -> tuple[int, int]:
        """Return the selector of an operand, and the constant that is to be added to it.

        Raises
        ------
        LengthsError
            There are more different operands than a macro-instruction can have.
        """
        index = self._known.setdefault(_relative(value.values), len(self.values))
        if index == len(self.values):
            if self.first + index >= MAX_OPERANDS:
                raise LengthsError(
                    f"more than {MAX_OPERANDS - self.first - 1} different numbers depend on the length"
                )
            self.values.append(value.values)
        return OPERAND_BASE + self.first + index, value.values[0] - self.values[index][0]


def _relative(values: Sequence[int]) -> tuple[int, ...]:
    """Return the differences from the first value, as words."""
    return tuple((value - values[0]) % _WORD for value in values)


class LengthEmitter(ProgramEmitter):
    """Emitter of a program whose numbers may depend on the length."""

    registers_available = REGISTERS - 1

    def __init__(self, name: str, tags: Sequence[int], operands: LengthOperands):
        super().__init__(name, tags)
        self.operands = operands

    def write_field(self, number: int, register: int, operand: int, constant: int) -> None:
        """Append the instructions that set a field to the sum of a register, an operand and a number."""
        if not isinstance(constant, LengthValue):
            super().write_field(number, register, operand, constant)
            return
        selector, offset = self.operands.find(constant)
        if register and operand:
            self.add(MicroOp.ADD, d=_SUM, a=register, b=selector)
            register, selector = _SUM, operand
        elif operand:
            register, selector = operand, selector
        super().write_field(number, register or selector, selector if register else 0, offset)

    def increase(self, register: int, step: int) -> None:
        """Append the instruction that adds a number to a register."""
        if not isinstance(step, LengthValue):
            super().increase(register, step)
            return
        selector, offset = self.operands.find(step)
        self.add(MicroOp.ADD, d=register, a=register, b=selector, imm=_signed(offset))


def _signed(value: int) -> int:
    return (value + _WORD // 2) % _WORD - _WORD // 2


@dataclass(frozen=True, eq=False)
class LengthMember:
    """Part of a network on the accelerator, for one length.

    Parameters
    ----------
    length : int
        Number of elements of the sequence.
    lowered : LoweredNetwork
        Layers for this length.
    schedule : Schedule
        Schedule for this length.
    """

    length: int
    lowered: LoweredNetwork
    schedule: Schedule


@dataclass(frozen=True, eq=False)
class LengthProgram:
    """Program for several lengths.

    Parameters
    ----------
    executable : StageExecutable
        Code with one program.
    lengths : tuple of int
        Lengths in ascending order.
    operands : list of tuple of int
        For each operand after the addresses, the length first, its value for each length.
    streams : list of CommandStream
        For each length, the commands that the program issues.
    """

    executable: StageExecutable
    lengths: tuple[int, ...]
    operands: list[tuple[int, ...]]
    streams: list[CommandStream]


def schedules_for_lengths(
    config: MlaConfig,
    lowered: Sequence[LoweredNetwork],
    schedule: Schedule,
    unsplit: Collection[str] = (),
) -> list[Schedule]:
    """Return a schedule for each length, under which each layer has the same number of tiles for all lengths.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the target machine.
    lowered : sequence of LoweredNetwork
        Layers for each length; the last ones are those for which the schedule was made.
    schedule : Schedule
        Schedule for the longest length. Where the number of its tiles is impossible for another length, there are
        fewer tiles for all lengths.
    unsplit : collection of str
        Names of layers whose first and last tiles are not split, because the number of parts depends on their size.
    """
    layers: list[dict[str, LayerSchedule]] = [{} for _ in lowered]
    for number, layer in enumerate(lowered[-1].layers):
        mine = schedule.layers[layer.name]
        if layer.name in unsplit:
            mine = replace(mine, split_first_tile=False, split_last_tile=False)
        extents = [_extents(config.n, each.layers[number], mine) for each in lowered]
        sizes: list[dict[str, int]] = [{} for _ in lowered]
        for name, whole in extents[-1].items():
            each = [extent[name] for extent in extents]
            value = getattr(mine, name)
            if len(set(each)) == 1 or value >= whole:
                continue
            count = ceil_div(whole, value)
            while any(ceil_div(extent, ceil_div(extent, count)) != count for extent in each):
                count -= 1
            for at, extent in enumerate(each):
                sizes[at][name] = ceil_div(extent, count)
        for at, changed in enumerate(sizes):
            layers[at][layer.name] = replace(mine, **changed)
    return [replace(schedule, layers=each) for each in layers]


def _extents(n: int, layer: Layer, schedule: LayerSchedule) -> dict[str, int]:
    """Return what the sizes of the tiles of a layer divide, by the field of the schedule."""
    x, y = layer.shapes[layer.x], layer.shapes[layer.y]
    rows = y.h
    if isinstance(layer, MatmulLayer):
        rows = layer.size[0]
    elif isinstance(layer, SoftmaxLayer):
        rows = y.w if schedule.stream_row_blocks else y.h * y.w
    columns = ceil_div(y.c, n)
    return {
        "rows": rows,
        "rows_per_load": rows,
        "strip_width": y.w,
        "columns": columns,
        "param_blocks": columns,
        "depth": ceil_div(x.c, n),
    }


def generate_for_lengths(
    config: MlaConfig,
    variants: Sequence[Sequence[LengthMember]],
    layer_counts: tuple[int, int],
    offset: int = 0,
    dram: DramTiming = DEFAULT_DRAM,
) -> list[LengthProgram]:
    """Generate programs for several lengths each, which share the model's memory.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the target machine.
    variants : sequence of sequence of LengthMember
        For each program, the network for each length, in ascending order of the lengths.
    layer_counts, offset, dram
        As for `compiler.codegen.generate.generate`.

    Raises
    ------
    LengthsError
        The commands of two lengths of a program differ in more than numbers, or their order or memory cannot be the
        same.
    InputError
        A schedule exceeds the resources of the machine.
    """
    pool = ConstantPool(offset)
    mergers = [
        _Merger(
            config,
            [
                StageGenerator(
                    config, each.lowered, each.schedule, *layer_counts, offset, LayerCodegen(config), dram
                )
                for each in members
            ],
            [each.length for each in members],
            pool,
        )
        for members in variants
    ]
    return [merger.run() for merger in mergers]


class _Merger:
    """Merging of the commands of several lengths; the longest determines order, addresses and semaphores.

    The constructor adds the constants to `pool`.
    """

    def __init__(
        self, config: MlaConfig, generators: list[StageGenerator], lengths: list[int], pool: ConstantPool
    ):
        self.config, self.generators, self.lengths, self.pool = config, generators, lengths, pool
        self.longest = generators[-1]
        self.original = _commands(self.longest)
        self.commands = self.longest.ordered()
        self.lives = lifetimes(self.commands)
        self.starts = self.longest.allocated(self.commands, self.lives)
        self.longest.place_constants(self.lives, self.starts, pool)
        #: For each length, the commands that correspond to those of the longest length.
        self.others = [self._matching(*each) for each in zip(lengths, generators, strict=True)]

    def run(self) -> LengthProgram:
        """Return the program, whose intermediate tensors in DRAM are behind the constants of the pool."""
        longest, commands = self.longest, self.commands
        numbers = {id(command): number for number, command in enumerate(self.original)}
        order = [numbers[id(command.origin or command)] for command in commands]
        kept = {buffer for command in commands for buffer in command.buffers}
        own = [number for number, each in enumerate(self.original) if kept >= set(each.buffers)]
        for length, mine in zip(self.lengths, self.others, strict=True):
            self._check_order(length, {number: mine[number] for number in own}, order)
        memory = longest.place_work(self.lives, self.starts, self.pool.end)
        issued, single = self._issued(order)
        tag_with_neighbours(issued)
        synchronize(self.config, issued)
        operands = LengthOperands(1 + len(longest.graph.inputs) + len(longest.graph.outputs), self.lengths)
        names = [layer.name for layer in longest.lowered.layers]
        layers = tuple(dict.fromkeys(command.layer for command in issued))

        def emitter(name: str, tags: Sequence[int]) -> LengthEmitter:
            return LengthEmitter(name, tags, operands)

        program = rolled(self.config, names[layers[0]], issued, longest.tags, alone=True, emitter=emitter)
        for each in single:
            for command, other in zip(each, issued, strict=True):
                command.wait, command.signal, command.layer = other.wait, other.signal, other.layer
        executable = StageExecutable(
            self.config,
            (ProgramPart(program, layers),),
            longest.tags,
            self.pool.image(),
            memory,
            longest.operand_numbers,
            peak_use(self.config, self.lives),
        )
        streams = [
            CommandStream(each.lowered, each.layouts, [mine[number] for number in order], self.starts, its)
            for each, mine, its in zip(self.generators, self.others, single, strict=True)
        ]
        return LengthProgram(executable, tuple(self.lengths), operands.values, streams)

    def _matching(self, length: int, generator: StageGenerator) -> list[Command]:
        """Return the commands for a length, after checking that they correspond to those of the longest length."""
        mine = _commands(generator)
        if [_form(command) for command in mine] != [_form(command) for command in self.original]:
            pairs = zip(generator.layer_steps, self.longest.layer_steps, strict=True)
            differ = [_forms(one) != _forms(other) for one, other in pairs]
            names = [layer.name for layer in compress(generator.lowered.layers, differ)]
            raise LengthsError(
                f"the commands for lengths {length} and {self.lengths[-1]} differ in more than numbers, in "
                f"{', '.join(map(repr, names))}",
                self.lengths[-1],
                names,
            )
        known: dict[CircularBuffer, CircularBuffer] = {}
        for command, other in zip(mine, self.original, strict=True):
            for name, ref in _refs(command):
                its = other.fields[name]
                assert isinstance(its, BufferRef)
                if known.setdefault(ref.buffer, its.buffer) is not its.buffer:
                    raise LengthsError(f"lengths {length} and {self.lengths[-1]} use other buffers")
        for buffer, its in known.items():
            one, two = buffer.data, its.data
            if one is not None and two is not None:
                inside = one.size <= two.size and one.tobytes() == two[: one.size].tobytes()
                self.starts[buffer] = self.starts[its] if inside else self.pool.add(one)
            elif (one is None) != (two is None) or buffer.depth != its.depth or buffer.size > its.size:
                raise LengthsError(
                    f"{its.name!r} needs other memory for lengths {length} and {self.lengths[-1]}"
                )
        return mine

    def _check_order(self, length: int, commands: dict[int, Command], order: Sequence[int]) -> None:
        """Check that commands that access the same data keep their order.

        `commands` omits the commands whose sums the longest length moved to other buffers: they take turns in the same
        way for each length.
        """
        position = {number: at for at, number in enumerate(order)}
        touched: dict[CircularBuffer, list[int]] = {}
        for number, command in commands.items():
            for buffer in command.buffers:
                if buffer.data is None:
                    touched.setdefault(buffer, []).append(number)
        for uses in touched.values():
            for at, number in enumerate(uses):
                for earlier in uses[:at]:
                    if position[earlier] > position[number] and overlap(
                        self.config, commands[earlier], commands[number]
                    ):
                        raise LengthsError(f"the commands for length {length} need another order")

    def _issued(self, order: Sequence[int]) -> tuple[list[Issued], list[list[Issued]]]:
        """Return the merged commands, which conflict if they conflict for any length, and those of each length."""
        out: list[Issued] = []
        single: list[list[Issued]] = [[] for _ in self.lengths]
        for command, number in zip(self.commands, order, strict=True):
            address = command.fields.get("dram") if command.unit in _DRAM else None
            region = (
                self.longest.dram_operands.get(address.buffer, 0) if isinstance(address, BufferRef) else 0
            )
            each = self._values(command, number)
            boxes: list[BoundingBox] = []
            for at, values in enumerate(each):
                mine = Issued(command.unit, command.layer, values, region)
                mine.reach = reach(self.config, mine)
                boxes += [replace(box, space=f"{box.space} {at}") for box in mine.reach]
                single[at].append(mine)
            values = tuple(merged(numbers) for numbers in zip(*each, strict=True))
            out.append(Issued(command.unit, command.layer, values, region, reach=boxes))
        return out, single

    def _values(self, command: Command, number: int) -> list[tuple[int, ...]]:
        """Return the values of all fields of a command for each length.

        Fields that have no effect for any length have their default value.
        """
        unit, original = command.unit, self.original[number]
        fields = [mine[number].fields for mine in self.others]
        used = {name for each in fields for name in simplify_fields(unit, each, self.config.n)}
        out = []
        for each in fields:
            values = []
            for item in UNIT_FIELDS[unit]:
                value = each.get(item.name, item.default) if item.name in used else item.default
                if isinstance(value, BufferRef):
                    before, after = original.fields[item.name], command.fields[item.name]
                    assert isinstance(before, BufferRef) and isinstance(after, BufferRef)
                    if before.buffer is not after.buffer:  # sums that the longest length moved
                        value = after.plus(value.offset - before.offset)
                    own = value.buffer if value.buffer.data is not None else after.buffer
                    value = value.resolve(self.starts[own])
                values.append(checked_field(unit, item.name, int(value)))
            out.append(tuple(values))
        return out


def _commands(generator: StageGenerator) -> list[Command]:
    """Return the commands of all layers in the order of the layers."""
    return [command for steps in generator.layer_steps for step in steps for command in step.commands()]


def _forms(steps: Iterable[TileStep]) -> list[tuple]:
    """Return the forms of the commands of all steps of a layer."""
    return [_form(command) for step in steps for command in step.commands()]


def _refs(command: Command) -> Iterator[tuple[str, BufferRef]]:
    for name, value in command.fields.items():
        if isinstance(value, BufferRef):
            yield name, value


def _form(command: Command) -> tuple:
    """Return what the commands of all lengths have in common."""
    refs = tuple(
        sorted((name, ref.index % ref.buffer.depth, ref.buffer.memory) for name, ref in _refs(command))
    )
    return command.unit, command.layer, refs
