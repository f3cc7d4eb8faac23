"""Stages of a compiled network: the data that sessions execute and reports describe."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from numpy.typing import NDArray

from compiler.cache.digest import name
from compiler.codegen.executable import StageExecutable
from compiler.cost.roofline import Floor
from compiler.ir.graph import Graph
from compiler.ir.identity import identity
from compiler.ir.ops import Attributes
from compiler.ir.tensor import Tensor, signature
from compiler.layers.base import Layer
from compiler.layers.lowering_context import anchor_index
from compiler.lowering.partition import HostNode
from compiler.quantize.report import QuantizationReport
from compiler.schedule.schedule import Schedule
from compiler.util import checks
from hw.config import MlaConfig
from hw.errors import InputError, shown


@identity("LayerInfo", "nodes", "ops", "floor", "tag", "program")
@dataclass(frozen=True)
class LayerInfo:
    """A layer as reports show it.

    Parameters
    ----------
    nodes, ops : tuples of str
        Nodes of the model that it carries out, and their operators.
    floor : Floor
        Its work.
    tag : int
        What its cycles are counted under.
    program : str
        The first program that has a part in it.
    """

    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    floor: Floor
    tag: int
    program: str

    @property
    def name(self) -> str:
        """Name of the layer, by which schedules and measurements know it: that of its anchor."""
        return self.nodes[anchor_index(self.ops)]


@dataclass(frozen=True, eq=False)
class Stage:
    """Nodes that run in one go.

    Parameters
    ----------
    inputs, outputs : tuples of Tensor
        What comes in and goes out.
    code : Code or None
        Programs of a stage on the accelerator.
    graph : Graph or None
        Nodes of a stage on the host.
    infos : tuple of LayerInfo
        Layers of a stage on the accelerator.
    control : Control or None
        A node of control flow.
    floor : Floor or None
        Work of a stage on the accelerator in a subgraph: its bytes are those of its weights.
    spared : Floor or None
        Work that is not done where the program behind the guard of a stage that may be skipped runs.
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
        """It, and the stages of its subgraphs."""
        yield self
        for body in self.control.bodies if self.control else ():
            for stage in body.stages:
                yield from stage.walk()


@dataclass(frozen=True, eq=False)
class Body:
    """A subgraph of control flow: what comes in and goes out (constants among it), and its stages."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    stages: tuple[Stage, ...]


@dataclass(frozen=True, eq=False)
class Control:
    """A node of control flow, as in compiler/ir/control.py: the host decides which of its bodies runs how often.

    Parameters
    ----------
    name, op, attributes
        The node's.
    operands, outputs : tuples of Tensor
        In the node's order; constants have their contents.
    bodies : tuple of Body
        Its subgraphs.
    """

    name: str
    op: str
    attributes: Attributes
    operands: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    bodies: tuple[Body, ...]


def control_of(graph: Graph, stages: Sequence[tuple[Stage, ...]]) -> Control:
    """The one node of a graph that is control flow, with the stages of its subgraphs."""
    (node,) = graph
    bodies = (
        Body(
            tuple(body.tensors[n] for n in body.inputs), tuple(body.tensors[n] for n in body.outputs), inside
        )
        for body, inside in zip(node.bodies, stages, strict=True)
    )
    outputs = tuple(graph.tensors[n] for n in node.outputs)
    return Control(node.name, node.op, node.attributes, tuple(graph.ins(node)), outputs, tuple(bodies))


@identity("Smaller", "batch", "floor", "infos")
@dataclass(frozen=True)
class BatchVariant:
    """The programs of a network that are for fewer samples.

    Parameters
    ----------
    batch : int
        At most so many.
    floor : Floor
        Their work.
    infos : tuple of LayerInfo
        Layers of all stages.
    """

    batch: int
    floor: Floor
    infos: tuple[LayerInfo, ...]


class Origin(StrEnum):
    """Where a network comes from."""

    COMPILED = "compiled"
    CACHE = "cache"  # compiled before, and kept
    FILE = "file"


@dataclass(frozen=True, eq=False)
class StagedNetwork:
    """A compiled model as data: stages, tensors, schedule and layers.

    Parameters
    ----------
    name : str
        For people.
    config : MlaConfig
        The machine it is for.
    inputs, outputs : tuples of Tensor
        Those of the model.
    stages : tuple of Stage
        What runs on the accelerator and on the host, in turn.
    schedule : Schedule
        How the layers are carried out.
    host : tuple of HostNode
        What runs on the host.
    rounding : str
        Whose rounding its outputs have.
    floor : Floor
        Its work, without that of subgraphs of control flow.
    graph : Graph or None
        The model after all passes; None if it was read from a compiled file.
    layers : tuple of Layer
        Layers in the compiler's own form; none if it was not compiled just now.
    quantization : QuantizationReport or None
        What quantizing a float model did to it; None if it was no float model.
    batch : int
        Samples it takes at a time, one behind the other along the first axis of its inputs and outputs.
    smaller : tuple of Smaller
        Of a network for several sizes of batches those below `batch`, ascending. The last operand of its
        macro-instructions says how many samples count, and the machine takes the programs for as few as will do.
    origin : Origin
        Where it comes from.
    compile_seconds : float
        What it took to read the model and to compile it, or to find it.
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
    batch: int = 1
    smaller: tuple[BatchVariant, ...] = ()
    origin: Origin = Origin.COMPILED
    compile_seconds: float = 0.0

    def __repr__(self) -> str:
        programs = sum(len(code.all_programs) for code in self.codes)
        return (
            f"<Network {shown(self.name)}: {len(self.infos)} layers in {programs} programs for a "
            f"{self.config.n}x{self.config.n} array, {len(self.host)} nodes on the host; "
            f"{signature(self.inputs, self.outputs)}>"
        )

    @property
    def sample(self) -> tuple[Tensor, ...]:
        """The inputs of one sample."""
        return tuple(
            replace(each, shape=(each.shape[0] // self.batch, *each.shape[1:])) if each.shape else each
            for each in self.inputs
        )

    @property
    def batches(self) -> tuple[int, ...]:
        """The sizes of batches that it has programs for."""
        return (*(each.batch for each in self.smaller), self.batch)

    def for_samples(self, count: int) -> BatchVariant | None:
        """What runs for so many samples; None: the programs for whole batches."""
        return next((each for each in self.smaller if count <= each.batch), None)

    def together(self, waiting: int) -> int:
        """How many of so many samples that wait go together: what takes least for each, by the work of each size."""
        best, least = 0, 0.0
        for batch, floor in [*((each.batch, each.floor) for each in self.smaller), (self.batch, self.floor)]:
            count = min(waiting, batch)
            cycles = floor.cycles(self.config) / count
            if count > best and (not best or cycles <= least):
                best, least = count, cycles
        return best

    def count(self, samples: int) -> tuple[int, ...]:
        """What macro-instructions have behind the addresses: how many samples count, if there are several sizes.

        Raises
        ------
        InputError
            That is none, or more than a batch.
        """
        if not 1 <= samples <= self.batch:
            raise InputError(f"{self.name} takes 1..{self.batch} samples at a time, not {samples}")
        return (samples,) if self.smaller else ()

    @property
    def any_count(self) -> tuple[None, ...]:
        """The same for a proof that holds for every count."""
        return (None,) if self.smaller else ()

    @property
    def how_made(self) -> str:
        """One line of text: whether the network was compiled, cached or read from a file, and the time that took."""
        if self.origin is Origin.CACHE:
            return f"using cached compilation of {self.name} ({self.compile_seconds:.2f} s)"
        verb = {Origin.COMPILED: "compiled", Origin.FILE: "read"}[self.origin]
        return f"{self.name} {verb} in {self.compile_seconds:.2f} s"

    @property
    def codes(self) -> list[StageExecutable]:
        """Code of the stages on the accelerator."""
        return [stage.code for stage in self.walk() if stage.code]

    @property
    def digest(self) -> str:
        """The same for networks with the same programs that start with the same memory."""
        return name([(code.image, [program.words for program in code.programs]) for code in self.codes])

    @property
    def layers_of(self) -> dict[str, tuple[str, ...]]:
        """Layers that each program has a part in, by its name, in order."""
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
        """All stages, those of subgraphs behind the one that decides about them."""
        for stage in self.stages:
            yield from stage.walk()

    def work(self, runs: Sequence[int]) -> Floor:
        """What a sample takes at least that went so often through each stage on the accelerator (as `codes`)."""
        macs, size = self.floor.macs, self.floor.bytes
        stages = [stage for stage in self.walk() if stage.code]
        for stage, times in zip(stages, runs, strict=True):
            if stage.floor and times:
                macs, size = macs + stage.floor.macs * times, size + stage.floor.bytes
        return Floor(macs, size)

    def check(self, inputs: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """The inputs in the model's order.

        Raises
        ------
        InputError
            One is missing, unknown, or not of the model's shape and type.
        """
        return _checked(self.inputs, inputs)

    def check_sample(self, inputs: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """The inputs of one sample in the model's order; errors as in `check`."""
        return _checked(self.sample, inputs)


def _checked(tensors: Sequence[Tensor], inputs: Mapping[str, NDArray]) -> dict[str, NDArray]:
    names, given = [tensor.name for tensor in tensors], checks.arrays("input", inputs)
    if given.keys() - set(names) or len(given) < len(names):
        raise InputError(f"inputs must be {', '.join(names)}, not {', '.join(given) or 'none'}")
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
