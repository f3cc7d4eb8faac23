"""The digits network compiled twice: as a simple compiler would do it, and as this project's does."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from compiler.api import compile
from compiler.codegen.code import Code
from compiler.frontends.model import read_model
from compiler.ir.graph import Graph
from compiler.network import Network
from compiler.schedule.schedule import LayerSchedule, Schedule
from hw.isa.program import Program

ROUNDING = "onnxruntime"
#: One operator after the other, each in one piece, all that it reads and writes in DRAM.
_PLAIN = LayerSchedule(
    x_buffers=1, w_buffers=1, y_buffers=1, acc_buffers=1, slot_buffers=1, prefetch=0, on_chip=False, joined=True
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Variant:
    """The network as one program: a macro-instruction takes an image from its pixels to its scores.

    Parameters
    ----------
    name : str
        For people.
    network : Network
        Of one stage, with one program.
    """

    name: str
    network: Network

    @property
    def code(self) -> Code:
        """Its code."""
        (code,) = self.network.codes
        return code

    @property
    def program(self) -> Program:
        """What runs for an image."""
        (program,) = self.code.programs
        return program


@dataclass(frozen=True, eq=False)
class Programs:
    """Both variants. They share the model's memory, and operands of `plain` are right for `fused`, too.

    Parameters
    ----------
    graph : Graph
        The network with every quantized tensor as an output: those that `plain` leaves in DRAM.
    plain, fused : Variant
        What the chip starts with, and what it is given while it runs.
    macs : int
        Multiply-accumulates of an image.
    """

    graph: Graph
    plain: Variant
    fused: Variant
    macs: int

    @property
    def memory(self) -> int:
        """Bytes of the model's memory."""
        return max(variant.code.memory for variant in (self.plain, self.fused))

    @property
    def constants(self) -> np.ndarray:
        """What the model's memory holds at the start: each variant's constants lie where the other has none."""
        first, second = self.plain.code, self.fused.code
        return np.concatenate(
            [np.pad(first.image, (0, first.memory - len(first.image))), second.image[first.memory :]]
        )


def quantized_names(model: onnx.ModelProto) -> dict[str, str]:
    """Quantized tensors in the order of the file: name in the compiler's graph -> name in the file.

    The compiler names what a quantized operator makes after the operator's real output, unless it is an output.
    """
    outputs = {each.name for each in model.graph.output}
    return {
        node.output[0] if node.output[0] in outputs else node.input[0]: node.output[0]
        for node in model.graph.node
        if node.op_type == "QuantizeLinear"
    }


def compile_digits(path: Path) -> Programs:
    """Compile the network in a file."""
    graph = read_model(path)
    scores = list(graph.outputs)
    fused = compile(graph, rounding=ROUNDING)
    joined = {name: replace(layer, joined=True) for name, layer in fused.schedule.layers.items()}

    between = [name for name in quantized_names(onnx.load(path)) if graph.producer(name)]
    whole = read_model(path).finish([*scores, *(name for name in between if name not in scores)])
    nodes = [node.name for node in whole if node.op != "reshape"]
    schedule = Schedule((), dict.fromkeys(nodes, _PLAIN))
    plain = Variant("plain", compile(whole, rounding=ROUNDING, schedule=schedule))
    schedule = replace(fused.schedule, layers=joined)
    better = compile(graph, rounding=ROUNDING, schedule=schedule, offset=plain.code.memory)
    return Programs(whole, plain, Variant("compiled", better), fused.floor.macs)
