"""Products and convolutions take about the share of cycles of the tiles of weights that are not zero."""

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.runtime.session import Session, dram_bytes
from cosim.rtl.rtl_device import RtlDevice
from tests.codegen.test_zero_tiles import expected, product, sparse
from tests.support.graphs import Draft


def convolution(draft: Draft, share: float) -> Graph:
    """Return a 3x3 convolution of 28 x 28 x 128."""
    x = draft.graph.add_input(Tensor("x", (1, 28, 28, 128), "int8", Quantization.per_tensor(0.5, -5)))
    weights = sparse(draft, (128, 3, 3, 128), 16, share)
    attributes = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    y = draft.node("conv2d", [x, weights], (1, 28, 28, 128), scale=4.0, **attributes)
    return draft.graph.finish([y.name])


@pytest.mark.parametrize(
    ("case", "ceilings"),
    [
        ("512 x 512 x 512", (0.52, 0.28, 0.13)),
        ("1 x 2048 x 2048", (0.67, 0.36, 0.14)),
        ("3x3 of 28 x 28 x 128", (0.52, 0.27, 0.12)),
    ],
)
def test_cycles(case: str, ceilings: tuple[float, ...]) -> None:
    dense = {"512 x 512 x 512": 525_197, "1 x 2048 x 2048": 263_582, "3x3 of 28 x 28 x 128": 452_192}[case]
    for share, ceiling in zip((0.5, 0.25, 0.1), ceilings, strict=True):
        draft = Draft(np.random.default_rng(0))
        if case.startswith("3x3"):
            graph = convolution(draft, share)
        else:
            rows, depth, columns = (int(each) for each in case.split(" x "))
            graph = product(draft, rows, depth, columns, 16, share)
        network = compile(graph, "n16", cache=False)
        x = draft.rng.integers(-128, 128, graph.tensors["x"].shape).astype(np.int8)
        with RtlDevice(network.config, dram_bytes(network)) as device:
            session = Session(device, network)
            outputs, cycles = session.measure({"x": x})
        (found,) = outputs.values()
        assert np.abs(found - expected(graph, x)).max() <= 0.5 + 2.0**-10
        words = sum(len(program.words) for code in network.codes for program in code.programs)
        print(
            f"{case}, {share:.0%} of the tiles: {cycles:,} cycles, {cycles / dense:.1%}, {words:,} instructions"
        )
        assert cycles <= ceiling * dense
