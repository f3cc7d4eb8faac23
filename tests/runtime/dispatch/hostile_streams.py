"""Streams of requests that are made to mislead guards and reuse, with independent references for all outputs.

Each request of a stream differs from earlier ones in a way that a comparison could overlook: one byte at the border of
a row, a block or a tile, changes that preserve sums, checksums or hashes, changes that saturate or wrap, or values
around a zero point. Between requests, programs are swapped, evicted or proved again, requests in flight are repeated,
and memory that no request may depend on is overwritten with random bytes.

References are LiteRT for networks from TFLite files, onnxruntime for networks from ONNX files, and the numpy reference
for the others.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray

from compiler.api import compile
from compiler.cache.content_store import ContentStore
from compiler.codegen.dispatch_guard import equal
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork, split_batch, stack_batch
from compiler.runtime.session import Session, dram_bytes
from compiler.serving.audit import AuditedServer
from compiler.serving.request import Request, RequestResult
from compiler.serving.reuse import ReusingServer
from compiler.serving.server import DynamicBatcher, Server, serving_bytes, version_bytes
from compiler.serving.versions import Version
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import MlaConfig, load_target
from hw.isa.micro_instruction import Statistic
from tests.runtime.dispatch.test_cascade import cascade_of, narrowed
from tests.runtime.dispatch.test_regions import graph_of
from tests.runtime.dispatch.test_reuse import layers_of_two_inputs
from tests.support.classifiers import classifier, samples_of_classes
from tests.support.graphs import Draft as GraphDraft
from tests.support.one_operator import RESOLVERS
from tests.support.onnx_models import model, reference
from tests.support.onnx_qdq import Qdq, integers
from tests.support.sequence_models import TOKENS
from tests.support.tflite_cases import options
from tests.support.tflite_models import Draft

Arrays = dict[str, NDArray]
Rng = np.random.Generator
Answer = Callable[[Arrays], Arrays]

#: Number of requests of a stream: at least, and before.
LENGTHS = (5, 12)
#: Generator polynomial of CRC-32 without the term of the power 32; the lowest bit has the power 31.
_CRC_POLYNOMIAL = 0xEDB88320


class LiteRt:
    """Outputs of a TFLite file in LiteRT's reference kernels."""

    def __init__(self, data: bytes):
        self.interpreter = Interpreter(
            model_content=data, experimental_op_resolver_type=RESOLVERS["reference"], num_threads=1
        )
        self.interpreter.allocate_tensors()

    def __call__(self, inputs: Arrays) -> Arrays:
        """Return the outputs by name."""
        for details in self.interpreter.get_input_details():
            self.interpreter.set_tensor(details["index"], inputs[details["name"]])
        self.interpreter.invoke()
        found = self.interpreter.get_output_details()
        return {details["name"]: self.interpreter.get_tensor(details["index"]) for details in found}


# --- Requests ---


@dataclass
class HostileInputs:
    """Source of inputs, each of which differs from earlier ones in a way that is easy to overlook.

    Parameters
    ----------
    rng : Generator
        Source of random numbers.
    tensors : sequence of Tensor
        Inputs of the network, of integers.
    config : MlaConfig
        Machine, whose rows of the scratchpad have borders.
    windows : sequence of (int, int)
        Heights and widths in pixels whose multiples are borders of blocks of an image.
    special : sequence of dict
        Inputs with a meaning for the network under test, such as zeros.
    """

    rng: Rng
    tensors: Sequence[Tensor]
    config: MlaConfig
    windows: Sequence[tuple[int, int]] = ()
    special: Sequence[Arrays] = ()
    history: list[Arrays] = field(default_factory=list)

    def next(self) -> tuple[str, Arrays]:
        """Return the name of an attack, and inputs that the attack makes of the last ones."""
        if self.special and self.rng.random() < 0.4:
            made = self.special[int(self.rng.integers(len(self.special)))]
            name = "special"
            if self.history and self.rng.integers(2):
                made, name = _one_byte(self, made), "almost special"
        else:
            change = CHANGES[int(self.rng.integers(len(CHANGES)))] if self.history else _new
            name, made = change.__name__.strip("_"), change(self)
        self.history.append(made)
        return name, made

    def drawn(self) -> Arrays:
        """Return random inputs."""
        out = {}
        for tensor in self.tensors:
            limits = np.iinfo(tensor.dtype)
            out[tensor.name] = self.rng.integers(limits.min, limits.max + 1, tensor.shape).astype(
                tensor.dtype
            )
        return out

    def edited(self, given: Arrays, change: Callable[[NDArray[np.uint8], Tensor], None]) -> Arrays:
        """Return a copy of inputs in which the bytes of one of them were changed in place."""
        tensor = self.tensors[int(self.rng.integers(len(self.tensors)))]
        array = given[tensor.name].copy()
        change(array.reshape(-1).view(np.uint8), tensor)
        return {**given, tensor.name: array}

    def border(self, size: int, tensor: Tensor) -> int:
        """Return the index of a byte, mostly at the border of a row of the scratchpad, of an image, or of a block."""
        n, draw = self.config.n, self.rng.integers(5)
        if draw == 0:
            at = int(self.rng.integers(size))
        elif draw == 1:
            at = int(self.rng.choice([0, size - 1]))
        elif draw == 2 or len(tensor.shape) != 4:
            at = n * int(self.rng.integers(size // n + 1)) - int(self.rng.integers(2))
        else:
            _, rows, columns, _ = tensor.shape
            pixel = size // (rows * columns)
            blocks = [*self.windows, (1, 1), (rows, columns)]
            height, width = blocks[self.rng.integers(len(blocks))]
            row, column = (
                each * int(self.rng.integers(-(-whole // each) + 1)) - int(self.rng.integers(2))
                for each, whole in ((height, rows), (width, columns))
            )
            row, column = min(max(row, 0), rows - 1), min(max(column, 0), columns - 1)
            at = (row * columns + column) * pixel + int(self.rng.choice([0, pixel - 1]))
        return min(max(at, 0), size - 1)


def _same(source: HostileInputs) -> Arrays:
    return source.history[-1]


def _back(source: HostileInputs) -> Arrays:
    """Return the inputs before the last ones: A, B, A."""
    return source.history[-2 if len(source.history) > 1 else -1]


def _any_earlier(source: HostileInputs) -> Arrays:
    return source.history[source.rng.integers(len(source.history))]


def _one_byte(source: HostileInputs, given: Arrays | None = None) -> Arrays:
    """Change one bit, or all, of one byte."""

    def change(data: NDArray[np.uint8], tensor: Tensor) -> None:
        at = source.border(data.size, tensor)
        data[at] ^= 1 << source.rng.integers(8) if source.rng.integers(2) else source.rng.integers(1, 256)

    return source.edited(source.history[-1] if given is None else given, change)


def _two_bytes(source: HostileInputs, change: Callable[[NDArray[np.uint8], int, int], None]) -> Arrays:
    def both(data: NDArray[np.uint8], tensor: Tensor) -> None:
        if data.size > 1:
            first = source.border(data.size, tensor)
            second = source.border(data.size, tensor)
            change(data, first, second if second != first else (first + 1) % data.size)

    return source.edited(source.history[-1], both)


def _equal_sum(source: HostileInputs) -> Arrays:
    """Add a number to one byte and subtract it from another one: the sum modulo 256 remains."""
    by = int(source.rng.integers(1, 256))

    def change(data: NDArray[np.uint8], first: int, second: int) -> None:
        data[first] = (int(data[first]) + by) % 256
        data[second] = (int(data[second]) - by) % 256

    return _two_bytes(source, change)


def _equal_xor(source: HostileInputs) -> Arrays:
    """Change the same bits of two bytes: the exclusive or remains."""
    by = np.uint8(source.rng.integers(1, 256))

    def change(data: NDArray[np.uint8], first: int, second: int) -> None:
        data[[first, second]] ^= by

    return _two_bytes(source, change)


def _swap(source: HostileInputs) -> Arrays:
    """Exchange two bytes: every function of the set of bytes remains."""

    def change(data: NDArray[np.uint8], first: int, second: int) -> None:
        data[[first, second]] = data[[second, first]]

    return _two_bytes(source, change)


def _equal_weighted_sum(source: HostileInputs) -> Arrays:
    """Add 1, -2 and 1 to three adjacent bytes: sum and sum of prefix sums remain, as in Fletcher's and Adler's sums."""

    def change(data: NDArray[np.uint8], tensor: Tensor) -> None:
        at = source.border(data.size, tensor)
        at = min(at, data.size - 3)
        if at >= 0 and data[at] < 255 and data[at + 1] > 1 and data[at + 2] < 255:
            before = zlib.adler32(data.tobytes())
            data[at : at + 3] += np.array([1, 254, 1], np.uint8)
            assert zlib.adler32(data.tobytes()) == before

    return source.edited(source.history[-1], change)


def _equal_crc(source: HostileInputs) -> Arrays:
    """Change the bits of a multiple of the generator polynomial: CRC-32 remains."""

    def change(data: NDArray[np.uint8], tensor: Tensor) -> None:
        if data.size < 5:
            return
        before, bits = zlib.crc32(data.tobytes()), np.unpackbits(data, bitorder="little")
        at = min(8 * source.border(data.size, tensor) + int(source.rng.integers(8)), bits.size - 33)
        polynomial = [1, *(_CRC_POLYNOMIAL >> i & 1 for i in range(32))]
        bits[at : at + 33] ^= np.array(polynomial, np.uint8)
        data[:] = np.packbits(bits, bitorder="little")
        assert zlib.crc32(data.tobytes()) == before

    return source.edited(source.history[-1], change)


def _saturating(source: HostileInputs) -> Arrays:
    """Make the difference of a byte 128 or 255, which saturates as int8, or -128, whose negative does."""

    def change(data: NDArray[np.uint8], tensor: Tensor) -> None:
        at = source.border(data.size, tensor)
        pairs = {0x80: 0x7F, 0x7F: 0x80, 0x00: 0x80}
        data[at] = pairs.get(int(data[at]), int(data[at]) ^ 0x80)

    return source.edited(source.history[-1], change)


def _zero_point(source: HostileInputs) -> Arrays:
    """Set bytes to zero points, or to zero."""

    def change(data: NDArray[np.uint8], tensor: Tensor) -> None:
        zero = tensor.quantization.zero_point[0] if tensor.quantization else 0
        at = source.border(data.size, tensor)
        end = at + int(source.rng.integers(1, source.config.n + 1))
        data[at:end] = source.rng.choice([zero & 0xFF, 0, (zero + 128) & 0xFF])

    return source.edited(source.history[-1], change)


def _all_bytes(source: HostileInputs) -> Arrays:
    """Change all bytes: by the same number, by their complement or their negative, or to the same byte."""
    by, draw = int(source.rng.integers(1, 256)), source.rng.integers(4)

    def change(data: NDArray[np.uint8], _tensor: Tensor) -> None:
        made = (data + by, ~data, -data, np.full_like(data, by))[draw]
        data[:] = made.astype(np.uint8)

    return source.edited(source.history[-1], change)


def _order(source: HostileInputs) -> Arrays:
    """Change the order of bytes: reversed, rotated by a byte or a row, bytes of words exchanged, or at random."""
    draw = source.rng.integers(5)

    def change(data: NDArray[np.uint8], _tensor: Tensor) -> None:
        pairs = data[: data.size // 2 * 2].reshape(-1, 2)[:, ::-1].reshape(-1)
        made = (
            data[::-1],
            np.roll(data, 1),
            np.roll(data, source.config.n),
            np.concatenate([pairs, data[pairs.size :]]),
            source.rng.permutation(data),
        )[draw]
        data[:] = made.copy()

    return source.edited(source.history[-1], change)


def _lines(source: HostileInputs) -> Arrays:
    """Exchange two rows or two columns of an image, or mirror it."""
    tensor = source.tensors[int(source.rng.integers(len(source.tensors)))]
    array = source.history[-1][tensor.name].copy()
    axis = int(source.rng.integers(array.ndim))
    a, b = source.rng.integers(array.shape[axis], size=2)
    moved = np.moveaxis(array, axis, 0)
    moved[[a, b]] = moved[[b, a]]
    return {
        **source.history[-1],
        tensor.name: array[:, ::-1].copy() if source.rng.integers(4) == 0 else array,
    }


def _rectangle(source: HostileInputs) -> Arrays:
    """Draw a rectangle of an image, or a range of another input, anew."""
    tensor = source.tensors[int(source.rng.integers(len(source.tensors)))]
    array = source.history[-1][tensor.name].copy()
    part = array
    for axis in range(1, array.ndim):
        start = int(source.rng.integers(array.shape[axis]))
        end = start + int(source.rng.integers(1, array.shape[axis] // 2 + 2))
        part = part[(slice(None),) * axis + (slice(start, end),)]
    part[...] = source.drawn()[tensor.name].reshape(-1)[: part.size].reshape(part.shape)
    return {**source.history[-1], tensor.name: array}


def _two_places(source: HostileInputs) -> Arrays:
    """Change the first and the last byte of an input."""

    def change(data: NDArray[np.uint8], _tensor: Tensor) -> None:
        data[[0, -1]] ^= np.uint8(1 + source.rng.integers(255))

    return source.edited(source.history[-1], change)


def _new(source: HostileInputs) -> Arrays:
    return source.drawn()


CHANGES: Sequence[Callable[..., Arrays]] = (
    _same,
    _same,
    _same,
    _back,
    _back,
    _any_earlier,
    _one_byte,
    _one_byte,
    _one_byte,
    _equal_sum,
    _equal_xor,
    _swap,
    _equal_weighted_sum,
    _equal_crc,
    _saturating,
    _zero_point,
    _all_bytes,
    _order,
    _lines,
    _rectangle,
    _two_places,
    _new,
)


# --- Networks ---


@dataclass(frozen=True, eq=False)
class Victim:
    """Network under attack.

    Parameters
    ----------
    name : str
        Name, for messages.
    usual, following : CompiledNetwork
        The network as usual, and with programs that follow the data.
    exact, answer : callable
        Reference for the outputs of both.
    special : sequence of dict
        Inputs with a meaning for the guards.
    """

    name: str
    usual: CompiledNetwork
    following: CompiledNetwork
    exact: Answer
    answer: Answer
    special: Sequence[Arrays] = ()

    @property
    def windows(self) -> list[tuple[int, int]]:
        """Heights and widths of the windows of an image, and of their halves and thirds, in pixels."""
        found = {size for code in self.following.codes if code.regions for size in code.regions.windows}
        parts = {(max(h // k, 1), max(w // k, 1)) for h, w in found for k in (1, 2, 3)}
        return sorted(parts)


def dense(draft: Draft, x: str, inputs: int, outputs: int, *, relu: bool = False, **meaning: Any) -> str:
    """Add a dense layer."""
    settings = options(
        "FullyConnected",
        fusedActivationFunction=schema.ActivationFunctionType.RELU if relu else 0,
        weightsFormat=0,
        keepNumDims=False,
    )
    weights, bias = draft.weights((outputs, inputs), 0, x)
    meaning = {"scale": 0.15 * inputs**0.5} | meaning
    return draft.op("FULLY_CONNECTED", [x, weights, bias], (1, outputs), settings, **meaning)


def conv(
    draft: Draft,
    x: str,
    shape: tuple[int, ...],
    channels: int,
    *,
    size: int = 3,
    stride: int = 1,
    deep: bool = False,
) -> tuple[str, tuple[int, ...]]:
    """Add a convolution, or if `deep` a depthwise one; return its result and the shape of the result."""
    _, h, w, c = shape
    made = (1, -(-h // stride), -(-w // stride), c if deep else channels)
    settings = {"padding": schema.Padding.SAME, "strideH": stride, "strideW": stride}
    settings |= {
        "dilationHFactor": 1,
        "dilationWFactor": 1,
        "fusedActivationFunction": schema.ActivationFunctionType.RELU,
    }
    if deep:
        weights, bias = draft.weights((1, size, size, c), 3, x)
        given = options("DepthwiseConv2D", depthMultiplier=1, **settings)
        return draft.op("DEPTHWISE_CONV_2D", [x, weights, bias], made, given, scale=0.3), made
    weights, bias = draft.weights((channels, size, size, c), 0, x)
    given = options("Conv2D", **settings)
    return draft.op("CONV_2D", [x, weights, bias], made, given, scale=0.15 * (size * size * c) ** 0.5), made


def vector(rng: Rng, dtype: str = "int8", size: int = 37) -> Draft:
    """Return two dense layers on a vector whose size is not a multiple of N."""
    draft = Draft(rng, dtype)
    x = dense(draft, draft.input((1, size), scale=0.05), size, 24, relu=True)
    draft.then(dense(draft, x, 24, 7))
    return draft


def image(rng: Rng, dtype: str = "int8", shape: tuple[int, ...] = (1, 24, 26, 3)) -> Draft:
    """Return convolutions of an image, and the mean of all pixels."""
    draft = Draft(rng, dtype)
    x = draft.input(shape, scale=0.05)
    y, shape = conv(draft, x, shape, 16)
    y, shape = conv(draft, y, shape, 16, deep=True, stride=2)
    y, shape = conv(draft, y, shape, 16, size=1)
    y, shape = conv(draft, y, shape, 16)
    pool = options(
        "Pool2D",
        padding=schema.Padding.VALID,
        strideH=1,
        strideW=1,
        filterHeight=shape[1],
        filterWidth=shape[2],
        fusedActivationFunction=0,
    )
    draft.then(draft.op("AVERAGE_POOL_2D", [y], (1, 1, 1, 16), pool, like=y))
    return draft


def from_draft(draft: Draft, folder: Path, target: Any, name: str, **following: Any) -> Victim:
    """Compile a TFLite file with and without options of dispatch; LiteRT is the reference."""
    path = folder / f"{name}.tflite"
    path.write_bytes(draft.file())
    usual, made = (compile(path, target, cache=False, database=False, **each) for each in ({}, following))
    answer = LiteRt(draft.file())
    return Victim(name, usual, made, answer, answer)


def from_graph(graph: Graph, target: str, name: str, host: tuple[str, ...] = (), **following: Any) -> Victim:
    """Compile a graph with and without options of dispatch; the numpy reference is the reference."""
    usual, made = (compile(graph, target, host=host, **each) for each in ({}, following))
    answer = partial(evaluate, graph)
    return Victim(name, usual, made, answer, answer)


def two_stages(rng: Rng) -> tuple[Graph, tuple[str, ...]]:
    """Return a graph of two stages, of which the second has an input of its own, and the node between them."""
    draft = GraphDraft(rng)
    x, other = draft.input((1, 20)), draft.input((1, 24))
    y = draft.node("dense", [x, draft.constant((24, 20))], (1, 24), scale=20.0)
    z = draft.node("clip", [y], (1, 24), like=y, low=-100.0, high=100.0)
    out = draft.node("add", [z, other], (1, 24), scale=20.0)
    return draft.graph.finish([out.name]), (f"make {z.name}",)


def with_zeros(victim: Victim) -> Victim:
    """Return a network with inputs that are zero points, and their neighbours."""
    special = []
    for by in (0, 0, 1, -1, 128):
        made = {}
        for tensor in victim.usual.inputs:
            limits, zero = np.iinfo(tensor.dtype), tensor.quantization.zero_point[0]  # type: ignore[union-attr]
            value = min(max(zero + by, limits.min), limits.max)
            made[tensor.name] = np.full(tensor.shape, value, tensor.dtype)
        special.append(made)
    return replace(victim, special=special)


def reused(folder: Path) -> list[Victim]:
    """Return networks that reuse their results."""
    rng = np.random.default_rng(1)
    stages, host = two_stages(rng)
    return [
        from_draft(vector(rng), folder, "n4", "vector", reuse=True),
        from_draft(vector(rng, "uint8", 16), folder, "n16", "vector of a row", reuse=True),
        from_draft(image(rng, "uint8", (1, 9, 7, 2)), folder, "n4", "small image", reuse=True),
        from_graph(layers_of_two_inputs(rng), "n4", "two inputs", reuse=True),
        from_graph(stages, "n4", "two stages", host, reuse=True),
    ]


def regional(folder: Path) -> list[Victim]:
    """Return networks that compute only what depends on changed regions."""
    rng = np.random.default_rng(2)
    return [
        from_draft(image(rng), folder, "n16", "image", reuse="regions"),
        from_draft(image(rng, shape=(1, 33, 20, 1)), folder, "n16", "gray image", reuse="regions"),
        from_graph(graph_of("two_inputs", rng), "n16", "image and vector", reuse="regions"),
    ]


def skipping(folder: Path) -> list[Victim]:
    """Return networks that skip layers after an input, or an intermediate tensor, of zeros."""
    rng = np.random.default_rng(3)
    found = []
    for dtype, size in (("int8", 37), ("uint8", 16)):
        draft = vector(rng, dtype, size)
        name = f"{dtype} input"
        found.append(with_zeros(from_draft(draft, folder, "n4", name, skip=draft.inputs[0])))
    for name, zero in (("minimum", -128), ("probe", 5)):
        draft = Draft(rng, "int8")
        x = draft.input((1, 20), scale=0.05, zero=0)
        # Small activations and a negative bias, so that the result is often zero.
        y = dense(draft, x, 20, 12, relu=True, scale=2.0, zero=zero)
        bias = draft.operators[-1].inputs[2]
        draft.tensors[bias] = np.full(12, -12_000, np.int32)
        draft.then(dense(draft, dense(draft, y, 12, 16), 16, 7))
        found.append(with_zeros(from_draft(draft, folder, "n4", f"{name} of a ReLU", skip=y)))
    return found


def cascades(_folder: Path) -> list[Victim]:
    """Return cascades whose thresholds are confidences of some samples, and those above."""
    found = []
    for dtype in ("int8", "uint8"):
        graph: Graph = classifier(np.random.default_rng(3), dtype)
        few, exact = narrowed(graph, 3), partial(evaluate, graph)
        samples = samples_of_classes(graph, 24, 5)
        confidence = sorted({int(evaluate(few, each)["share"].max()) for each in samples})
        middle = confidence[len(confidence) // 2]
        for threshold in (middle, middle + 1):
            made, answer = cascade_of(graph, few, threshold), partial(_cascade, graph, few, threshold)
            name = f"{dtype}, threshold {threshold}"
            found.append(Victim(name, compile(graph, "n4"), made, exact, answer, samples))
    return found


def _cascade(graph: Graph, few: Graph, threshold: int, inputs: Arrays) -> Arrays:
    """Return the outputs of the narrow graph if its largest output is at least the threshold, else the exact ones."""
    narrow = evaluate(few, inputs)
    return narrow if int(narrow["share"].max()) >= threshold else evaluate(graph, inputs)


def crowded(folder: Path) -> list[Victim]:
    """Return networks whose programs do not fit the instruction store together, so that each change evicts some."""
    rng, found = np.random.default_rng(4), []
    small = image(rng, shape=(1, 20, 20, 3))
    for name, draft, reuse, config in (
        ("crowded vector", vector(rng), True, replace(load_target("n4"), wis_words=256)),
        ("crowded image", small, "regions", replace(load_target("n8"), wis_words=2048)),
    ):
        victim = from_draft(draft, folder, config, name, reuse=reuse)
        codes = (code for network in (victim.usual, victim.following) for code in network.codes)
        assert sum(len(each.words) for code in codes for each in code.all_programs) > config.wis_words
        found.append(victim)
    return found


# --- Streams ---


@dataclass
class StreamChecks:
    """Checks of streams, with counts of what happened.

    Parameters
    ----------
    rtl : bool
        True to run on the RTL, False on the golden model.
    proofs : ContentStore or None
        Proofs of programs at addresses at which they were proved before.
    """

    rtl: bool = False
    proofs: ContentStore | None = None
    tally: Counter[str] = field(default_factory=Counter)

    def device(self, network: CompiledNetwork, size: int) -> GoldenDevice | RtlDevice:
        """Return a device with `size` bytes of DRAM."""
        return (RtlDevice if self.rtl else GoldenDevice)(network.config, size)

    def versions(self, victim: Victim, seed: int, count: int) -> None:
        """Check streams in which requests run on the usual version, on another one, or on that which follows the data.

        Parameters
        ----------
        victim : Victim
            Network.
        seed, count : int
            Seed, and number of streams on one machine.
        """
        rng = np.random.default_rng([seed, zlib.crc32(victim.name.encode())])
        usual, following = victim.usual, victim.following
        size = serving_bytes(usual, versions=3) + 2 * version_bytes(following)
        with self.device(usual, size) as device:
            server = Server(device, usual, int(rng.integers(1, 5)), self.proofs)
            run = _VersionsRun(self, victim, server, rng, f"{victim.name}, seed {seed}")
            for number in range(count):
                run.stream(number)
                self.tally["streams"] += 1

    def batches(self, victim: Victim, seed: int, count: int) -> None:
        """Check streams of batches of any number of samples, whose padding is random."""
        rng = np.random.default_rng([seed, 7])
        network = victim.following
        with self.device(network, serving_bytes(network, 3, 2)) as device:
            server = Server(device, network, 3)
            other = server.add(network)[0]
            for number in range(count):
                where = f"{victim.name}, seed {seed}, stream {number}"
                source = HostileInputs(rng, network.sample, network.config)
                server.switch(other if rng.integers(2) else server.current)
                (self._combined if rng.integers(2) else self._padded)(server, victim, source, where)
                self.tally["streams"] += 1

    def _combined(self, server: Server, victim: Victim, source: HostileInputs, where: str) -> None:
        """Submit single requests, which the server combines."""
        batcher, found, given = DynamicBatcher(server), list[RequestResult](), list[Arrays]()
        for _ in range(int(source.rng.integers(*LENGTHS)) * 2):
            attack, inputs = source.next()
            self.tally[attack] += 1
            batcher.submit(Request(inputs))
            given.append(inputs)
            found += batcher.results(wait=bool(source.rng.integers(4) == 0))
        found += batcher.results(wait=True)
        for number, (inputs, result) in enumerate(zip(given, found, strict=True)):
            self.tally[f"together {result.batch_size}"] += 1
            _check(result.outputs, victim.answer(inputs), f"{where}, request {number}")

    def _padded(self, server: Server, victim: Victim, source: HostileInputs, where: str) -> None:
        """Submit batches with a number of valid samples; the others are samples that might be mistaken for them."""
        network, groups = victim.following, dict[int, list[Arrays]]()
        first = server.submitted
        for _ in range(int(source.rng.integers(*LENGTHS))):
            attack, inputs = source.next()
            self.tally[attack] += 1
            count = int(source.rng.integers(1, network.batch + 1))
            group = [inputs, *(source.next()[1] for _ in range(network.batch - 1))]
            groups[server.submit(stack_batch(network, group), count)] = group[:count]
        results = server.results(wait=True)
        assert [result.index for result in results] == list(range(first, server.submitted))
        for result in results:
            group = groups[result.index]
            parts = split_batch(network, result.outputs, len(group))
            for inputs, outputs in zip(group, parts, strict=True):
                _check(outputs, victim.answer(inputs), f"{where}, request {result.index - first}")

    def lengths(self, network: CompiledNetwork, answer: Answer, seed: int, count: int) -> None:
        """Check streams of sequences of any length, of which a shorter one is often the beginning of a longer one."""
        rng = np.random.default_rng([seed, 8])
        assert network.lengths is not None
        values = network.lengths.values
        ends = [length for each in network.lengths.longest for length in (each, each + 1) if length in values]
        (tensor,) = network.inputs
        with self.device(network, serving_bytes(network, 1, 2)) as device:
            server = Server(device, network, 1)
            versions = [server.current, server.add(network)[0]]
            for number in range(count):
                source = HostileInputs(rng, network.inputs, network.config)
                for request in range(int(rng.integers(*LENGTHS))):
                    attack, inputs = source.next()
                    self.tally[attack] += 1
                    length = int(rng.choice(ends if rng.integers(2) else values))
                    part = {tensor.name: np.ascontiguousarray(inputs[tensor.name][:length])}
                    server.submit(part, version=versions[rng.integers(2)])
                    (result,) = server.results(wait=True)
                    where = f"lengths, seed {seed}, stream {number}, request {request}: {length}, {attack}"
                    _check(result.outputs, answer(part), where)
                self.tally["streams"] += 1


class _VersionsRun:
    """Streams on one machine; the parameters are those of `StreamChecks.versions`."""

    def __init__(self, checks: StreamChecks, victim: Victim, server: Server, rng: Rng, where: str):
        self.checks, self.victim, self.server, self.rng, self.where = checks, victim, server, rng, where
        layers = victim.usual.schedule.layers
        apart = {name: replace(each, same_program_as_previous=False) for name, each in layers.items()}
        schedule = replace(victim.usual.schedule, layers=apart)
        self.usual = [server.current]
        graph, rounding = victim.usual.graph, victim.usual.rounding
        if graph is not None and not victim.usual.host:
            other = compile(graph, victim.usual.config, schedule=schedule, rounding=rounding)
            self.usual.append(server.add(other)[0])
        self.following = server.add(victim.following)[0]
        self.rejected = False
        server.rejects = self._rejects

    def _rejects(self, _result: RequestResult) -> bool:
        """Reject a result once, so that all requests in flight run again."""
        again, self.rejected = self.rejected, False
        return again

    def stream(self, number: int) -> None:
        """Run one stream, and check all outputs."""
        victim, rng, server = self.victim, self.rng, self.server
        source = HostileInputs(rng, victim.usual.inputs, victim.usual.config, victim.windows, victim.special)
        chooser = self._chooser() if rng.integers(2) else None
        always = bool(rng.integers(2))
        sent, found = list[tuple[str, Arrays]](), list[RequestResult]()
        first = 0 if isinstance(chooser, AuditedServer) else server.submitted
        for _ in range(int(rng.integers(*LENGTHS))):
            if rng.random() < 0.4:
                found += self._event(chooser)
            attack, inputs = source.next()
            sent.append((attack, inputs))
            if chooser is not None:
                chooser.submit(Request(inputs))
            else:
                server.submit(inputs, version=self.following if always or rng.integers(2) else None)
            found += (chooser or server).results()
        self.rejected = False
        found += (chooser or server).results(wait=True)
        assert [result.index for result in found] == list(range(first, first + len(sent)))
        for request, ((attack, inputs), result) in enumerate(zip(sent, found, strict=True)):
            follows = result.version.network is victim.following
            self._count(attack, result)
            wanted = (victim.answer if follows else victim.exact)(inputs)
            _check(result.outputs, wanted, f"{self.where}, stream {number}, request {request}: {attack}")

    def _chooser(self) -> ReusingServer | AuditedServer | None:
        """Return the object that chooses versions as `mla serve` does; None if it always takes the same."""
        if any(code.mutable for code in self.victim.following.codes):
            return ReusingServer(self.server, self.following)
        if self.victim.answer is not self.victim.exact:
            return AuditedServer(self.server, self.following, 0.5, int(self.rng.integers(1 << 30)))
        return None

    def _count(self, attack: str, result: RequestResult) -> None:
        tally = self.checks.tally
        tally[attack] += 1
        tally["requests"] += 1
        short = {v.program.name for part in self.following.parts for v in part.instead}
        if result.version.network is self.victim.following:
            tally[
                "short programs" if any(m.program in short for m in result.macros) else "other programs"
            ] += 1

    def _event(self, chooser: ReusingServer | AuditedServer | None) -> list[RequestResult]:
        """Disturb the server; return results that became complete."""
        server, draw = self.server, self.rng.integers(6)
        if draw == 0:  # other programs for the next usual request, in the middle of requests in flight
            server.switch(self.usual[self.rng.integers(len(self.usual))])
            return []
        if (
            draw == 1
        ):  # requests in flight run again, on the current version, after the copies have been restored
            self.rejected = server.busy > 0
            return []
        if draw == 2:  # programs without requests in flight are evicted
            server.queue.resident_programs.unload([*self.following.parts, *server.current.parts], [])
            return []
        found = (chooser or server).results(wait=True)
        if draw == 3:  # memory that no result may depend on
            self._overwrite(self.following)
        elif draw == 4 and chooser is None:  # the version is loaded again, often to another place
            server.drop(self.following)
            start, end = self.following.window
            server.driver.put(self.rng.integers(0, 256, end + 1 - start).astype(np.uint8), start)
            self.following = server.add(self.victim.following)[0]
        return found

    def _overwrite(self, version: Version) -> None:
        """Write random bytes to the requests' buffers with their padding, and to the work areas."""
        start, end, _ = self.server.versions.buffers.window
        spans = [(start, end + 1)]
        for base, code in zip(version.bases, version.network.codes, strict=True):
            spans.append((base + code.image.size, base + code.memory))
        for low, high in spans:
            if low < high:
                self.server.driver.put(self.rng.integers(0, 256, high - low).astype(np.uint8), low)


def _check(found: Mapping[str, NDArray], wanted: Mapping[str, NDArray], where: str) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert np.array_equal(found[name], array), f"{where}: output {name!r} is wrong"


def several_lengths(folder: Path) -> tuple[CompiledNetwork, Answer]:
    """Return a matrix product with 3 to 40 rows, and its reference in onnxruntime."""
    net = Qdq()
    w = net.weights("w", integers(24, 20, seed=5), 2**-6, axis=1)
    net.quantized(net.add("MatMul", f"{net.real('x', 2**-4)} {w}", "product"), 2**-3)
    made = model(net.nodes, {"x": integers(4, 24)}, ["y"], net.held)
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = TOKENS
    path = folder / "rows.onnx"
    onnx.save(made, path)
    network = compile(path, "n16", sizes={TOKENS: range(3, 41)}, cache=False, database=False)
    return network, partial(reference, made)


def several_sizes(folder: Path) -> list[Victim]:
    """Return networks with programs for several batch sizes."""
    return [from_draft(vector(np.random.default_rng(6)), folder, "n4", "batches", batches=(1, 2, 5))]


#: Networks whose versions are attacked, by kind, with the number of streams of each network of 1,000 in `make soak`.
KINDS: Mapping[str, tuple[Callable[[Path], list[Victim]], int]] = {
    "reuse": (reused, 60),
    "regions": (regional, 70),
    "skip": (skipping, 50),
    "cascade": (cascades, 40),
    "evictions": (crowded, 15),
}
#: Kinds that run on machines for which there are simulators.
RTL_KINDS = ("reuse", "regions", "skip", "cascade")
#: Number of streams of several batch sizes, and of several lengths.
BATCH_STREAMS, LENGTH_STREAMS = 60, 60


# --- What the comparison computes, for all bytes ---


def _if_none_is_zero(network: CompiledNetwork) -> CompiledNetwork:
    """Return a network whose short program runs if no difference is zero, instead of if all are."""
    (stage,) = network.stages
    assert stage.code is not None
    *before, last = stage.code.parts
    (short,) = last.instead
    assert str(short.guard).startswith("%fuse_zeros == ")
    changed = replace(last, instead=(replace(short, guard=equal(Statistic.FUSE_ZEROS, 0)),))
    code = replace(stage.code, parts=(*before, changed))
    return replace(network, stages=(replace(stage, code=code),))


def _requantized(size: int, dtype: str, zero: int) -> Graph:
    """Return a graph of one conversion of a vector."""
    draft = GraphDraft(np.random.default_rng(0))
    meaning = Quantization.per_tensor(0.1, zero)
    x = draft.graph.add_input(Tensor("x", (1, size), dtype, meaning))
    y = draft.into("requantize", [x], Tensor("y", x.shape, dtype, Quantization.per_tensor(0.3, zero)))
    return draft.graph.finish([y.name])


def check_equality_of_bytes(device: type[GoldenDevice] | type[RtlDevice]) -> None:
    """Check that the difference of two bytes is zero if and only if they are equal, for all 65,536 pairs.

    The guard is replaced by one that holds if no difference is zero: it holds for all 65,280 pairs of different bytes
    together, and no longer if one pair, at any lane, is equal.
    """
    pairs = np.array([(a, b) for a in range(256) for b in range(256) if a != b], np.uint8).view(np.int8)
    network = _if_none_is_zero(compile(_requantized(len(pairs), "int8", 0), "n16", reuse=True))
    first, second = ({"x": np.ascontiguousarray(pairs[:, side])[None]} for side in (0, 1))
    with device(network.config, dram_bytes(network)) as machine:
        session = Session(machine, network)

        def taken(inputs: Arrays) -> bool:
            before = session.taken[0][0]
            session.run(inputs)
            return session.taken[0][0] > before

        assert not taken(first)  # some bytes are zero, as those of the first copy
        assert taken(second)  # the copy is still the first one
        for at in (0, 7, 15, 16, len(pairs) - 1):
            equal_once = second["x"].copy()
            equal_once[0, at] = first["x"][0, at]
            assert not taken({"x": equal_once}) and not taken(first)
        assert taken(second)


def check_zero_points(device: type[GoldenDevice] | type[RtlDevice], dtype: str, zeros: Sequence[int]) -> None:
    """Check that the probe of `skip` counts a value as zero if and only if it is the zero point, for all values."""
    limits = np.iinfo(dtype)
    for zero in zeros:
        network = _if_none_is_zero(compile(_requantized(255, dtype, zero), "n4", skip="x"))
        others = np.array([[v for v in range(limits.min, limits.max + 1) if v != zero]], dtype)
        with device(network.config, dram_bytes(network)) as machine:
            session = Session(machine, network)
            session.run({"x": others})
            assert session.taken == [Counter({0: 1})], f"{dtype}, zero point {zero}"
            for at in (0, 3, 4, 254):
                once = others.copy()
                once[0, at] = zero
                session.run({"x": once})
            assert session.taken == [Counter({0: 1, 1: 4})], f"{dtype}, zero point {zero}"
