"""A compiled network: what a session needs to run it, and reports to describe it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from numpy.typing import NDArray

from compiler import arguments
from compiler.codegen.code import Code
from compiler.hosted import HostNode
from compiler.ir.graph import Graph
from compiler.ir.ops import Attributes
from compiler.ir.tensor import Tensor
from compiler.lower.layer import Layer
from compiler.profile.floors import Floor
from compiler.quantize.report import QuantizationReport
from compiler.schedule.schedule import Schedule
from cosim.golden import GoldenDevice
from hw.config import MlaConfig
from hw.errors import InputError


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


class Origin(StrEnum):
    """Where a network comes from."""

    COMPILED = "compiled"
    CACHE = "cache"  # compiled before, and kept
    FILE = "file"


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
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    code: Code | None = None
    graph: Graph | None = None
    infos: tuple[LayerInfo, ...] = ()
    control: "Control | None" = None
    floor: Floor | None = None

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


@dataclass(frozen=True, eq=False)
class Network:
    """A compiled model.

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
    layers: tuple[Layer, ...] = field(default=(), repr=False)
    quantization: QuantizationReport | None = field(default=None, repr=False)
    batch: int = 1
    origin: Origin = Origin.COMPILED
    compile_seconds: float = 0.0

    @property
    def sample(self) -> tuple[Tensor, ...]:
        """The inputs of one sample."""
        return tuple(
            replace(each, shape=(each.shape[0] // self.batch, *each.shape[1:])) if each.shape else each
            for each in self.inputs
        )

    @property
    def how_made(self) -> str:
        """Where it comes from and how long that took, for people."""
        how = {Origin.COMPILED: "compiled", Origin.CACHE: "compiled before: found", Origin.FILE: "read"}
        return f"{self.name} {how[self.origin]} in {self.compile_seconds:.2f} s"

    @property
    def codes(self) -> list[Code]:
        """Code of the stages on the accelerator."""
        return [stage.code for stage in self.walk() if stage.code]

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

    def __call__(self, *inputs: NDArray, **named: NDArray) -> dict[str, NDArray]:
        """Outputs by name for one sample, from the golden model.

        Raises
        ------
        InputError
            An input is missing, one too many, given twice, or not of the model's shape and type.
        """
        from compiler.runtime import Session, dram_bytes

        names = [tensor.name for tensor in self.inputs]
        positional = dict(zip(names, inputs, strict=False))
        if len(inputs) + len(named) > len(positional | named):
            given = ", ".join([f"{len(inputs)} by place", *named])
            raise InputError(f"inputs must be {', '.join(names)}, each given once, not {given}")
        with GoldenDevice(self.config, dram_bytes(self)) as device:
            return Session(device, self).run(positional | named)

    def check(self, inputs: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """The inputs in the model's order.

        Raises
        ------
        InputError
            One is missing, unknown, or not of the model's shape and type.
        """
        names, given = [tensor.name for tensor in self.inputs], arguments.arrays("input", inputs)
        if given.keys() - set(names) or len(given) < len(names):
            raise InputError(f"inputs must be {', '.join(names)}, not {', '.join(given) or 'none'}")
        out = {}
        for tensor in self.inputs:
            array = given[tensor.name]
            if array.shape != tensor.shape or array.dtype != tensor.dtype:
                raise InputError(
                    f"input {tensor.name!r} must be {tensor.dtype}{list(tensor.shape)}, not "
                    f"{array.dtype}{list(array.shape)}"
                )
            out[tensor.name] = array
        return out
