"""Approximations differ from exact results by at most the bound that is reported, and the accelerator computes them
exactly.
"""

from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from ai_edge_litert.schema_py_generated import BuiltinOperator

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from compiler.kernel_library.reduce import softmax_exponentials
from compiler.passes.approximations import approximate_softmax, softmax_error
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.package_writer import from_bytes, to_bytes
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from tests.numerics.litert import run
from tests.support.graphs import Draft, run_on
from tests.support.one_operator import RESOLVERS, OneOperator, options


def softmax_graph(
    shape: tuple[int, ...],
    scale: float,
    *,
    dtype: str = "int8",
    made: str = "int8",
    step: float = 1 / 256,
    zero: int | None = None,
) -> Graph:
    """Return a graph of one softmax."""
    draft = Draft(np.random.default_rng(0))
    x = draft.graph.add_input(Tensor("x", shape, dtype, Quantization.per_tensor(scale, 3)))
    lowest = np.iinfo(made).min if zero is None else zero
    y = Tensor("y", shape, made, Quantization.per_tensor(step, lowest))
    draft.into("softmax", [x], y, axis=len(shape) - 1, beta=1.0)
    return draft.graph.finish(["y"])


def adversarial_rows(rng: np.random.Generator, cols: int) -> np.ndarray:
    """Return distances to the largest integer: random rows, and one or two values in all proportions.

    Rows of a single value next to the maximum have the largest error of the sum of exponentials.
    """
    rows = [rng.integers(0, 256, (64, cols)), np.rint(np.abs(rng.normal(0, 40, (64, cols)))).clip(0, 255)]
    for count in sorted({1, cols // 8, cols // 2, cols - 1} - {0}):
        one = np.zeros((256, cols), np.int64)
        one[:, :count] = np.arange(256)[:, None]
        rows += [one, np.where(one == 0, rng.integers(0, 256, (256, 1)), one)]
    return np.concatenate(rows).astype(np.int64)


@pytest.mark.parametrize("step", [1 / 256, 0.0051])
@pytest.mark.parametrize("cols", [1, 2, 7, 64, 200])
@pytest.mark.parametrize("scale", [0.004, 0.018, 0.06, 0.3])
def test_error_of_the_exponentials_is_within_the_bound(scale: float, cols: int, step: float) -> None:
    rng = np.random.default_rng(cols)
    bound = softmax_error(scale, cols, step)
    away = adversarial_rows(rng, cols)
    exact = np.exp(-scale * (away - away.min(-1, keepdims=True)))
    held = softmax_exponentials(scale, cols)[away].astype(np.float64)
    shares = held / np.maximum(held.sum(-1, keepdims=True), 1)
    off = np.abs(shares - exact / exact.sum(-1, keepdims=True)).max() / step
    assert off <= bound, f"seed {cols}"
    if bound > 0.01 and cols > 2 and scale < 0.06:
        assert off >= bound / 4, f"the bound is loose: {off} of {bound}"


@pytest.mark.parametrize("step", [1 / 256, 1 / 128, 0.0051])
@pytest.mark.parametrize(("scale", "cols"), [(0.015, 5), (0.015, 70), (0.04, 190), (0.045, 33), (0.05, 40)])
@pytest.mark.parametrize(("dtype", "made"), [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8")])
def test_results_are_within_the_bound(dtype: str, made: str, scale: float, cols: int, step: float) -> None:
    """Results differ by at most one step from the exact softmax, and from the accelerator's own by as much."""
    rng = np.random.default_rng(cols)
    away = adversarial_rows(rng, cols)
    values = (np.iinfo(dtype).max - away).astype(dtype)
    graph = softmax_graph(values.shape, scale, dtype=dtype, made=made, step=step)
    cheaper, (found,) = approximate_softmax(graph)
    assert found.bound == 1
    got = evaluate(cheaper, {"x": values})["y"].astype(int)
    exact = np.exp(-scale * (away - away.min(-1, keepdims=True)))
    limits = np.iinfo(made)
    want = np.rint(exact / exact.sum(-1, keepdims=True) / step) + limits.min
    assert np.abs(got - np.clip(want, limits.min, limits.max)).max() <= 1
    for rounding in ("reference", "xnnpack", "onnxruntime"):
        other = evaluate(graph, {"x": values}, rounding=rounding)["y"].astype(int)  # type: ignore[arg-type]
        assert np.abs(got - other).max() <= 1


@pytest.mark.parametrize("kernels", RESOLVERS)
@pytest.mark.parametrize("scale", [0.015, 0.04])
def test_results_are_within_the_bound_of_litert(kernels: str, scale: float) -> None:
    rng = np.random.default_rng(17)
    values = (127 - adversarial_rows(rng, 150)).astype(np.int8)
    graph = softmax_graph(values.shape, scale)
    x, y = graph.tensors["x"], graph.tensors["y"]
    one = OneOperator(BuiltinOperator.SOFTMAX, options("Softmax", beta=1.0), "softmax", [x], y)
    want = run(one.file(), RESOLVERS[kernels], values).astype(int)
    got = evaluate(approximate_softmax(graph)[0], {"x": values})["y"]
    assert np.abs(got - want).max() <= 1
    assert np.count_nonzero(got - want) < 0.01 * got.size


def on_golden(network: CompiledNetwork, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Return the output y of the golden model."""
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        return run_on(device, network, inputs)["y"]


def approximated(graph: Graph) -> Graph:
    """Return the graph with the approximate softmax, whatever its error."""
    (node,) = graph
    draft = Draft(np.random.default_rng(0))
    draft.graph.add_input(graph.tensors["x"])
    draft.into("approximate_softmax", [graph.tensors["x"]], graph.tensors["y"], **node.attributes)
    return draft.graph.finish(["y"])


@pytest.mark.parametrize("step", [1 / 256, 0.0051])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_accelerator_equals_the_approximate_reference(dtype: str, step: float) -> None:
    """Rows as a whole and in parts, on all array sizes, give the integers of the reference."""
    for target, shape in (("n4", (9, 37)), ("n8", (3, 2, 50)), ("n16", (6, 128))):
        graph = approximated(softmax_graph(shape, 0.02, dtype=dtype, step=step))
        rng = np.random.default_rng(shape[-1])
        inputs = {"x": rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)}
        want = evaluate(graph, inputs)["y"]
        network = compile(graph, target, strict=True)
        np.testing.assert_array_equal(on_golden(network, inputs), want)
        layers = {name: replace(each, columns=2) for name, each in network.schedule.layers.items()}
        parts = compile(graph, target, schedule=replace(network.schedule, layers=layers))
        np.testing.assert_array_equal(on_golden(parts, inputs), want)


def test_option_on_the_rtl() -> None:
    """The option takes fewer cycles, equals the approximate reference, and is reported, also in a saved network."""
    graph = softmax_graph((400, 256), 0.04)
    inputs = {"x": np.random.default_rng(5).integers(-128, 128, (400, 256)).astype(np.int8)}
    exact, cheaper = compile(graph, "n8"), compile(graph, "n8", enable=["approximate_softmax"])
    assert not exact.rewritten
    (found,) = cheaper.rewritten
    assert (found.name, found.node, found.bound) == ("approximate_softmax", "make y", 1)
    assert "at most 1 step" in str(found)
    with RtlDevice(cheaper.config, dram_bytes(cheaper)) as device:
        got, cycles = Session(device, cheaper).measure(inputs)
    with RtlDevice(exact.config, dram_bytes(exact)) as device:
        assert cycles < 0.75 * Session(device, exact).measure(inputs)[1]
    assert cheaper.graph is not None
    np.testing.assert_array_equal(got["y"], evaluate(cheaper.graph, inputs)["y"])
    assert from_bytes(BytesIO(to_bytes(cheaper))).rewritten == cheaper.rewritten


@pytest.mark.parametrize(
    ("shape", "scale", "step"),
    [((4, 2000), 0.1, 1 / 256), ((4, 64), 0.1, 2.0**-12), ((4, 20000), 0.1, 1 / 256)],
)
def test_nodes_beyond_the_bound_stay_exact(shape: tuple[int, ...], scale: float, step: float) -> None:
    graph = softmax_graph(shape, scale, step=step)
    assert approximate_softmax(graph) == (graph, ())
