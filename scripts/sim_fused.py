"""The digits network as one fused micro-program, `digits_fused`: a macro-instruction for each image."""

import numpy as np

from compiler.kernels.add import residual_fields
from compiler.kernels.conv import pack_conv_weights
from compiler.kernels.gemm import pack_weights
from compiler.kernels.resident import OPCODES
from cosim.driver import Driver
from cosim.programs import Candidate
from hw.config import MlaConfig
from hw.isa.enums import Compare
from hw.isa.micro import OPERAND_BASE
from scripts.sim_library import LibraryNetwork, Macro
from scripts.sim_network import Network

#: The opcode that is rebound: that of an image's first layer.
OPCODE = OPCODES["conv2d_i8"]
#: Operand that holds the image's number in the stream; conv2d_i8 has none there.
NUMBER_OPERAND = 47
#: Buffers of image and scores in the scratchpad: one more than there can be macro-instructions in flight.
BUFFERS = 9


def weights_image(config: MlaConfig, network: Network) -> np.ndarray:
    """All weights, then all parameters, in the order in which the program loads them."""
    layers = network.layers
    # conv1 in two passes over rows of 13 bytes: kernel rows 0 and 1, ten bytes apart, then kernel row 2.
    first = np.zeros((2, 13, 16), np.int8)
    for row, column in np.ndindex(3, 3):
        first[row // 2, row % 2 * 10 + column] = layers["conv1"].weights[:, row, column, 0]
    parts = [
        first.reshape(-1).view(np.uint8),
        *(pack_conv_weights(config, layers[name].weights) for name in ("conv2", "conv3")),
        pack_weights(config, layers["scores"].weights.reshape(10, -1).T),
        *(layer.params(config.n) for layer in layers.values()),
    ]
    return np.concatenate(parts)


class FusedNetwork:
    """Operands of `digits_fused`.

    Parameters
    ----------
    plain : LibraryNetwork
        The same network on the library: images come from and scores go to the same addresses.
    """

    def __init__(self, plain: LibraryNetwork):
        self._plain = plain
        self._weights = plain.library.driver.put(weights_image(plain.config, plain.network))
        affine = plain.network.affine
        residual = residual_fields(affine["conv3"], affine["pool1"], affine["add"])
        zero_points = [affine[name].zero_point for name in ("conv1", "conv2", "conv3", "add", "scores")]
        names = ("zp_xr", "x_mult", "r_mult", "o_mult", "r_shifts")
        self._constants = zero_points + [residual[name] for name in names]
        self._started = False

    def macro(self, image: int, number: int) -> Macro:
        """The one macro-instruction of an image, whose number in the stream is `number`."""
        operands = [
            self._plain.address("image", image), self._plain.address("scores", image), self._weights,
            int(not self._started), number % BUFFERS, *self._constants,
        ]  # fmt: skip
        self._started = True
        operands += [0] * (NUMBER_OPERAND - len(operands))
        return Macro(OPCODE, [*operands, number])


def bind_from(driver: Driver, segment: int, before: int, number: int) -> None:
    """Rebind the opcode at once: images from `number` on run `segment`, those before it `before`."""
    guard = Candidate(segment, Compare.GEU, OPERAND_BASE + NUMBER_OPERAND, number)
    driver.programs.bind(OPCODE, [guard, Candidate(before)])
