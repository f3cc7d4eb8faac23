"""Data structures of a compiled network: stages, layers, control flow and batch variants."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from compiler.cache.digest import name
from compiler.codegen.executable import StageExecutable
from compiler.cost.roofline import Floor
from compiler.ir.graph import Graph
from compiler.ir.identity import identity
from compiler.ir.ops import Attributes
from compiler.ir.tensor import Tensor, signature
from compiler.layers.base import Layer
from compiler.lowering.partition import HostNode
from compiler.passes.kernel_sizes import Rewritten
from compiler.passes.redundant_nodes import Removed
from compiler.quantize.report import QuantizationReport
from compiler.schedule.schedule import Schedule
from compiler.util import checks
from hw.config import MlaConfig
from hw.errors import InputError, shown

_log = logging.getLogger(__name__)


@identity("LayerInfo", "name", "nodes", "ops", "floor", "tag", "program", "shape", added=("shape",))
@dataclass(frozen=True)
class LayerInfo:
    """Layer as shown in reports.

    Parameters
    ----------
    name : str
        Name of the layer (`compiler.layers.base.Layer`), which identifies it in schedules, measurements and reports.
    nodes, ops : tuples of str
        Names of the model's nodes that the layer computes, and their operators.
    floor : Floor
        Minimum work of the layer.
    tag : int
        Counter tag of its cycles.
    program : str
        Name of the first program with commands of the layer.
    shape : str
        Digest of the layer without names and weights (`compiler.cache.digest.shape_of`), by which schedules are found
        in the database; empty if unknown.
    """

    name: str
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    floor: Floor
    tag: int
    program: str
    shape: str = ""


@dataclass(frozen=True)
class ProgramSource:
    """Source of the schedule of a layer.

    Parameters
    ----------
    layer, subgraph : str
        Name of the layer, and its digest (`compiler.cache.digest.shape_of`).
    source : str
        "static" if the compiler chose the schedule by estimates, "database" if it was measured before.
    proposer : str or None
        Search method that proposed the schedule.
    cycles : int or None
        Measured cycles of the layer under this schedule, possibly in another network. Of layers that were measured
        together, the first has the cycles of all, and the others have None.
    macro : str or None
        Name of the learned macro-instruction (`mla isa`) from which the program of the layer was made.
    group : tuple of str
        Names of the layers that were measured together or belong to the macro-instruction; empty for a single layer.
    """

    layer: str
    subgraph: str
    source: str = "static"
    proposer: str | None = None
    cycles: int | None = None
    macro: str | None = None
    group: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Stage:
    """Nodes that run without interruption on the accelerator or on the host, or one control-flow node.

    Parameters
    ----------
    inputs, outputs : tuples of Tensor
        Tensors that the stage reads and writes.
    code : StageExecutable or None
        Programs of a stage on the accelerator.
    graph : Graph or None
        Nodes of a stage on the host.
    infos : tuple of LayerInfo
        Layers of a stage on the accelerator.
    control : Control or None
        Control-flow node with its subgraphs.
    floor : Floor or None
        Minimum work of an accelerator stage in a subgraph, counting only weights as DRAM traffic.
    spared : Floor or None
        Work saved when the stage's skip program runs.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    code: StageExecutable | None = None
    graph: Graph | None = None
    infos: tuple[LayerInfo, ...] = ()
    control: "Control | None" = None
    floor: Floor | None = None
    spared: Floor | None = None

    def walk(self) -> "Iterator[Stage]":
        """Yield the stage and the stages of its subgraphs."""
        yield self
        for body in self.control.bodies if self.control else ():
            for stage in body.stages:
                yield from stage.walk()


@dataclass(frozen=True, eq=False)
class Body:
    """Subgraph of a control-flow node: inputs, outputs (some may be constants) and stages."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    stages: tuple[Stage, ...]


@dataclass(frozen=True, eq=False)
class Control:
    """Control-flow node (compiler/ir/control.py); the host evaluates conditions and trip counts.

    Parameters
    ----------
    name, op, attributes : str, str, dict
        Name, operator and attributes of the node.
    operands, outputs : tuples of Tensor
        Tensors in the order of the node; constants have their contents.
    bodies : tuple of Body
        Subgraphs of the node.
    """

    name: str
    op: str
    attributes: Attributes
    operands: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    bodies: tuple[Body, ...]


def control_of(graph: Graph, stages: Sequence[tuple[Stage, ...]]) -> Control:
    """Return the single control-flow node of a graph, with the stages of its subgraphs."""
    (node,) = graph
    bodies = (
        Body(
            tuple(body.tensors[n] for n in body.inputs), tuple(body.tensors[n] for n in body.outputs), inside
        )
        for body, inside in zip(node.bodies, stages, strict=True)
    )
    outputs = tuple(graph.tensors[n] for n in node.outputs)
    return Control(node.name, node.op, node.attributes, tuple(graph.ins(node)), outputs, tuple(bodies))


@identity("NetworkState", "input", "output", "initial")
@dataclass(frozen=True, eq=False)
class NetworkState:
    """State of a network: a tensor that keeps its contents from one sample to the next.

    Parameters
    ----------
    input, output : Tensor
        Tensor that the stages read, and tensor that they compute for the next sample.
    initial : array
        Contents for the first sample.
    """

    input: Tensor
    output: Tensor
    initial: NDArray

    @property
    def name(self) -> str:
        """Name of the state, for messages and reports."""
        return self.input.name


@identity("Smaller", "batch", "floor", "infos")
@dataclass(frozen=True)
class BatchVariant:
    """Programs of a network for a smaller batch.

    Parameters
    ----------
    batch : int
        Maximum number of samples of these programs.
    floor : Floor
        Minimum work of these programs.
    infos : tuple of LayerInfo
        Layers of all stages.
    """

    batch: int
    floor: Floor
    infos: tuple[LayerInfo, ...]


#: Operators on the host that convert each element by itself, so that shapes may depend on a length.
CONVERSIONS = ("quantize", "dequantize", "cast")


@dataclass(frozen=True)
class NetworkLengths:
    """Lengths of a sequence for which a network has programs.

    Parameters
    ----------
    name : str
        Name of the dynamic dimension.
    values : tuple of int
        Lengths in ascending order. The shapes of the network are those for the longest.
    operands : tuple of tuple of int
        For each length, the operands after the addresses, the first of which is the length.
    growth : tuple of (str, tuple of int)
        For each input, output, and tensor between stages, its name and the change of each of its sizes per unit of the
        length.
    floors : tuple of tuple of Floor
        For each length, the minimum work of the network, and that of each layer.
    longest : tuple of int
        Maximum length of each program, in the order in which the hardware tests them.
    """

    name: str
    values: tuple[int, ...]
    operands: tuple[tuple[int, ...], ...]
    growth: tuple[tuple[str, tuple[int, ...]], ...]
    floors: tuple[tuple[Floor, ...], ...]
    longest: tuple[int, ...]

    @property
    def text(self) -> str:
        """The lengths as text, for messages."""
        steps = {after - before for before, after in pairwise(self.values)}
        step = f" in steps of {steps.pop()}" if steps != {1} and len(steps) == 1 else ""
        return f"{self.values[0]} to {self.values[-1]}{step}"

    def tensor(self, tensor: Tensor, length: int) -> Tensor:
        """Return a tensor of the network with its shape for a length; constants and other tensors are unchanged."""
        growth = dict(self.growth).get(tensor.name)
        if growth is None or tensor.data is not None:
            return tensor
        less = self.values[-1] - length
        shape = tuple(size - less * each for size, each in zip(tensor.shape, growth, strict=True))
        return replace(tensor, shape=shape)


class Origin(StrEnum):
    """Provenance of a network: compiled now, read from the cache, or read from a file."""

    COMPILED = "compiled"
    CACHE = "cache"
    FILE = "file"


#: Share of an input's elements outside of the calibrated range above which a warning is logged.
_OUTSIDE = 0.01
#: Number of steps into which the range of calibration is divided; values up to one step outside are not counted.
_STEPS = 255


class InputMonitor:
    """Check of the values of quantized inputs; it warns once about each input.

    Attributes
    ----------
    warnings : dict
        Warnings by input.
    """

    def __init__(self) -> None:
        self.warnings: dict[str, str] = {}

    def check(
        self, model: str, report: QuantizationReport, inputs: Mapping[str, NDArray], where: str
    ) -> None:
        """Raise InputError if a quantized input has NaN; warn if many values are outside of the calibrated range.

        Parameters
        ----------
        model : str
            Name of the model, for messages.
        report : QuantizationReport
            Report with the ranges of the inputs during calibration.
        inputs : mapping of str to array
            Inputs of a sample or batch by name.
        where : str
            Start of the message of an error, such as "sample 3: ".
        """
        for each, (low, high) in report.ranges.items():
            values = inputs.get(each)
            if values is None or values.dtype.kind != "f":
                continue  # the report of a damaged file
            wrong = np.isnan(values)
            if wrong.any():
                place = [int(each) for each in np.argwhere(wrong)[0]]
                raise InputError(
                    f"{where}input {shown(each)} must not have NaN, which integers cannot represent: "
                    f"{int(wrong.sum()):,} of {values.size:,} values, the first at {place}"
                )
            if each not in self.warnings and values.size:
                step = 0.0 if low is None or high is None else (high - low) / _STEPS
                outside = np.zeros(values.shape, bool)
                outside |= False if low is None else values < low - step
                outside |= False if high is None else values > high + step
                share = float(outside.mean())
                if share > _OUTSIDE:
                    self._warn(model, each, share, (low, high), values[outside])

    def _warn(
        self, model: str, name: str, share: float, span: tuple[float | None, float | None], outside: NDArray
    ) -> None:
        ends = " to ".join("infinity" if each is None else f"{each:.4g}" for each in span)
        farthest = float(outside[np.abs(outside).argmax()])
        self.warnings[name] = (
            f"{model}: {share:.1%} of the values of input {shown(name)} are outside of the range of the calibration "
            f"samples, {ends}, and are clipped (for example, {farthest:.4g}); calibrate with representative samples"
        )
        _log.warning("%s", self.warnings[name])


@dataclass(frozen=True, eq=False)
class StagedNetwork:
    """Compiled model as data: stages, tensors, schedule and layers.

    Parameters
    ----------
    name : str
        Name of the model, for messages and reports.
    config : MlaConfig
        Hardware configuration that the network was compiled for.
    inputs, outputs : tuples of Tensor
        Inputs and outputs of the model, without the states.
    stages : tuple of Stage
        Stages on the accelerator and on the host, in execution order.
    schedule : Schedule
        Schedule of the layers.
    host : tuple of HostNode
        Nodes that run on the host, with the reasons.
    rounding : str
        Rounding mode of the outputs, as in `compile`.
    floor : Floor
        Minimum work, excluding control-flow subgraphs.
    graph : Graph or None
        Graph after all passes; None if the network was read from a compiled file.
    layers : tuple of Layer
        Lowered layers; empty if the network was read from the cache or a file.
    quantization : QuantizationReport or None
        Report of the quantization of a float model; None for other models.
    removed : tuple of Removed
        Redundant nodes and channels of the model, which the network does not compute.
    rewritten : tuple of Rewritten
        Nodes that the network computes in another way than the model states.
    batch : int
        Batch size: number of samples stacked along the first axis of inputs and outputs.
    smaller : tuple of BatchVariant
        Variants for smaller batches, in ascending order. The hardware selects the smallest sufficient variant
        by the last operand of the macro-instructions, the number of valid samples.
    states : tuple of NetworkState
        Tensors that keep their contents from one sample to the next.
    origin : Origin
        Provenance of the network.
    compile_seconds : float
        Time to read and compile the model, or to read the network from the cache or a file.
    sources : tuple of ProgramSource
        Sources of the layers' schedules; empty if the compiler chose all of them, or if they are not known.
    monitor : InputMonitor
        Check of the values of inputs of a quantized float model.
    lengths : NetworkLengths or None
        Lengths of a sequence for which the network has programs; None if its shapes are fixed.
    length : int or None
        Length to which the shapes of this network belong, of a network that `at` returned; None for other networks.
    """

    name: str
    config: MlaConfig
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    stages: tuple[Stage, ...]
    schedule: Schedule
    host: tuple[HostNode, ...]
    rounding: str
    floor: Floor
    graph: Graph | None = None
    layers: tuple[Layer, ...] = ()
    quantization: QuantizationReport | None = None
    removed: tuple[Removed, ...] = ()
    rewritten: tuple[Rewritten, ...] = ()
    batch: int = 1
    smaller: tuple[BatchVariant, ...] = ()
    states: tuple[NetworkState, ...] = ()
    origin: Origin = Origin.COMPILED
    compile_seconds: float = 0.0
    sources: tuple[ProgramSource, ...] = ()
    monitor: InputMonitor = field(default_factory=InputMonitor)
    lengths: NetworkLengths | None = None
    length: int | None = None

    def at(self, length: int) -> Self:
        """Return the network with the shapes, the work and the operands for one of its lengths; programs are shared.

        Raises
        ------
        InputError
            The network has no program for the length.
        """
        lengths = self.lengths
        if lengths is None or length not in lengths.values:
            allowed = "the length of its shapes" if lengths is None else f"{lengths.name} of {lengths.text}"
            raise InputError(f"{self.name} has programs for {allowed}, not {length}")
        whole, *floors = lengths.floors[lengths.values.index(length)]

        def sized(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return tuple(lengths.tensor(each, length) for each in tensors)

        def stage(each: Stage) -> Stage:
            graph = each.graph and _sized_graph(each.graph, lengths, length)
            known = zip(each.infos, floors, strict=True) if each.code else ()
            infos = tuple(replace(info, floor=floor) for info, floor in known)
            return replace(
                each, inputs=sized(each.inputs), outputs=sized(each.outputs), graph=graph, infos=infos
            )

        return replace(
            self,
            inputs=sized(self.inputs),
            outputs=sized(self.outputs),
            stages=tuple(stage(each) if each.code or each.graph else each for each in self.stages),
            floor=whole,
            length=length,
        )

    def length_of(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return the length of inputs with the given shapes, from which a leading 1 may be omitted.

        If no input tells the length, return the longest one, so that `check` reports the shapes for it.

        Raises
        ------
        InputError
            The network has no program for the length.
        """
        assert self.lengths is not None
        for tensor in self.inputs:
            for axis, growth in enumerate(dict(self.lengths.growth)[tensor.name]):
                shape = shapes.get(tensor.name, ())
                shape = (1, *shape) if len(shape) == len(tensor.shape) - 1 else shape
                if growth and len(shape) == len(tensor.shape):
                    less, rest = divmod(tensor.shape[axis] - shape[axis], growth)
                    length = self.lengths.values[-1] - less
                    if rest or length not in self.lengths.values:
                        found = f"{shape[axis]} ({self.lengths.name})" if growth == 1 else f"{shape[axis]}"
                        raise InputError(
                            f"input {tensor.name!r} has size {found} in dimension {axis}; {self.name} has programs "
                            f"for {self.lengths.name} of {self.lengths.text}"
                        )
                    return length
        return self.lengths.values[-1]

    def for_inputs(self, inputs: Mapping[str, NDArray]) -> Self:
        """Return the network with the shapes for the length of inputs; the network itself if its shapes are fixed.

        Raises
        ------
        InputError
            The network has no program for the length.
        """
        if self.lengths is None:
            return self
        return self.at(self.length_of({name: np.shape(array) for name, array in inputs.items()}))

    def __repr__(self) -> str:
        programs = sum(len(code.all_programs) for code in self.codes)
        return (
            f"<Network {shown(self.name)}: {len(self.infos)} layers in {programs} programs for a "
            f"{self.config.n}x{self.config.n} array, {len(self.host)} nodes on the host; "
            f"{signature(self.inputs, self.outputs)}>"
        )

    @property
    def initial(self) -> dict[str, NDArray]:
        """Initial contents of the states by name."""
        return {state.name: state.initial for state in self.states}

    def next_states(self, values: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """Return the states of the next sample by name, given the values of all tensors of a sample."""
        return {
            state.name: values[state.output.name] if state.output.data is None else state.output.data
            for state in self.states
        }

    @property
    def sample(self) -> tuple[Tensor, ...]:
        """Inputs with the shapes of one sample."""
        return tuple(
            replace(each, shape=(each.shape[0] // self.batch, *each.shape[1:])) if each.shape else each
            for each in self.inputs
        )

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes for which there are programs, in ascending order."""
        return (*(each.batch for each in self.smaller), self.batch)

    def for_samples(self, count: int) -> BatchVariant | None:
        """Return the smallest variant for `count` samples; None if only the programs for whole batches suffice."""
        return next((each for each in self.smaller if count <= each.batch), None)

    def batch_for(self, count: int) -> int:
        """Return the batch size of the programs that run for `count` samples."""
        variant = self.for_samples(count)
        return variant.batch if variant else self.batch

    def best_batch(self, waiting: int, measured: Mapping[int, float] = MappingProxyType({})) -> int:
        """Return how many waiting samples to run in one batch, so that the work per sample is minimal.

        The work of a batch size is its measured cycles or, if they are unknown, the lower bound on them.
        """
        best, least = 0, 0.0
        for batch, floor in [*((each.batch, each.floor) for each in self.smaller), (self.batch, self.floor)]:
            count = min(waiting, batch)
            cycles = measured.get(batch, floor.cycles(self.config)) / count
            if count > best and (not best or cycles <= least):
                best, least = count, cycles
        return best

    def count(self, samples: int) -> tuple[int, ...]:
        """Return the operands after the addresses: those of the length, the number of samples, or nothing.

        Raises
        ------
        InputError
            The number is less than 1 or exceeds the batch size.
        """
        if not 1 <= samples <= self.batch:
            raise InputError(f"{self.name} takes 1..{self.batch} samples at a time, not {samples}")
        if self.lengths is not None:
            length = self.lengths.values[-1] if self.length is None else self.length
            return self.lengths.operands[self.lengths.values.index(length)]
        return (samples,) if self.smaller else ()

    @property
    def symbolic_count(self) -> tuple[int | None, ...]:
        """Operands of `count` in a proof: unknown values for every count, or those of the longest length."""
        return self.operands_in_proofs(self.count(self.batch))

    def operands_in_proofs(self, count: tuple[int, ...]) -> tuple[int | None, ...]:
        """Return operands that `count` returned as they are in a proof, which holds for every number of samples.

        Addresses depend on the length of a sequence, so that each length has a proof of its own.
        """
        return (None,) if self.smaller else count

    @property
    def provenance(self) -> str:
        """One line of text: whether the network was compiled, cached or read from a file, and the time that took."""
        if self.origin is Origin.CACHE:
            return f"using cached compilation of {self.name} ({self.compile_seconds:.2f} s)"
        verb = {Origin.COMPILED: "compiled", Origin.FILE: "read"}[self.origin]
        return f"{self.name} {verb} in {self.compile_seconds:.2f} s"

    @property
    def codes(self) -> list[StageExecutable]:
        """Executables of the stages on the accelerator."""
        return [stage.code for stage in self.walk() if stage.code]

    @property
    def digest(self) -> str:
        """Digest of the programs and initial memory; equal for networks that behave equally."""
        return name([(code.image, [program.words for program in code.programs]) for code in self.codes])

    @property
    def layers_of(self) -> dict[str, tuple[str, ...]]:
        """Names of the layers with commands in each program, by program name, in order."""
        names, first = [layer.name for layer in self.layers], 0
        found: dict[str, tuple[str, ...]] = {}
        for code in self.codes:
            for part in code.parts:
                found[part.program.name] = tuple(names[first + number] for number in part.layers)
            first += len(code.tags)
        return found

    @property
    def infos(self) -> list[LayerInfo]:
        """Layers of all stages."""
        return [info for stage in self.walk() for info in stage.infos]

    def walk(self) -> Iterator[Stage]:
        """Yield all stages; the stages of subgraphs follow their control-flow stage."""
        for stage in self.stages:
            yield from stage.walk()

    @property
    def alternatives(self) -> frozenset[str]:
        """Names of the programs that run instead of others if their guards hold."""
        parts = (part for code in self.codes for part in code.parts)
        return frozenset(variant.program.name for part in parts for variant in part.instead)

    def work(self, runs: Sequence[int]) -> Floor:
        """Return the minimum work of a sample, given how often it ran each stage, in the order of `codes`."""
        work = self.floor
        stages = [stage for stage in self.walk() if stage.code]
        for stage, times in zip(stages, runs, strict=True):
            if stage.floor and times:
                work += replace(
                    stage.floor, macs=stage.floor.macs * times, skipped=stage.floor.skipped * times
                )
        return work

    def check(self, inputs: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """Check inputs and return them in the model's order.

        Raises
        ------
        InputError
            An input is missing, unknown, or has another shape or type than the model's, or has NaN although the
            compiler quantized it.
        """
        return self._valid(_checked(self.inputs, inputs))

    def check_states(self, states: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """Check states and return them in the order of the network; raise the errors of `check`."""
        return _checked([state.input for state in self.states], states)

    def check_sample(self, inputs: Mapping[str, NDArray], where: str = "") -> dict[str, NDArray]:
        """Check the inputs of one sample and return them in the model's order; raise the errors of `check`.

        `where` is the start of the message of an error about their values.
        """
        return self._valid(_checked(self.sample, inputs), where)

    def _valid(self, inputs: dict[str, NDArray], where: str = "") -> dict[str, NDArray]:
        """Check the values of inputs, and return the inputs."""
        if self.quantization is not None:
            self.monitor.check(self.name, self.quantization, inputs, where)
        return inputs


def _sized_graph(graph: Graph, lengths: NetworkLengths, length: int) -> Graph:
    """Return a graph whose nodes only convert elements, with the shapes for a length."""
    made = Graph(graph.name)
    for each in graph.inputs:
        made.add_input(lengths.tensor(graph.tensors[each], length))
    for each, tensor in graph.tensors.items():
        if each not in graph.inputs:
            made.add_tensor(lengths.tensor(tensor, length))
    for node in graph:
        made.add_node(node)
    return made.finish(list(graph.outputs))


def _checked(tensors: Sequence[Tensor], inputs: Mapping[str, NDArray]) -> dict[str, NDArray]:
    names, given = [tensor.name for tensor in tensors], checks.arrays("input", inputs)
    if given.keys() - set(names) or len(given) < len(names):
        raise InputError(f"inputs must be {', '.join(names) or 'none'}, not {', '.join(given) or 'none'}")
    out = {}
    for tensor in tensors:
        array = given[tensor.name]
        if array.shape != tensor.shape or array.dtype != tensor.dtype:
            raise InputError(
                f"input {tensor.name!r} must be {tensor.dtype}{list(tensor.shape)}, not "
                f"{array.dtype}{list(array.shape)}{tensor.meaning}"
            )
        out[tensor.name] = array
    return out
