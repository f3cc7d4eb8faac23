"""Steps of layers, memoized while a schedule is made to fit: only what a change touches is generated again."""

from dataclasses import replace

import numpy as np

from compiler.codegen.split_programs import written
from compiler.commands.commands import BufferMemory, CircularBuffer, TileStep
from compiler.commands.tensor_layout import TensorLayout
from compiler.commands.tile_buffers import CodegenContext
from compiler.ir.tensor import Tensor
from compiler.layers.base import Layer
from compiler.layers.registry import kind_of
from compiler.schedule.schedule import LayerSchedule
from hw.config import MlaConfig

#: What the steps of a layer depend on: its schedule and where its tensors live.
_Grounds = tuple[LayerSchedule, dict[str, TensorLayout]]


class LayerCodegen:
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
        self._rings: dict[tuple[str, bool], CircularBuffer] = {}
        self._made: dict[str, tuple[_Grounds, list[TileStep]]] = {}

    def ring(self, tensor: Tensor, inside: bool) -> CircularBuffer:
        """Where a tensor lies, in the scratchpad or not; the same ring each time."""
        key = (tensor.name, inside)
        if key not in self._rings:
            self._rings[key] = self._ring(tensor, inside)
        return self._rings[key]

    def steps(
        self, number: int, layer: Layer, schedule: LayerSchedule, homes: dict[str, TensorLayout]
    ) -> list[TileStep]:
        """The steps of a layer; `number` is its place in the network."""
        # When loads come and what is one program is for those who put the steps in order.
        grounds = (
            replace(schedule, prefetch=0, same_program_as_previous=False),
            {name: homes[name] for name in layer.shapes},
        )
        made = self._made.get(layer.name)
        if made is None or made[0] != grounds:
            context = CodegenContext(self.config, number, schedule, grounds[1])
            made = self._made[layer.name] = (grounds, kind_of(layer).steps(context, layer))
        return made[1]

    def _ring(self, tensor: Tensor, inside: bool) -> CircularBuffer:
        if tensor.data is not None:
            return CircularBuffer(
                BufferMemory.DRAM, tensor.name, tensor.bytes, data=tensor.data.reshape(-1).view(np.uint8)
            )
        if inside:
            return CircularBuffer(BufferMemory.SP, tensor.name, tensor.bytes + 4 * self.config.n)
        return CircularBuffer(BufferMemory.DRAM, tensor.name, tensor.bytes)
