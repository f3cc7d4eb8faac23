"""What a model must answer: fresh inputs, and their outputs by a program that no candidate has a part in."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.executable import CommandStream
from compiler.codegen.split_programs import ProgramPart
from compiler.commands.commands import BufferMemory, BufferRef
from compiler.ir.graph import random_input
from compiler.layers.base import Layer
from compiler.lowering.lower import LoweredNetwork
from compiler.passes.index_bounds import index_bounds
from compiler.pipeline import ModelCompiler
from compiler.quantize.ranges import random_samples
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import PlacedStage, Session, dram_bytes
from compiler.trace import CompilationTrace
from compiler.validate.errors import ValidationError
from cosim.golden import GoldenDevice
from cosim.status import TrapError
from hw.isa.commands import LOAD_WORD
from hw.isa.enums import DTYPE_BYTES, Space, Unit

Arrays = dict[str, NDArray]
#: So many questions are remembered: methods that are compared ask the same ones.
_REMEMBERED = 64


@dataclass(frozen=True)
class GoldenIO:
    """Inputs of a model and the outputs they must give."""

    inputs: Arrays
    outputs: Arrays

    def answered_by(self, outputs: Arrays) -> bool:
        """Whether these are the outputs, bit by bit."""
        return all(np.array_equal(outputs[name], array) for name, array in self.outputs.items())


class GoldenModelReference:
    """Questions by number, answered on the golden model by the first program of a model.

    Parameters
    ----------
    network : Network
        As the static compiler makes it.
    seed : int
        Of the random inputs.
    """

    def __init__(self, network: CompiledNetwork, seed: int = 0):
        self.network, self.seed = network, seed
        self._known: OrderedDict[int, GoldenIO] = OrderedDict()
        self._lock = Lock()

    def question(self, number: int) -> GoldenIO:
        """The same for the same number."""
        with self._lock:
            if number not in self._known:
                self._known[number] = self._make(number)
                while len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
            return self._known[number]

    def _make(self, number: int) -> GoldenIO:
        assert self.network.graph is not None
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        inputs = random_samples(self.network.graph, seed, 1)[0]
        return GoldenIO(inputs, self.network(**inputs))


#: Elements of an input that have the same extreme value, on the average.
_RUN = 16


@dataclass(frozen=True)
class CheckedTensor:
    """A tensor that later programs read: where its bytes are after the program that completes it."""

    name: str
    memory: BufferMemory
    at: NDArray[np.int64]


@dataclass(frozen=True)
class CheckPlan:
    """What is looked at in a stage: tensors by program; and where its parameters are: first byte and size."""

    tensors: list[list[CheckedTensor]]
    parameters: list[tuple[int, int]]


@dataclass(frozen=True)
class TensorSnapshot:
    """A tensor's bytes after the macro-instruction of a program."""

    program: str
    tensor: str
    data: NDArray[np.uint8]


class EquivalenceChecker:
    """Compares networks with texts among their programs with what the compiler makes under the same schedule.

    Parameters
    ----------
    prepared : Prepared
        The model.
    seed : int
        Of the inputs.
    """

    def __init__(self, prepared: ModelCompiler, seed: int = 0):
        self._prepared, self._seed = prepared, seed

    def difference(self, network: CompiledNetwork, number: int) -> str | None:
        """What is other than it must be, in words; None: nothing.

        Parameters
        ----------
        network : Network
            Its schedule has texts.
        number : int
            Of the inputs: others each time.
        """
        record = CompilationTrace()
        plain = self._prepared.network(replace(network.schedule, programs={}), record)
        watches = [
            CheckPlan(list(_watched(stream, code.parts)), list(_parameters(stream)))
            for stream, code in zip(record.streams, plain.codes, strict=True)
        ]
        for extreme in (False, True):
            inputs, seed = self._inputs(number, extreme), number if extreme else None
            wanted = _seen(plain, watches, inputs, seed)
            try:
                found = _seen(network, watches, inputs, seed)
            except (TrapError, ValidationError) as error:
                return str(error)
            for mine, its in zip(found, wanted, strict=False):
                other = np.flatnonzero(mine.data != its.data)
                if other.size:
                    return (
                        f"program {mine.program!r} leaves other bytes in tensor {mine.tensor!r}, {other.size} of "
                        f"{mine.data.size}, the first of them at {other[0]}: {mine.data[other[0]]} in place of "
                        f"{its.data[other[0]]}"
                    )
            if len(found) != len(
                wanted
            ):  # conditions of loops are outputs of programs: not without a difference
                return f"{len(found)} tensors are made in place of {len(wanted)}"
        return None

    def _inputs(self, number: int, extreme: bool) -> Arrays:
        """Random inputs, or stretches of extremes: where sums are greatest."""
        graph = self._prepared.graph
        rng, places = np.random.default_rng([self._seed, number, extreme]), index_bounds(graph)
        out = {}
        for name in graph.inputs:
            array = random_input(rng, graph.tensors[name], places)
            if extreme and array.size:
                ends = np.array([array.min(), array.max()], array.dtype)
                runs = np.cumsum(rng.random(array.size) < 1 / _RUN)
                array = ends[rng.integers(0, 2, array.size)[runs]].reshape(array.shape)
            out[name] = array
        return out


def _watched(stream: CommandStream, parts: tuple[ProgramPart, ...]) -> Iterator[list[CheckedTensor]]:
    """For each program the tensors that it completes and that others read; outputs are looked at by themselves."""
    lowered = stream.lowered
    outside = {stream.homes[name].ring for name in lowered.graph.outputs}
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
            CheckedTensor(layer.y, stream.homes[layer.y].ring.memory, _bytes_of(stream, layer))
            for number, layer in enumerate(lowered.layers)
            if last[number] == at < read.get(lowered.root(layer.y), -1)
            and not stream.homes[layer.y].plane
            and stream.homes[layer.y].ring not in outside
        ]


def _parameters(stream: CommandStream) -> Iterator[tuple[int, int]]:
    """Where biases and multipliers lie in the model's memory."""
    rings = {}
    for command in stream.commands:
        word, source = command.fields.get("word", 0), command.fields.get("dram")
        if command.unit != Unit.LOAD or not isinstance(word, int) or not isinstance(source, BufferRef):
            continue
        if LOAD_WORD.unpack(word)["space"] == Space.PARAM and source.ring.data is not None:
            rings[source.ring] = (stream.starts[source.ring], source.ring.total)
    yield from rings.values()


def _reads(lowered: LoweredNetwork, layer: Layer) -> set[str]:
    """Tensors that a layer reads, by what they lie in."""
    return {lowered.root(name) for name in layer.shapes if name != layer.y}


def _bytes_of(stream: CommandStream, layer: Layer) -> NDArray[np.int64]:
    """Where the bytes of a layer's result lie, from the start of the memory, or of the model's place in it."""
    home = stream.homes[layer.y]
    size = home.c * DTYPE_BYTES[layer.shapes[layer.y].dtype]
    rows, columns = np.arange(home.h) * home.row, np.arange(home.w) * home.pixel
    pixels = (rows[:, None] + columns).reshape(-1, 1) + np.arange(size)
    return stream.starts[home.ring] + home.offset + pixels.reshape(-1)


def _seen(
    network: CompiledNetwork, watches: list[CheckPlan], inputs: Arrays, seed: int | None
) -> list[TensorSnapshot]:
    """What is there after each program of a run, and after the last of each stage its outputs; with a seed all
    parameters are random.
    """
    out: list[TensorSnapshot] = []
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        session = Session(device, network)
        watched = {id(place): watch for place, watch in zip(session.loaded, watches, strict=True)}
        if seed is not None:
            rng = np.random.default_rng(seed)
            for place in session.loaded:
                for start, size in watched[id(place)].parameters:
                    begin = place.base + start
                    device.dram[begin : begin + size] = rng.integers(0, 256, size, np.uint8)

        def look(place: PlacedStage, number: int) -> None:
            program = place.code.parts[number].program.name
            for item in watched[id(place)].tensors[number]:
                base = 0 if item.memory == BufferMemory.SP else place.base
                memory = device.machine.memories.sp if item.memory == BufferMemory.SP else device.dram
                out.append(TensorSnapshot(program, item.name, memory[base + item.at]))
            for tensor in place.stage.outputs if number == len(place.code.parts) - 1 else ():
                start = place.address(tensor.name, 0)
                out.append(
                    TensorSnapshot(program, tensor.name, device.dram[start : start + tensor.bytes].copy())
                )

        session.on_program = look
        session.run(inputs)
    return out
