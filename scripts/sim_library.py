"""The digits network on the resident library: a macro-instruction for each layer, activations in DRAM."""

from dataclasses import dataclass

import numpy as np

from compiler.kernels.add import add
from compiler.kernels.conv import Conv, conv_operands, conv_tiles, pack_conv_weights
from compiler.kernels.elementwise import elementwise_operands
from compiler.kernels.gemm import gemm_operands, gemm_tiles, pack_weights
from compiler.kernels.library import Library
from compiler.kernels.pool import pool_operands
from hw.isa.enums import Rounding
from scripts.sim_network import IMAGE_SHAPE, SHAPES, Network


@dataclass(frozen=True)
class Macro:
    """A macro-instruction to be enqueued."""

    opcode: int
    operands: list[int]


class LibraryNetwork:
    """Weights in DRAM, and the macro-instructions of an image.

    Parameters
    ----------
    library : Library
        The machine's library.
    network : Network
        The constants.
    images : int
        How many images have buffers of their own.
    """

    def __init__(self, library: Library, network: Network, images: int):
        self.library, self.network, self.config = library, network, library.config
        put, n = library.driver.put, self.config.n
        self._weights = {
            name: put(pack_conv_weights(self.config, network.layers[name].weights))
            for name in ("conv1", "conv2", "conv3")
        }
        dense = network.layers["scores"].weights.reshape(10, -1).T
        self._weights["scores"] = put(pack_weights(self.config, dense))
        self._params = {name: put(layer.params(n)) for name, layer in network.layers.items()}
        self._tensors = {
            name: put(np.zeros((images, *shape), np.int8))
            for name, shape in (("image", IMAGE_SHAPE), *SHAPES.items())
        }

    def address(self, name: str, image: int) -> int:
        """DRAM address of a tensor of an image."""
        shape = IMAGE_SHAPE if name == "image" else SHAPES[name]
        return self._tensors[name] + image * int(np.prod(shape))

    def fetch(self, name: str, images: int) -> np.ndarray:
        """A tensor of the first images."""
        return self.library.driver.fetch(self._tensors[name], (images, *SHAPES[name]))

    def put_images(self, images: np.ndarray) -> None:
        """Copy images (count, ..., 8, 8) to DRAM."""
        self.library.driver.put(images.astype(np.int8), self._tensors["image"])

    def macros(self, image: int) -> list[Macro]:
        """All layers of one image, in order."""
        made = [
            ("conv2d_i8", self._conv("conv1", "image", Conv(8, 8, 1, 16, (3, 3), pads=(1, 1, 1, 1)), image)),
            ("conv2d_i8", self._conv("conv2", "conv1", Conv(8, 8, 16, 32, (3, 3), pads=(1, 1, 1, 1)), image)),
            ("pool_i8", self._pool("pool1", "conv2", 8, image)),
            ("conv2d_i8", self._conv("conv3", "pool1", Conv(4, 4, 32, 32, (3, 3), pads=(1, 1, 1, 1)), image)),
            ("add_i8", self._add(image)),
            ("pool_i8", self._pool("pool2", "add", 4, image)),
            ("gemm_i8", self._dense(image)),
        ]  # fmt: skip
        return [Macro(self.library.bind(operation), operands) for operation, operands in made]

    def _conv(self, name: str, source: str, conv: Conv, image: int) -> list[int]:
        y = self.network.affine[name]
        low = -128 if name == "conv3" else y.zero_point  # the others end in ReLU
        return conv_operands(
            self.config, conv, conv_tiles(self.config, conv), x=self.address(source, image),
            w=self._weights[name], y=self.address(name, image), p=self._params[name], zp=y.zero_point,
            clip=(low, 127), a_zp=self.network.affine[source].zero_point, rounding=Rounding.EVEN,
        )  # fmt: skip

    def _pool(self, name: str, source: str, edge: int, image: int) -> list[int]:
        x, y = self.address(source, image), self.address(name, image)
        return pool_operands(self.config, Conv(edge, edge, 32, 32, (2, 2), (2, 2)), x=x, y=y)

    def _add(self, image: int) -> list[int]:
        affine = self.network.affine
        how = add(
            affine["conv3"], affine["pool1"], affine["add"], clip=(affine["add"].zero_point, 127),
            rounding=Rounding.EVEN,
        )  # fmt: skip
        a, b, y = (self.address(name, image) for name in ("conv3", "pool1", "add"))
        return elementwise_operands(self.config, how, total=512, a=a, b=b, y=y)

    def _dense(self, image: int) -> list[int]:
        affine = self.network.affine
        return gemm_operands(
            self.config, gemm_tiles(self.config, 1, 10, 128), a=self.address("pool2", image),
            b=self._weights["scores"], c=self.address("scores", image), p=self._params["scores"],
            m=1, n=10, k=128, zp=affine["scores"].zero_point, a_zp=affine["pool2"].zero_point,
            rounding=Rounding.EVEN,
        )  # fmt: skip
