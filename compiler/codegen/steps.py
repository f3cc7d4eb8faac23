"""Steps of layers, kept while a schedule is made to fit: only what a change touches is made again."""

from dataclasses import replace

import numpy as np

from compiler.codegen.build import Context
from compiler.codegen.command import Memory, Ring, Step
from compiler.codegen.conv import conv_steps
from compiler.codegen.conv_transpose import conv_transpose_steps
from compiler.codegen.depthwise import depthwise_steps
from compiler.codegen.dynamic import dynamic_steps
from compiler.codegen.elementwise import elementwise_steps
from compiler.codegen.home import Home
from compiler.codegen.matmul import matmul_steps
from compiler.codegen.move import move_steps
from compiler.codegen.norm import norm_steps
from compiler.codegen.pool import pool_steps
from compiler.codegen.prelu import prelu_steps
from compiler.codegen.programs import written
from compiler.codegen.reduce import reduce_steps
from compiler.codegen.softmax import softmax_steps
from compiler.ir.tensor import Tensor
from compiler.lower.conv_transpose import ConvTransposeLayer
from compiler.lower.dynamic import DynamicLayer
from compiler.lower.elementwise_layer import ElementwiseLayer
from compiler.lower.layer import ConvLayer, DepthwiseLayer, Layer, MoveLayer, PoolLayer, SoftmaxLayer
from compiler.lower.matmul import MatmulLayer
from compiler.lower.norm import NormLayer
from compiler.lower.prelu import PReluLayer
from compiler.lower.reduce import ReduceLayer
from compiler.schedule.schedule import LayerSchedule
from hw.config import MlaConfig

_GENERATORS = {
    ConvLayer: conv_steps,
    DepthwiseLayer: depthwise_steps,
    PoolLayer: pool_steps,
    ElementwiseLayer: elementwise_steps,
    SoftmaxLayer: softmax_steps,
    MoveLayer: move_steps,
    PReluLayer: prelu_steps,
    ConvTransposeLayer: conv_transpose_steps,
    MatmulLayer: matmul_steps,
    ReduceLayer: reduce_steps,
    NormLayer: norm_steps,
    DynamicLayer: dynamic_steps,
}

#: What the steps of a layer depend on: its schedule and where its tensors live.
_Grounds = tuple[LayerSchedule, dict[str, Home]]


class StepMaker:
    """Makes the steps of one network's layers under one schedule after the other.

    Parameters
    ----------
    config : MlaConfig
        The machine.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        #: Programs that have been written.
        self.programs = written()
        self._rings: dict[tuple[str, bool], Ring] = {}
        self._made: dict[str, tuple[_Grounds, list[Step]]] = {}

    def ring(self, tensor: Tensor, inside: bool) -> Ring:
        """Where a tensor lies, in the scratchpad or not; the same ring each time."""
        key = (tensor.name, inside)
        if key not in self._rings:
            self._rings[key] = self._ring(tensor, inside)
        return self._rings[key]

    def steps(self, number: int, layer: Layer, schedule: LayerSchedule, homes: dict[str, Home]) -> list[Step]:
        """The steps of a layer; `number` is its place in the network."""
        # When loads come and what is one program is for those who put the steps in order.
        grounds = (
            replace(schedule, prefetch=0, same_program_as_previous=False), {name: homes[name] for name in layer.shapes}
        )  # fmt: skip
        made = self._made.get(layer.name)
        if made is None or made[0] != grounds:
            context = Context(self.config, number, schedule, grounds[1])
            made = self._made[layer.name] = (grounds, _GENERATORS[type(layer)](context, layer))
        return made[1]

    def _ring(self, tensor: Tensor, inside: bool) -> Ring:
        if tensor.data is not None:
            return Ring(Memory.DRAM, tensor.name, tensor.bytes, data=tensor.data.reshape(-1).view(np.uint8))
        if inside:
            return Ring(Memory.SP, tensor.name, tensor.bytes + 4 * self.config.n)
        return Ring(Memory.DRAM, tensor.name, tensor.bytes)
