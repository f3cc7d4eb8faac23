"""Reference inputs and outputs, and a check that programs given as text compute all intermediate tensors correctly."""

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
from compiler.pipeline import CompilationTrace, ModelCompiler
from compiler.quantize.ranges import random_samples
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import PlacedStage, Session, dram_bytes
from compiler.validate.errors import ValidationError
from cosim.golden import GoldenDevice
from cosim.status import TrapError
from hw.isa.commands import LOAD_WORD
from hw.isa.enums import DTYPE_BYTES, Space, Unit

Arrays = dict[str, NDArray]
#: Maximum number of cached references, which all search methods in a comparison share.
_MAX_CACHED = 64


@dataclass(frozen=True)
class GoldenIO:
    """Inputs of a model with the expected outputs."""

    inputs: Arrays
    outputs: Arrays

    def matches(self, outputs: Arrays) -> bool:
        """Return True if the given outputs equal the expected outputs bit for bit."""
        return all(np.array_equal(outputs[name], array) for name, array in self.outputs.items())


class GoldenModelReference:
    """Numbered random inputs of a model, with expected outputs computed by the golden model.

    The golden model runs the static compiler's programs, so no candidate affects the expected outputs.

    Parameters
    ----------
    network : CompiledNetwork
        Network compiled under the static compiler's schedule.
    seed : int
        Seed of the random inputs.
    """

    def __init__(self, network: CompiledNetwork, seed: int = 0):
        self.network, self.seed = network, seed
        self._known: OrderedDict[int, GoldenIO] = OrderedDict()
        self._lock = Lock()

    def golden_io(self, number: int) -> GoldenIO:
        """Return the inputs and outputs with index `number`; they depend only on this index and the seed."""
        with self._lock:
            if number not in self._known:
                self._known[number] = self._make(number)
                while len(self._known) > _MAX_CACHED:
                    self._known.popitem(last=False)
            return self._known[number]

    def _make(self, number: int) -> GoldenIO:
        assert self.network.graph is not None
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        inputs = random_samples(self.network.graph, seed, 1)[0]
        return GoldenIO(inputs, self.network(**inputs))


#: Average length of a run of elements with the same extreme value in an input.
_RUN_LENGTH = 16


@dataclass(frozen=True)
class CheckedTensor:
    """Tensor that later programs read, with the addresses at which its bytes are stored once it is complete."""

    name: str
    memory: BufferMemory
    addresses: NDArray[np.int64]


@dataclass(frozen=True)
class CheckPlan:
    """Tensors to check after each program of a stage, and address and size in bytes of each parameter block."""

    tensors: list[list[CheckedTensor]]
    parameters: list[tuple[int, int]]


@dataclass(frozen=True)
class TensorSnapshot:
    """Bytes of a tensor after a program has run."""

    program: str
    tensor: str
    data: NDArray[np.uint8]


class EquivalenceChecker:
    """Checker that compares programs given as text with the compiler's own programs for the same schedule.

    Parameters
    ----------
    prepared : ModelCompiler
        Compiler of the model.
    seed : int
        Seed of the random inputs.
    """

    def __init__(self, prepared: ModelCompiler, seed: int = 0):
        self._prepared, self._seed = prepared, seed

    def first_difference(self, network: CompiledNetwork, number: int) -> str | None:
        """Describe the first tensor that a program computes incorrectly; return None if all tensors are correct.

        Parameters
        ----------
        network : CompiledNetwork
            Network whose schedule contains program texts.
        number : int
            Index of the inputs; different indices give different inputs.
        """
        record = CompilationTrace()
        plain = self._prepared.network(replace(network.schedule, programs={}), record)
        check_plans = [
            CheckPlan(list(_checked_tensors(stream, code.parts)), list(_parameters(stream)))
            for stream, code in zip(record.streams, plain.codes, strict=True)
        ]
        for extreme in (False, True):
            inputs, seed = self._inputs(number, extreme), number if extreme else None
            wanted = _snapshots(plain, check_plans, inputs, seed)
            try:
                found = _snapshots(network, check_plans, inputs, seed)
            except (TrapError, ValidationError) as error:
                return str(error)
            for mine, its in zip(found, wanted, strict=False):
                other = np.flatnonzero(mine.data != its.data)
                if other.size:
                    return (
                        f"program {mine.program!r} writes wrong values to tensor {mine.tensor!r}: {other.size} of "
                        f"{mine.data.size} bytes differ, the first at offset {other[0]}: {mine.data[other[0]]} "
                        f"instead of {its.data[other[0]]}"
                    )
            if len(found) != len(
                wanted
            ):  # loop conditions are program outputs, so a difference was reported already if they differ
                return f"{len(found)} tensors are computed instead of {len(wanted)}"
        return None

    def _inputs(self, number: int, extreme: bool) -> Arrays:
        """Return random inputs; if `extreme`, they are runs of extreme values, so that sums have large magnitudes."""
        graph = self._prepared.graph
        rng, bounds = np.random.default_rng([self._seed, number, extreme]), index_bounds(graph)
        out = {}
        for name in graph.inputs:
            array = random_input(rng, graph.tensors[name], bounds)
            if extreme and array.size:
                ends = np.array([array.min(), array.max()], array.dtype)
                runs = np.cumsum(rng.random(array.size) < 1 / _RUN_LENGTH)
                array = ends[rng.integers(0, 2, array.size)[runs]].reshape(array.shape)
            out[name] = array
        return out


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
            and not stream.layouts[layer.y].channel_block
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
    home = stream.layouts[layer.y]
    size = home.c * DTYPE_BYTES[layer.shapes[layer.y].dtype]
    rows, columns = np.arange(home.h) * home.row, np.arange(home.w) * home.pixel
    pixels = (rows[:, None] + columns).reshape(-1, 1) + np.arange(size)
    return stream.starts[home.buffer] + home.offset + pixels.reshape(-1)


def _snapshots(
    network: CompiledNetwork, check_plans: list[CheckPlan], inputs: Arrays, seed: int | None
) -> list[TensorSnapshot]:
    """Run a network and snapshot its checked tensors after each program, and the outputs after each stage.

    If a seed is given, all parameters are replaced with random bytes.
    """
    out: list[TensorSnapshot] = []
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        session = Session(device, network)
        plans = {id(stage): plan for stage, plan in zip(session.loaded, check_plans, strict=True)}
        if seed is not None:
            rng = np.random.default_rng(seed)
            for stage in session.loaded:
                for start, size in plans[id(stage)].parameters:
                    begin = stage.base + start
                    device.dram[begin : begin + size] = rng.integers(0, 256, size, np.uint8)

        def snapshot(stage: PlacedStage, number: int) -> None:
            program = stage.code.parts[number].program.name
            for item in plans[id(stage)].tensors[number]:
                base = 0 if item.memory == BufferMemory.SP else stage.base
                memory = device.machine.memories.sp if item.memory == BufferMemory.SP else device.dram
                out.append(TensorSnapshot(program, item.name, memory[base + item.addresses]))
            for tensor in stage.stage.outputs if number == len(stage.code.parts) - 1 else ():
                start = stage.address(tensor.name, 0)
                out.append(
                    TensorSnapshot(program, tensor.name, device.dram[start : start + tensor.bytes].copy())
                )

        session.on_program = snapshot
        session.run(inputs)
    return out
