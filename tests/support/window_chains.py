"""Random chains of layers over windows, of images that are cut into strips, under random limits on the memories."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.api import compile
from compiler.codegen.buffer_allocation import MemoryFullError
from compiler.ir.tensor import Tensor
from compiler.options import MemoryLimits
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import dram_bytes
from cosim.golden import GoldenDevice
from hw.config import MlaConfig, load_target
from tests.support.graphs import run_on
from tests.support.sized_layers import SizedDraft

#: Targets of the chains, in rotation.
TARGETS = ("n4", "n8", "n16")
#: Limits on the elements of a tensor and on the multiply-accumulates of a layer, for the time of the golden model.
_ELEMENTS, _MACS = 60_000, 3_000_000
#: Smallest share of the scratchpad and of the accumulator that a chain may use, as a power of two.
_LEAST = 4


class ChainDraft(SizedDraft):
    """A chain of layers over windows, built from random choices.

    Parameters
    ----------
    seed : int
        Seed of all choices.
    """

    def __init__(self, seed: int):
        super().__init__((28, seed))
        self.x = self.input(self._shape())
        self.y = self.x
        for _ in range(int(self.rng.integers(2, 5))):
            makers = (self.conv, self.conv, self.depthwise, self.depthwise, self.pool, self.transposed)
            if self.rng.random() < 0.3:
                self.y = self.node("requantize", [self.y], self.y.shape, scale=self.rng.uniform(0.05, 0.2))
            if self.rng.random() < 0.4:
                self.y = self.pad(self.y)
            self.y = makers[int(self.rng.integers(len(makers)))](self.y)

    def _shape(self) -> tuple[int, int, int, int]:
        """Return the shape of an image that is one-dimensional, wide, or tall."""
        long = int(np.exp(self.rng.uniform(np.log(40), np.log(4000))))
        short = self.some(1, 1, 1, 2, 5, 9)
        channels = self.fitting((1, 3, 8, 16, 20, 32), long * short, _ELEMENTS)
        high, wide = (long, short) if self.rng.random() < 0.3 else (short, long)
        return 1, high, wide, channels

    def _axis(self, size: int, *, dilated: bool = True) -> tuple[int, int, int, int, int, int]:
        """Return kernel, stride, dilation, padding before and after, and the outputs along an axis."""
        rng = self.rng
        kernel = self.some(1, 2, 3, 3, 5, 9) if size > 1 else 1
        stride = self.some(1, 1, 1, 2, 3)
        dilation = int(rng.choice((1, 2, 3, 8, size // 3 + 1, size))) if dilated and rng.random() < 0.5 else 1
        reach = (kernel - 1) * dilation + 1
        before, after = self.some(0, (reach - 1) // 2, reach - 1), self.some(0, reach // 2, reach - 1)
        if not dilated:  # a window of a pool without elements has no value
            before, after = min(before, kernel - 1), min(after, kernel - 1)
        after += max(reach - size - before - after, 0)
        if not dilated and after >= kernel:
            return 1, 1, 1, 0, 0, size
        return kernel, stride, dilation, before, after, (size + before + after - reach) // stride + 1

    def _window(
        self, x: Tensor, *, dilated: bool = True
    ) -> tuple[tuple[int, int], tuple[int, int], dict[str, Any]]:
        """Return the kernel, the size of the output image, and the attributes of a window operator."""
        (kh, sh, dh, top, bottom, oh), (kw, sw, dw, left, right, ow) = (
            self._axis(size, dilated=dilated) for size in x.shape[1:3]
        )
        window: dict[str, Any] = {"strides": (sh, sw), "pads": (top, left, bottom, right)}
        return (kh, kw), (oh, ow), window | ({"dilations": (dh, dw)} if dilated else {"kernel": (kh, kw)})

    def _scale(self, x: Tensor, scale: float) -> float:
        assert x.quantization is not None
        return scale * x.quantization.scale[0]

    def conv(self, x: Tensor) -> Tensor:
        """Add a convolution."""
        kernel, out, window = self._window(x)
        c, pixels = x.shape[3], math.prod(out)
        if pixels > _ELEMENTS:
            return x
        o = self.fitting((1, 4, 16, 20, 32, 48), max(pixels, pixels * math.prod(kernel) * c // 50), _ELEMENTS)
        weights, bias, scale = self.weighted((o, *kernel, c), 0, math.prod(kernel) * c)
        made = (1, *out, o)
        return self.node("conv2d", [x, weights, bias], made, scale=self._scale(x, scale), **window, groups=1)

    def depthwise(self, x: Tensor) -> Tensor:
        """Add a depthwise convolution."""
        kernel, out, window = self._window(x)
        c = x.shape[3]
        if math.prod(out) * c > _ELEMENTS:
            return x
        weights, bias, scale = self.weighted((*kernel, c), 2, math.prod(kernel))
        made = (1, *out, c)
        return self.node("depthwise_conv2d", [x, weights, bias], made, scale=self._scale(x, scale), **window)

    def pool(self, x: Tensor) -> Tensor:
        """Add a maximum or average over windows."""
        _, out, window = self._window(x, dilated=False)
        op = str(self.rng.choice(("max_pool2d", "avg_pool2d")))
        if op == "avg_pool2d":
            window["count_pads"] = False
        return self.node(op, [x], (1, *out, x.shape[3]), like=x, **window)

    def transposed(self, x: Tensor) -> Tensor:
        """Add a transposed convolution."""
        kernel, strides, pads, out = [], [], [], []
        for size in x.shape[1:3]:
            stride = self.some(1, 2, 3) if size > 1 else 1
            kernel.append(self.some(stride, stride + 1, 2 * stride, 5) if size > 1 else 1)
            strides.append(stride)
            pads.append(self.some(0, max(kernel[-1] - stride, 0) // 2))
            out.append((size - 1) * stride + kernel[-1] - 2 * pads[-1])
        pixels, c = math.prod(out), x.shape[3]
        if pixels > _ELEMENTS // 2 or min(out) < 1:
            return x
        o = self.fitting((1, 4, 16, 20), pixels, _ELEMENTS)
        weights, bias, scale = self.weighted((o, *kernel, c), 0, math.prod(kernel) * c)
        return self.node(
            "conv_transpose2d",
            [x, weights, bias],
            (1, *out, o),
            scale=self._scale(x, scale),
            strides=tuple(strides),
            dilations=(1, 1),
            output_pads=(0, 0),
            pads=(*pads, *pads),
            groups=1,
        )

    def pad(self, x: Tensor) -> Tensor:
        """Add padding, as before a causal convolution."""
        pads = ((0, 0), *((self.some(0, 1, 4), self.some(0, 0, 3)) for _ in x.shape[1:3]), (0, 0))
        made = tuple(size + sum(pad) for size, pad in zip(x.shape, pads, strict=True))
        return self.node("pad", [x], made, like=x, pads=pads, value=0.0)

    def limits(self, config: MlaConfig) -> MemoryLimits:
        """Return random limits on the memories, so that images of this size are cut and stored in DRAM."""
        sp, acc = (int(share) for share in self.rng.integers(0, _LEAST + 1, 2))
        return MemoryLimits(config.sp_bytes >> sp, config.acc_bytes >> acc)


def _interleaved(network: CompiledNetwork, limits: MemoryLimits, target: str) -> CompiledNetwork:
    """Return the network with the steps of all layers interleaved; the same network if the memories do not suffice."""
    assert network.graph is not None
    layers = {name: replace(layer, interleave=True) for name, layer in network.schedule.layers.items()}
    schedule = replace(network.schedule, layers=layers)
    try:
        return compile(network.graph, target, schedule=schedule, limits=limits, cache=False)
    except MemoryFullError:
        return network


def check_chain(seed: int, target: str) -> CompiledNetwork:
    """Compile a random chain, run it on the golden model, and compare every output with the host's operators."""
    draft = ChainDraft(seed)
    graph = draft.graph.finish([draft.y.name])
    limits = draft.limits(load_target(target))
    network = compile(graph, target, cache=False, limits=limits)
    if draft.rng.random() < 0.5:
        network = _interleaved(network, limits, target)
    inputs = draft.random_inputs()
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = run_on(device, network, inputs)
    for name, wanted in evaluate(graph, inputs, rounding=network.rounding).items():  # type: ignore[arg-type]
        wrong = np.argwhere(found[name] != wanted)
        assert not len(wrong), f"{len(wrong)} wrong, the first at {wrong[0]}\n{graph}"
    return network
