"""Code generation of layers, memoized while a schedule is made to fit: only changed layers are generated again."""

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

#: Inputs of the code generation of a layer: its schedule and the layouts of its tensors.
_Grounds = tuple[LayerSchedule, dict[str, TensorLayout]]


class LayerCodegen:
    """Memoized code generation for the layers of one network under successive schedules.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the target machine.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        #: Programs that have been written.
        self.programs = written()
        self._rings: dict[tuple[str, bool], CircularBuffer] = {}
        self._made: dict[str, tuple[_Grounds, list[TileStep]]] = {}

    def ring(self, tensor: Tensor, inside: bool) -> CircularBuffer:
        """Ring of a tensor, in the scratchpad or in DRAM; the same object each time."""
        key = (tensor.name, inside)
        if key not in self._rings:
            self._rings[key] = self._ring(tensor, inside)
        return self._rings[key]

    def steps(
        self, number: int, layer: Layer, schedule: LayerSchedule, homes: dict[str, TensorLayout]
    ) -> list[TileStep]:
        """Steps of a layer; `number` is its index in the network."""
        # The order of loads and the split into programs are decided later, from the steps.
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
