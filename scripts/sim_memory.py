"""Where the model and the images lie in the chip's DRAM."""

import numpy as np

from compiler.ir.tensor import Tensor
from cosim.driver import Driver
from scripts.sim_programs import Programs

_ALIGN = 64


class ImageMemory:
    """The model's memory, and room for every tensor of every image.

    Parameters
    ----------
    driver : Driver
        The machine's driver.
    programs : Programs
        Whose constants and operands these are.
    images : array
        int8 of the network's input shape, one after the other.
    """

    def __init__(self, driver: Driver, programs: Programs, images: np.ndarray):
        self._driver, self.count = driver, len(images)
        #: DRAM that programs may touch: first and last byte, to read and write.
        self.window = (driver.memory.used, driver.device.dram.size - 1, 3)
        graph, take = programs.graph, driver.memory.take
        self._base = take(programs.memory, _ALIGN, "the model's memory")
        driver.put(programs.constants, self._base)
        self._tensors = {name: graph.tensors[name] for name in (*graph.inputs, *graph.outputs)}
        self._places = {
            name: take(self.count * _pitch(tensor), _ALIGN, name) for name, tensor in self._tensors.items()
        }
        self._scores = graph.outputs[0]
        (source,) = graph.inputs
        for number, image in enumerate(images):
            driver.put(image, self._places[source] + number * _pitch(self._tensors[source]))

    def operands(self, image: int) -> list[int]:
        """Operands of an image's macro-instruction, for either program."""
        places = self._places.items()
        return [self._base, *(start + image * _pitch(self._tensors[name]) for name, start in places)]

    def fetch(self, name: str) -> np.ndarray:
        """A tensor of all images, which are the first dimension."""
        tensor = self._tensors[name]
        rows = self._driver.fetch(self._places[name], (self.count, _pitch(tensor)), np.uint8)
        return np.ascontiguousarray(rows[:, : tensor.bytes]).view(tensor.dtype).reshape(-1, *tensor.shape[1:])

    def scores(self) -> np.ndarray:
        """The network's output for all images."""
        return self.fetch(self._scores)

    def clear_scores(self) -> None:
        """Forget the output of all images."""
        size = self.count * _pitch(self._tensors[self._scores])
        self._driver.put(np.zeros(size, np.uint8), self._places[self._scores])


def _pitch(tensor: Tensor) -> int:
    return -(-tensor.bytes // _ALIGN) * _ALIGN
