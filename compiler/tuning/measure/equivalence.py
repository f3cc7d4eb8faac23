"""Acceptance of programs given as text: proofs and tests of their equivalence to the compiler's programs."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.executable import CommandStream, StageExecutable
from compiler.codegen.split_programs import ProgramPart
from compiler.commands.commands import BufferMemory, BufferRef
from compiler.ir.graph import random_input
from compiler.layers.base import Layer
from compiler.lowering.lower import LoweredNetwork
from compiler.passes.index_bounds import index_bounds
from compiler.pipeline import CompilationTrace, ModelCompiler
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import PlacedStage, Session, dram_bytes
from compiler.schedule.program_override import digest_of
from compiler.schedule.schedule import Schedule
from compiler.tuning.measure.golden_inputs import Arrays, TensorForm, Values, covering_inputs, golden_inputs
from compiler.validate.errors import ValidationError
from cosim.golden import GoldenDevice
from cosim.golden.batch import BatchMemories, MemoryImage
from cosim.golden.command import Command
from cosim.golden.dataflow import DataflowMachine
from cosim.golden.symbols import NoSymbolsError, SymbolMachine, Symbols, arithmetic_steps
from cosim.semantics.instruction import selected_statistic
from cosim.status import TrapError
from hw.isa.commands import LOAD_WORD
from hw.isa.enums import DTYPE_BYTES, Dtype, Space, Unit
from hw.isa.micro_instruction import FORMS, Statistic, decode
from hw.isa.program import Program

#: Number of test inputs of a program with the model's parameters, besides those that cover reductions, and with random
#: parameters.
GOLDEN_INPUTS, PARAMETER_INPUTS = 96, 48
#: Number of different inputs of the network, each with the model's parameters and with random ones.
_NETWORK_INPUTS = 4
#: Number of schedules whose plain programs and their results are cached.
_MAX_SCHEDULES = 4
#: Maximum number of bytes of the copies of memory in which test inputs are computed together.
_BATCH_BYTES = 96 << 20
#: Maximum size of the DRAM of a network whose programs are compared by symbols, which take eight bytes each.
_MAX_SYMBOL_BYTES = 32 << 20
#: Average length of a run of elements with the same extreme value in an input.
_RUN_LENGTH = 16
#: Bytes of unused DRAM that move a network to other addresses.
_OTHER_PLACE = 3 * 4096 + 64
_PAGE_BYTES = 4096
#: Statistics that do not depend on data or time.
_FIXED_STATISTICS = frozenset({Statistic.N, Statistic.OPERANDS, Statistic.TAG})
#: Number of a stage, and of a program within it.
Place = tuple[int, int]


@dataclass(frozen=True)
class CheckedTensor:
    """Tensor that later programs read, with the addresses at which its bytes are stored once it is complete."""

    name: str
    memory: BufferMemory
    addresses: NDArray[np.int64]


@dataclass(frozen=True)
class InputTensor:
    """Tensor that programs read and other programs or the host write.

    Parameters
    ----------
    name : str
        Name of the tensor.
    dtype : Dtype
        Type of the elements.
    memory : BufferMemory
        Memory that contains the tensor.
    shape : tuple of int
        Height, width and channels.
    addresses : numpy.ndarray
        Address of each byte of each element, of shape (element, byte).
    """

    name: str
    dtype: Dtype
    memory: BufferMemory
    shape: tuple[int, int, int]
    addresses: NDArray[np.int64]


@dataclass(frozen=True)
class ProgramGroup:
    """Adjacent programs that are tested together, because they share layers.

    Parameters
    ----------
    parts : range
        Numbers of the programs.
    inputs : list of InputTensor
        Tensors that the programs read and do not compute.
    outputs : list of str
        Outputs of the stage that the programs compute.
    """

    parts: range
    inputs: list[InputTensor]
    outputs: list[str]


@dataclass(frozen=True)
class StagePlan:
    """Tensors of a stage that are checked.

    Parameters
    ----------
    tensors : list of list of CheckedTensor
        Tensors to check after each program.
    parameters : list of (int, int)
        Address and size in bytes of each block of biases and multipliers.
    groups : list of ProgramGroup
        Programs that are tested together; every program belongs to one group.
    """

    tensors: list[list[CheckedTensor]]
    parameters: list[tuple[int, int]]
    groups: list[ProgramGroup]


@dataclass(frozen=True)
class TensorSnapshot:
    """Bytes of a tensor after a program has run; for several test inputs, of shape (input, byte)."""

    place: Place
    program: str
    tensor: str
    data: NDArray[np.uint8]


@dataclass
class GoldenRun:
    """Observations of runs of a network on the golden model.

    Parameters
    ----------
    stages : list of PlacedStage
        Stages with their addresses.
    snapshots : list of TensorSnapshot
        Checked tensors after each program, and the outputs after each stage.
    commands : dict
        Commands of the first run of each program, in the order of their execution.
    images : dict
        Memories before the first run of the watched programs.
    """

    stages: list[PlacedStage]
    snapshots: list[TensorSnapshot] = field(default_factory=list)
    commands: dict[Place, list[Command]] = field(default_factory=dict)
    images: dict[Place, MemoryImage] = field(default_factory=dict)

    def group_commands(self, stage: int, group: ProgramGroup) -> list[list[Command]]:
        """Return the commands of each program of a group."""
        return [self.commands[stage, number] for number in group.parts]


@dataclass(frozen=True)
class Verdict:
    """Result of the acceptance of programs.

    Parameters
    ----------
    difference : str or None
        First difference from the compiler's programs; None if the programs are accepted.
    form : str
        Digest of the program that differs, without instructions that have no effect; empty if there is none.
    inputs : int
        Least number of test inputs of a program that was not proved equivalent; 0 if all were proved equivalent.
    """

    difference: str | None = None
    form: str = ""
    inputs: int = 0


class PlainPrograms:
    """The compiler's programs for a schedule, with their results for the test inputs, which are computed on demand.

    Parameters
    ----------
    prepared : ModelCompiler
        Compiler of the model.
    schedule : Schedule
        Schedule without program texts.
    seed : int
        Seed of the inputs.
    """

    def __init__(self, prepared: ModelCompiler, schedule: Schedule, seed: int):
        record = CompilationTrace()
        self.network = prepared.network(schedule, record)
        self.plans = [
            StagePlan(
                list(_checked_tensors(stream, code.parts)),
                list(_parameters(stream)),
                _groups(stream, code),
            )
            for stream, code in zip(record.streams, self.network.codes, strict=True)
        ]
        self.seed, self._graph = seed, prepared.graph
        self._runs: dict[tuple[int, bool], GoldenRun] = {}
        self._expected: dict[tuple[Place, bool], list[TensorSnapshot]] = {}
        self._values: dict[tuple[Place, bool], list[list[NDArray]]] = {}
        self._symbols: dict[type[SymbolMachine], dict[Place, list[Symbols]]] = {}

    @cached_property
    def digests(self) -> dict[str, str]:
        """Digest of each program, by name."""
        return {program.name: digest_of(program) for code in self.network.codes for program in code.programs}

    def inputs(self, number: int, extreme: bool) -> Arrays:
        """Return random inputs; if `extreme`, they are runs of extreme values, so that sums have large magnitudes."""
        rng, bounds = np.random.default_rng([self.seed, number, extreme]), index_bounds(self._graph)
        out = {}
        for name in self._graph.inputs:
            array = random_input(rng, self._graph.tensors[name], bounds)
            if extreme and array.size:
                ends = np.array([array.min(), array.max()], array.dtype)
                runs = np.cumsum(rng.random(array.size) < 1 / _RUN_LENGTH)
                array = ends[rng.integers(0, 2, array.size + 1)[runs]].reshape(array.shape)
            out[name] = array
        return out

    def run(self, number: int, extreme: bool) -> GoldenRun:
        """Return the observations of a run with given inputs; extreme inputs come with random parameters."""
        if (number, extreme) not in self._runs:
            self._runs[number, extreme] = self.observe(self.network, [number], extreme)
        return self._runs[number, extreme]

    def observe(
        self,
        network: CompiledNetwork,
        numbers: Sequence[int],
        extreme: bool,
        watched: Iterable[Place] = (),
        unused: int = 0,
    ) -> GoldenRun:
        """Run a network on the golden model with several inputs in turn.

        Parameters
        ----------
        network : CompiledNetwork
            Network with these programs or replacements for them.
        numbers : sequence of int
            Numbers of the inputs.
        extreme : bool
            True for extreme inputs and random parameters.
        watched : iterable of Place
            Programs before which the memories are copied.
        unused : int
            Bytes of DRAM that are left unused before the network.

        Raises
        ------
        TrapError, ValidationError
            A program is wrong.
        """
        with GoldenDevice(
            network.config, dram_bytes(network) + -(-unused // _PAGE_BYTES) * _PAGE_BYTES
        ) as device:
            session = Session(device, network, unused=unused)
            run = GoldenRun(session.loaded)
            index = {id(stage): number for number, stage in enumerate(session.loaded)}
            if extreme:
                rng = np.random.default_rng(numbers[0])
                for stage, plan in zip(session.loaded, self.plans, strict=True):
                    for start, size in plan.parameters:
                        begin = stage.base + start
                        device.dram[begin : begin + size] = rng.integers(0, 256, size, np.uint8)
            watched, execute = set(watched), device.machine.units.run
            recorded: list[list[Command]] = []

            def before(stage: PlacedStage, number: int) -> None:
                place = index[id(stage)], number
                recorded[:] = [] if place in run.commands else [run.commands.setdefault(place, [])]
                if place in watched and place not in run.images:
                    run.images[place] = MemoryImage.of(device.machine.memories)

            def record(command: Command) -> dict[str, int]:
                for commands in recorded:
                    commands.append(command)
                return execute(command)

            def snapshot(stage: PlacedStage, number: int) -> None:
                place, program = (index[id(stage)], number), stage.code.parts[number].program.name
                for item in self.plans[place[0]].tensors[number]:
                    on_chip = item.memory == BufferMemory.SP
                    memory = device.machine.memories.sp if on_chip else device.dram
                    data = memory[item.addresses + (0 if on_chip else stage.base)]
                    run.snapshots.append(TensorSnapshot(place, program, item.name, data))
                for tensor in stage.stage.outputs if number == len(stage.code.parts) - 1 else ():
                    start = stage.address(tensor.name, 0)
                    data = device.dram[start : start + tensor.bytes].copy()
                    run.snapshots.append(TensorSnapshot(place, program, tensor.name, data))

            device.machine.units.run = record  # type: ignore[method-assign]
            session.before_program, session.on_program = before, snapshot
            for number in numbers:
                session.reset()
                session.run(self.inputs(number, extreme))
        return run

    def symbols(self, kind: type[SymbolMachine]) -> dict[Place, list[Symbols]]:
        """Return the symbols of the checked tensors after each program that ran.

        Parameters
        ----------
        kind : type of SymbolMachine
            Class of the machine that computes the symbols.

        Raises
        ------
        NoSymbolsError
            The network is too large, or a command has no symbols.
        """
        if kind not in self._symbols:
            run = self.run(0, False)
            machine = self.symbol_machine(kind)
            out: dict[Place, list[Symbols]] = {}
            for place, commands in run.commands.items():
                machine.run(commands)
                out[place] = [memory[at] for memory, at in self.symbol_places(machine, run, place)]
            self._symbols[kind] = out
        return self._symbols[kind]

    def symbol_machine(self, kind: type[SymbolMachine]) -> SymbolMachine:
        """Return a machine for the symbols of the network; raise NoSymbolsError if the network is too large."""
        size = dram_bytes(self.network)
        if size > _MAX_SYMBOL_BYTES:
            raise NoSymbolsError("the network is too large")
        return kind(self.network.config, size)

    def unequal(
        self, run: GoldenRun, kind: type[SymbolMachine]
    ) -> Iterator[tuple[Place, list[tuple[Symbols, Symbols]]]]:
        """Yield the programs whose results have other symbols than the compiler's, with the symbols of both.

        Parameters
        ----------
        run : GoldenRun
            Run of the network with other programs.
        kind : type of SymbolMachine
            Class of the machine that computes the symbols.

        Raises
        ------
        NoSymbolsError
            The network is too large, or a command has no symbols.
        """
        wanted, machine = self.symbols(kind), self.symbol_machine(kind)
        for place, commands in run.commands.items():
            if place not in wanted:
                continue
            machine.run(commands)
            pairs, equal = [], True
            for (memory, at), symbols in zip(
                self.symbol_places(machine, run, place), wanted[place], strict=True
            ):
                pairs.append((memory[at], symbols))
                equal = equal and np.array_equal(memory[at], symbols)
                memory[at] = symbols  # later programs are compared as if this one were correct
            if not equal:
                yield place, pairs

    def symbol_places(
        self, machine: SymbolMachine, run: GoldenRun, place: Place
    ) -> Iterator[tuple[Symbols, NDArray[np.int64]]]:
        """Yield memory and addresses of the tensors that are checked after a program."""
        stage = run.stages[place[0]]
        for item in self.plans[place[0]].tensors[place[1]]:
            if item.memory == BufferMemory.SP:
                yield machine.sp, item.addresses
            else:
                yield machine.dram, item.addresses + stage.base
        for tensor in stage.stage.outputs if place[1] == len(stage.code.parts) - 1 else ():
            yield machine.dram, stage.address(tensor.name, 0) + np.arange(tensor.bytes)

    def test(
        self, stage: int, group: ProgramGroup, runs: Mapping[bool, GoldenRun]
    ) -> Iterator[tuple[TensorSnapshot, TensorSnapshot]]:
        """Yield the tensors that observed programs of a group compute for all test inputs, and the expected ones.

        Parameters
        ----------
        stage : int
            Number of the stage.
        group : ProgramGroup
            Group of the programs.
        runs : mapping of bool to GoldenRun
            Runs of the programs with the model's parameters (False) and with random ones (True), which contain the
            memories before the group.
        """
        place = stage, group.parts.start
        for extreme, run in runs.items():
            key = place, extreme
            if key not in self._expected:
                plain = self.observe(self.network, [0], extreme, [place])
                self._values[key] = self._test_values(plain, place, group, extreme)
                self._expected[key] = self._replay(plain, stage, group, self._values[key])
            yield from zip(
                self._replay(run, stage, group, self._values[key]), self._expected[key], strict=True
            )

    def _test_values(
        self, run: GoldenRun, place: Place, group: ProgramGroup, extreme: bool
    ) -> list[list[NDArray]]:
        """Return the test inputs of a group, in the types of the tensors."""
        image, forms = run.images[place], []
        for tensor in group.inputs:
            memory, addresses = _located(run.stages[place[0]], tensor)
            raw = image.sp if memory == BufferMemory.SP else image.dram
            real = raw[addresses].view(_NUMPY[tensor.dtype]).astype(np.int64).reshape(tensor.shape)
            low, high = _range(tensor.dtype, real)
            forms.append(TensorForm(tensor.shape, low, high, real))
        seed = [self.seed, *place, extreme]
        values: Iterable[list[Values]] = golden_inputs(
            seed, forms, PARAMETER_INPUTS if extreme else GOLDEN_INPUTS
        )
        if not extreme:
            values = chain(values, covering_inputs(seed, forms, self.network.config.n))
        types = [_NUMPY[tensor.dtype] for tensor in group.inputs]
        return [[data.astype(dtype) for data, dtype in zip(each, types, strict=True)] for each in values]

    def input_count(self, place: Place) -> int:
        """Return the number of test inputs of the tested group that begins with a program."""
        return sum(len(self._values[place, extreme]) for extreme in (False, True))

    def _replay(
        self, run: GoldenRun, stage: int, group: ProgramGroup, values: Sequence[Sequence[NDArray]]
    ) -> list[TensorSnapshot]:
        """Return the tensors that the programs of a group compute for all test inputs."""
        placed = run.stages[stage]
        image, first = run.images[stage, group.parts.start], placed.base + placed.code.image.size
        each = image.sp.nbytes + image.acc.nbytes + image.dram.nbytes - first
        step = max(1, _BATCH_BYTES // each)
        found = [
            list(self._replay_batch(run, stage, group, values[start : start + step], first, image))
            for start in range(0, len(values), step)
        ]
        return [
            replace(batches[0], data=np.concatenate([each.data for each in batches]))
            for batches in zip(*found, strict=True)
        ]

    def _replay_batch(
        self,
        run: GoldenRun,
        stage: int,
        group: ProgramGroup,
        values: Sequence[Sequence[NDArray]],
        first: int,
        image: MemoryImage,
    ) -> Iterator[TensorSnapshot]:
        placed = run.stages[stage]
        memories = BatchMemories(self.network.config, image, len(values), first)
        for number, tensor in enumerate(group.inputs):
            memory, addresses = _located(placed, tensor)
            data = np.stack([each[number].reshape(-1) for each in values])
            data = np.ascontiguousarray(data).view(np.uint8).reshape(len(values), *addresses.shape)
            if memory == BufferMemory.SP:
                memories.sp[:, addresses] = data
            else:
                memories.dram[:, addresses - first] = data
        for number, commands in zip(group.parts, run.group_commands(stage, group), strict=True):
            memories.run(commands)
            name = placed.code.parts[number].program.name
            for item in self.plans[stage].tensors[number]:
                if item.memory == BufferMemory.SP:
                    data = memories.sp[:, item.addresses]
                else:
                    data = memories.dram[:, item.addresses + placed.base - first]
                yield TensorSnapshot((stage, number), name, item.name, data)
        for tensor in placed.stage.outputs:
            if tensor.name in group.outputs:
                start = placed.address(tensor.name, 0) - first
                data = memories.dram[:, start : start + tensor.bytes].copy()
                program = placed.code.parts[group.parts[-1]].program.name
                yield TensorSnapshot((stage, group.parts[-1]), program, tensor.name, data)


class EquivalenceChecker:
    """Checker that compares programs given as text with the compiler's own programs for the same schedule.

    Programs whose results have the same symbols (`cosim.golden.symbols`) as those of the compiler's programs are proved
    equivalent. Others are tested with inputs that depend on the replaced program only, so that another attempt with an
    equivalent text has the same result.

    Parameters
    ----------
    prepared : ModelCompiler
        Compiler of the model.
    seed : int
        Seed of the random inputs.

    Attributes
    ----------
    refused : dict
        Reasons for which programs were refused, by the digest of their form (`Verdict.form`).
    """

    def __init__(self, prepared: ModelCompiler, seed: int = 0):
        self._prepared, self._seed = prepared, seed
        self._plain: OrderedDict[str, PlainPrograms] = OrderedDict()
        self.refused: dict[str, str] = {}

    def check(
        self, network: CompiledNetwork, number: int = 0, refused: Mapping[str, str] | None = None
    ) -> Verdict:
        """Accept or refuse the program texts of a network's schedule.

        Parameters
        ----------
        network : CompiledNetwork
            Network whose schedule contains program texts.
        number : int
            Number of the network's inputs with which the programs run first.
        refused : mapping of str to str or None
            Reasons for which other checkers refused programs, by the digest of their form.
        """
        self.refused = dict(refused or {}) | self.refused
        verdict = _Acceptance(self._plain_programs(network.schedule), network, number, self.refused).verdict()
        if verdict.difference is not None and verdict.form:
            self.refused.setdefault(verdict.form, verdict.difference)
        return verdict

    def _plain_programs(self, schedule: Schedule) -> PlainPrograms:
        schedule = replace(schedule, programs={})
        key = schedule.to_json()
        if key not in self._plain:
            self._plain[key] = PlainPrograms(self._prepared, schedule, self._seed)
        self._plain.move_to_end(key)
        while len(self._plain) > _MAX_SCHEDULES:
            self._plain.popitem(last=False)
        return self._plain[key]


class _Acceptance:
    """Acceptance of the programs of one network."""

    def __init__(
        self, plain: PlainPrograms, network: CompiledNetwork, number: int, refused: Mapping[str, str]
    ):
        self.plain, self.network, self.refused = plain, network, refused
        self.number = number % _NETWORK_INPUTS
        #: Programs that differ from the compiler's programs, by place.
        self.changed: dict[Place, Program] = {}
        for stage, (own, code) in enumerate(zip(plain.network.codes, network.codes, strict=True)):
            for at, (old, new) in enumerate(zip(own.programs, code.programs, strict=True)):
                if old.words != new.words:
                    self.changed[stage, at] = new
        self.forms: dict[Place, str] = {}

    def verdict(self) -> Verdict:
        """Return the verdict."""
        for place, program in self.changed.items():
            if reason := _data_dependence(program):
                return Verdict(f"program {program.name!r} {reason}", self._word_form(place, program))
        try:
            return self._verdict()
        except (TrapError, ValidationError) as error:
            return Verdict(str(error))

    def _verdict(self) -> Verdict:
        plain = self.plain
        run = plain.observe(self.network, [self.number], False)
        suspects = self._suspects(run)
        for place in suspects:
            if known := self.refused.get(self.forms[place]):
                return Verdict(f"an equivalent program was refused before: {known}", self.forms[place])
        found = self._difference(run.snapshots, plain.run(self.number, False).snapshots)
        if found is not None or not suspects:
            return found or Verdict()
        groups = {
            (stage, group.parts.start): group
            for stage, plan in enumerate(plain.plans)
            for group in plan.groups
            if any(place[0] == stage and place[1] in group.parts for place in suspects)
        }
        runs = {extreme: plain.observe(self.network, [0], extreme, groups) for extreme in (False, True)}
        for extreme, run in runs.items():
            found = self._difference(run.snapshots, plain.run(0, extreme).snapshots)
            if found is not None:
                return found
        for place, group in groups.items():
            if place not in runs[False].images:
                return self._refuse(place, "is never executed with the test inputs")
            found = self._compared(plain.test(place[0], group, runs))
            if found is not None:
                return found
        for (stage, _), group in groups.items():
            if other := self._other_arithmetic(stage, group, runs[False]):
                return self._refuse((stage, group.parts.start), other)
        if (found := self._other_elements(runs[False])) is not None:
            return found
        return self._elsewhere() or Verdict(inputs=min(map(plain.input_count, groups)))

    def _other_arithmetic(self, stage: int, group: ProgramGroup, run: GoldenRun) -> str | None:
        """Describe a step of the arithmetic that only these programs or only the compiler's programs contain.

        A constant that is off by one, another rounding or an omitted correction may change one result in millions,
        which tests do not find.
        """
        mine, its = (
            {
                step
                for commands in each.group_commands(stage, group)
                for command in commands
                for step in arithmetic_steps(command).items()
            }
            for each in (run, self.plain.run(self.number, False))
        )
        for name, fields in sorted(mine ^ its):
            text = ", ".join(f"{field} = {value}" for field, value in fields)
            does = "computes" if (name, fields) in mine else "does not compute"
            other = "does not compute" if (name, fields) in mine else "computes"
            return (
                f"{does} a {name} with {text}, which the replaced program {other}: tests cannot show that other "
                "arithmetic gives the same results for all inputs"
            )
        return None

    def _other_elements(self, run: GoldenRun) -> Verdict | None:
        """Refuse programs whose reductions or other steps read other elements than those of the compiler's programs.

        A maximum of a thousand elements that omits one is right for all but a thousandth of random inputs.
        """
        try:
            self.plain.symbols(DataflowMachine)
        except NoSymbolsError:  # the test inputs alone decide
            return None
        try:
            for place, pairs in self.plain.unequal(run, DataflowMachine):
                other = [np.flatnonzero(mine != its) for mine, its in pairs]
                return self._refuse(
                    place,
                    f"computes {sum(each.size for each in other)} bytes from other elements, or from elements combined "
                    "in another way, than the replaced program: tests cannot show that this gives the same results "
                    "for all inputs",
                )
        except NoSymbolsError as error:
            return Verdict(f"the elements that a program reads cannot be determined: {error}")
        return None

    def _elsewhere(self) -> Verdict | None:
        """Compare runs at other addresses, with other inputs one after another."""
        plain, numbers = self.plain, [(self.number + each) % _NETWORK_INPUTS for each in (1, 2)]
        run = plain.observe(self.network, numbers, False, unused=_OTHER_PLACE)
        wanted = [each for number in numbers for each in plain.run(number, False).snapshots]
        return self._difference(run.snapshots, wanted)

    def _suspects(self, run: GoldenRun) -> list[Place]:
        """Return the programs that are not proved equivalent, and determine the form of each program."""
        try:
            suspects = []
            for place, pairs in self.plain.unequal(run, SymbolMachine):
                suspects.append(place)
                self.forms[place] = self._form(place, *(mine.tobytes() for mine, _ in pairs))
        except NoSymbolsError:
            suspects = list(self.changed)
        for place in self.changed:
            if place not in run.commands and place not in suspects:
                suspects.append(place)
        for place in suspects:
            if place not in self.forms:
                self.forms[place] = self._word_form(place, self.network.codes[place[0]].programs[place[1]])
        return suspects

    def _form(self, place: Place, *parts: bytes) -> str:
        name = self.plain.network.codes[place[0]].programs[place[1]].name
        digest = hashlib.sha256(self.plain.digests[name].encode())
        for part in parts:
            digest.update(hashlib.sha256(part).digest())
        return digest.hexdigest()

    def _word_form(self, place: Place, program: Program) -> str:
        return self._form(place, program.image)

    def _refuse(self, place: Place, why: str) -> Verdict:
        program = self.network.codes[place[0]].programs[place[1]]
        return Verdict(f"program {program.name!r} {why}", self.forms.get(place, ""))

    def _difference(
        self, found: Sequence[TensorSnapshot], wanted: Sequence[TensorSnapshot]
    ) -> Verdict | None:
        verdict = self._compared(zip(found, wanted, strict=False))
        if verdict is None and len(found) != len(wanted):
            # Loop conditions are program outputs, so a difference was reported already if they differ.
            return Verdict(f"{len(found)} tensors are computed instead of {len(wanted)}")
        return verdict

    def _compared(self, pairs: Iterable[tuple[TensorSnapshot, TensorSnapshot]]) -> Verdict | None:
        """Return the verdict on the first difference between pairs of computed and expected tensors."""
        for mine, its in pairs:
            if np.array_equal(mine.data, its.data):
                continue
            where, inputs = mine.data != its.data, ""
            ours, theirs = mine.data, its.data
            if where.ndim == 2:
                number = int(np.flatnonzero(where.any(axis=1))[0])
                inputs = f"for {int(where.any(axis=1).sum())} of {len(where)} test inputs, "
                where, ours, theirs = where[number], ours[number], theirs[number]
            other = np.flatnonzero(where)
            return self._refuse(
                mine.place,
                f"writes wrong values to tensor {mine.tensor!r}: {inputs}{other.size} of {where.size} bytes differ, "
                f"the first at offset {other[0]}: {ours[other[0]]} instead of {theirs[other[0]]}",
            )
        return None


#: Operations that use each operand selector.
_USES = {which: frozenset(op for op, form in FORMS.items() if which in form.operands) for which in ("a", "b")}


def _data_dependence(program: Program) -> str | None:
    """Describe the first instruction that reads a statistic of data; None if there is none.

    No number of inputs shows that a program whose commands depend on data is correct.
    """
    for word in program.words:
        values = decode(word)
        for which, ops in _USES.items():
            if values["opcode"] not in {int(op) for op in ops}:
                continue
            statistic = selected_statistic(values[which])
            if statistic is not None and statistic not in _FIXED_STATISTICS:
                return (
                    f"reads the statistic {statistic.name.lower()}: programs given as text must not depend on data, "
                    "because tests with single inputs cannot show that they are correct for others"
                )
    return None


_NUMPY = {
    Dtype.I8: np.dtype("i1"),
    Dtype.U8: np.dtype("u1"),
    Dtype.I16: np.dtype("<i2"),
    Dtype.I32: np.dtype("<i4"),
}


def _range(dtype: Dtype, real: Values) -> tuple[int, int]:
    """Return the range of a tensor's test inputs: that of the type, but of int32 twice the range of real contents."""
    limits = np.iinfo(_NUMPY[dtype])
    if dtype != Dtype.I32:
        return int(limits.min), int(limits.max)
    largest = min(2 * int(np.abs(real).max(initial=1)) + 1, int(limits.max))
    return -largest, largest


def _located(stage: PlacedStage, tensor: InputTensor) -> tuple[BufferMemory, NDArray[np.int64]]:
    """Return the memory of a tensor, and the addresses of its bytes there."""
    if tensor.memory == BufferMemory.SP:
        return tensor.memory, tensor.addresses
    outside = tensor.name in stage.code.operand_numbers
    return tensor.memory, tensor.addresses + (stage.address(tensor.name, 0) if outside else stage.base)


def _groups(stream: CommandStream, code: StageExecutable) -> list[ProgramGroup]:
    """Return the groups of a stage's programs."""
    spans: dict[int, tuple[int, int]] = {}
    for at, part in enumerate(code.parts):
        for layer in part.layers:
            spans[layer] = spans.get(layer, (at, at))[0], at
    out: list[ProgramGroup] = []
    at = 0
    while at < len(code.parts):
        end = at
        number = at
        while number <= end:
            end = max(end, *(spans[layer][1] for layer in code.parts[number].layers), number)
            number += 1
        out.append(_group(stream, code, range(at, end + 1)))
        at = end + 1
    return out


def _group(stream: CommandStream, code: StageExecutable, parts: range) -> ProgramGroup:
    lowered = stream.lowered
    numbers = sorted({layer for at in parts for layer in code.parts[at].layers})
    layers = [lowered.layers[number] for number in numbers]
    producers: dict[str, set[int]] = {}
    for number, layer in enumerate(lowered.layers):
        producers.setdefault(lowered.root(layer.y), set()).add(number)
    inputs: dict[str, InputTensor] = {}
    for layer in layers:
        for name, shape in layer.shapes.items():
            root = lowered.root(name)
            home = stream.layouts.get(root)
            made = producers.get(root, set())
            if (
                name == layer.y
                or root in inputs
                or home is None
                or home.streamed
                or home.buffer.data is not None
            ):
                continue
            if made and made <= set(numbers):
                continue
            bytes_each = DTYPE_BYTES[shape.dtype]
            starts = _elements_of(stream, root, bytes_each)
            inputs[root] = InputTensor(
                root,
                Dtype(shape.dtype),
                home.buffer.memory,
                (home.h, home.w, home.c),
                starts[:, None] + np.arange(bytes_each),
            )
    outputs = [
        name for name in lowered.graph.outputs if producers.get(lowered.root(name), set()) & set(numbers)
    ]
    return ProgramGroup(parts, list(inputs.values()), outputs)


def _checked_tensors(stream: CommandStream, parts: tuple[ProgramPart, ...]) -> Iterator[list[CheckedTensor]]:
    """Yield, for each program, the tensors that it completes and later programs read, except outputs of the stage."""
    lowered = stream.lowered
    outside = {stream.layouts[name].buffer for name in lowered.graph.outputs}
    last = [
        max((at for at, part in enumerate(parts) if number in part.layers), default=-1)
        for number in range(len(lowered.layers))
    ]
    read: dict[str, int] = {}
    for number, layer in enumerate(lowered.layers):
        for name in _reads(lowered, layer):
            read[name] = max(read.get(name, -1), last[number])
    for at in range(len(parts)):
        yield [
            CheckedTensor(layer.y, stream.layouts[layer.y].buffer.memory, _bytes_of(stream, layer))
            for number, layer in enumerate(lowered.layers)
            if last[number] == at < read.get(lowered.root(layer.y), -1)
            and not stream.layouts[layer.y].streamed
            and stream.layouts[layer.y].buffer not in outside
        ]


def _parameters(stream: CommandStream) -> Iterator[tuple[int, int]]:
    """Yield the address and the size in bytes of each block of biases and multipliers in the model's DRAM."""
    rings = {}
    for command in stream.commands:
        word, source = command.fields.get("word", 0), command.fields.get("dram")
        if command.unit != Unit.LOAD or not isinstance(word, int) or not isinstance(source, BufferRef):
            continue
        if LOAD_WORD.unpack(word)["space"] == Space.PARAM and source.buffer.data is not None:
            rings[source.buffer] = (stream.starts[source.buffer], source.buffer.total)
    yield from rings.values()


def _reads(lowered: LoweredNetwork, layer: Layer) -> set[str]:
    """Return the names of the root tensors that contain the inputs of a layer."""
    return {lowered.root(name) for name in layer.shapes if name != layer.y}


def _bytes_of(stream: CommandStream, layer: Layer) -> NDArray[np.int64]:
    """Return the addresses of the bytes of a layer's result, relative to the scratchpad or the model's DRAM base."""
    size = DTYPE_BYTES[layer.shapes[layer.y].dtype]
    return (_elements_of(stream, layer.y, size)[:, None] + np.arange(size)).reshape(-1)


def _elements_of(stream: CommandStream, name: str, size: int) -> NDArray[np.int64]:
    """Return the addresses of a tensor's elements of `size` bytes, relative to the scratchpad or its DRAM base."""
    home = stream.layouts[name]
    rows, columns = np.arange(home.h) * home.row, np.arange(home.w) * home.pixel
    pixels = (rows[:, None] + columns).reshape(-1, 1) + np.arange(home.c) * size
    return stream.starts[home.buffer] + home.offset + pixels.reshape(-1)
