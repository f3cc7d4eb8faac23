"""Tests of the rounding of weights: error compensation, scales of groups, and scaling by the activations."""

from dataclasses import replace

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Tensor
from compiler.quantize import group_weights, quantize, quantize_groups, tune_groups
from compiler.quantize.weights import (
    WeightReader,
    activation_scales,
    compensated,
    output_error,
    refined,
    steps_of_rows,
    weight_range,
)
from compiler.reference import evaluate
from compiler.runtime.session import Session, dram_bytes
from compiler.util.scaling import block_factors, factor_errors
from cosim.golden import GoldenDevice
from hw.config import load_target
from hw.errors import InputError

POINTWISE = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}


def operands(count: int, *, seed: int = 0, rows: int = 400) -> np.ndarray:
    """Return correlated operands of different magnitudes, as (rows, count)."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((rows, count)) @ rng.standard_normal((count, count))
    return mixed * np.exp(rng.standard_normal(count))


def moments(x: np.ndarray) -> np.ndarray:
    return x.T @ x / len(x)


def weights(outputs: int, count: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((outputs, count))


def gptq(w: np.ndarray, hessian: np.ndarray, step: np.ndarray, low: int, high: int) -> np.ndarray:
    """GPTQ as it is derived: after each column, the optimal update by the inverse of the rest's Hessian."""
    count = len(hessian)
    damped = hessian + 0.01 * np.trace(hessian) / count * np.eye(count)
    order = list(np.argsort(-np.diag(hessian), kind="stable"))
    rest, made = w.copy(), np.zeros_like(w)
    while order:
        inverse = np.linalg.inv(damped[np.ix_(order, order)])
        first = order[0]
        made[:, first] = np.clip(np.round(rest[:, first] / step[:, first]), low, high)
        error = (rest[:, first] - made[:, first] * step[:, first]) / inverse[0, 0]
        rest[:, order] -= np.outer(error, inverse[0])
        order = order[1:]
    return made


@pytest.mark.parametrize("count", [1, 24, 150])  # 150: more than one block of lazy updates
@pytest.mark.parametrize("bits", [3, 8])
def test_compensation_equals_a_straightforward_implementation(count, bits) -> None:
    w, h = weights(5, count), moments(operands(count))
    step = np.repeat(steps_of_rows(w, bits)[:, None], count, 1) * np.linspace(0.9, 1.1, count)
    low, high = weight_range(bits)
    assert np.array_equal(compensated(w, h, step, low, high), gptq(w, h, step, low, high))


@pytest.mark.parametrize("bits", [2, 3, 4, 6])
def test_compensation_and_refinement_reduce_the_error_of_the_outputs(bits) -> None:
    x, w, (low, high) = operands(48), weights(16, 48), weight_range(bits)
    step = np.repeat(steps_of_rows(w, bits)[:, None], 48, 1)
    nearest = np.clip(np.rint(w / step), low, high)
    once = compensated(w, moments(x), step, low, high)
    again = refined(w, once, step, moments(x), low, high)
    errors = [np.square(x @ (each * step - w).T).sum() for each in (nearest, once, again)]
    assert errors[1] < 0.8 * errors[0] and errors[2] < errors[1]
    assert again.min() >= low and again.max() <= high and np.array_equal(again, np.rint(again))


def test_gradients_let_outputs_compensate_each_other() -> None:
    x, w, (low, high) = operands(24), weights(12, 24), weight_range(3)
    dy = operands(12, seed=3)
    step = np.repeat(steps_of_rows(w, 3)[:, None], 24, 1)
    a, g = moments(x), moments(dy)
    once = refined(w, compensated(w, a, step, low, high), step, a, low, high)
    coupled = refined(w, once, step, a, low, high, g)
    # tr(G D A D^T) is the mean of the squared products of gradients and errors over all pairs of samples.
    losses = [np.square(dy @ (each * step - w) @ x.T).mean() for each in (once, coupled)]
    assert losses[0] == pytest.approx(output_error(once * step - w, a, g))
    assert losses[1] < 0.9 * losses[0]


@pytest.mark.parametrize("bits", range(2, 9))
def test_steps_of_rows_are_no_worse_than_the_step_without_clipping(bits) -> None:
    w, (low, high) = weights(8, 40), weight_range(bits)
    w[3] = 0
    found, whole = steps_of_rows(w, bits), np.abs(w).max(1) / high
    whole[3] = 1

    def error(step: np.ndarray) -> np.ndarray:
        return np.square(np.clip(np.rint(w / step[:, None]), low, high) * step[:, None] - w).sum(1)

    assert found[3] == 1 and (found > 0).all() and (error(found) <= error(whole)).all()


def test_groups_have_int4_values_and_unsigned_8_bit_scales() -> None:
    w = weights(6, 80)
    w[2], w[3, 32:64] = 0, 0
    made = quantize_groups(w)
    assert made.values.dtype == np.int8 and made.values.shape == (6, 80)
    assert made.values.min() >= -8 and made.values.max() <= 7
    assert made.group_scales.dtype == np.uint8 and made.group_scales.shape == (
        6,
        3,
    )  # the last group has 16 columns
    assert made.group_scales.min() >= 1 and made.channel_scales.dtype == np.float32
    real = made.dequantized()
    for row, column in ((0, 5), (4, 40), (5, 79)):
        scale = float(made.group_scales[row, column // 32]) * float(made.channel_scales[row])
        assert real[row, column] == np.float32(int(made.values[row, column]) * scale)
    assert not real[2].any() and not real[3, 32:64].any()
    rest = np.abs(real - w)[[0, 1, 4, 5]]
    assert np.square(rest).mean() < 0.02  # step 2.5 / 7 of the largest value: 0.011 for unit variance


def test_compensated_groups_reduce_the_error_of_the_outputs() -> None:
    x, w = operands(64), weights(16, 64)
    plain, made = quantize_groups(w), quantize_groups(w, moments=moments(x))
    errors = [np.square(x @ (each.dequantized() - w).T).sum() for each in (plain, made)]
    assert errors[1] < 0.5 * errors[0]


def test_factors_of_groups_are_exact() -> None:
    made = quantize_groups(weights(40, 192))
    found = block_factors(made.values, made.scales, 32)
    assert found is not None and np.array_equal(found.values, made.values)
    assert np.array_equal(found.factors, made.group_scales)
    np.testing.assert_allclose(found.scales, made.channel_scales, rtol=1e-6)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_factors_are_the_nearest_with_which_sums_fit(bits, rng) -> None:
    """Scales of any sign and size, blocks that do not divide the inputs."""
    for _ in range(20):
        outputs, inputs, block = (int(each) for each in rng.integers((1, 1, 1), (20, 4000, 400)))
        low, high = weight_range(bits)
        values = rng.integers(low, high + 1, (outputs, inputs))
        shape = outputs, -(-inputs // block)
        scales = rng.normal(size=shape) * rng.lognormal(0, 2, shape) * rng.integers(0, 5, shape)
        found = block_factors(values, scales, block)
        wide = np.repeat(np.abs(scales), block, 1)[:, :inputs]
        signs = np.repeat(np.sign(scales), block, 1)[:, :inputs].astype(int)
        if found is None:
            assert bits == 8 or -low > 127
            continue
        assert np.array_equal(found.values, values * signs)
        factors = np.repeat(found.factors.astype(np.int64), block, 1)[:, :inputs]
        for each in (found.values, -found.values):
            assert (np.maximum(each, 0).astype(np.int64) * factors).sum(1).max() * 255 <= 1 << 30
        units = found.scales[:, None].astype(np.float64)
        errors = np.abs(factors * units - wide)
        assert (errors <= 0.5001 * units).all()
        assert np.allclose(found.factors.max(1) * found.scales, np.abs(scales).max(1), rtol=1e-6)


@pytest.mark.parametrize("low", [-128, 0], ids=["symmetric", "not negative"])
def test_errors_of_factors_are_those_of_random_activations(low: int, rng: np.random.Generator) -> None:
    """Activations are independent and of the full range, or zeros except in the blocks with the largest errors."""
    values = rng.integers(-8, 8, (6, 128))
    scales = np.exp(rng.normal(0, 2, (6, 4)))
    found = block_factors(values, scales, 32)
    assert found is not None
    wrong = np.repeat(found.factors * found.scales[:, None].astype(np.float64) - scales, 32, 1) * values
    exact, x = (
        np.repeat(scales, 32, 1) * values,
        rng.integers(low, low + 256, (200_000, 128)).astype(np.float64),
    )
    errors = factor_errors(found, scales, 32, (low, low + 255), 1e-9, 256)
    parts = np.square(
        (x * 1e-9).reshape(-1, 4, 32).transpose(1, 0, 2) @ wrong.reshape(6, 4, 32).transpose(1, 2, 0)
    )
    np.testing.assert_allclose(errors, np.sqrt(parts.mean(1).sum(0)), rtol=0.03)
    relative = np.abs(found.factors * found.scales[:, None].astype(np.float64) / scales - 1)
    for output, block in enumerate(relative.argmax(1)):
        only = np.repeat(np.arange(4) == block, 32)
        size = np.sqrt(np.square((x * only) @ exact[output]).mean())
        # With results of a quarter of the range, the error is that of the block with the largest relative error.
        most = factor_errors(found, scales, 32, (low, low + 255), 64 / size, 256)[output]
        noise = np.sqrt(np.square((x * only) @ wrong[output]).mean()) * 64 / size
        np.testing.assert_allclose(most, noise, rtol=0.03)


def test_negligible_blocks_have_the_factor_0() -> None:
    found = block_factors(np.ones((1, 96), int), np.array([[1.0, 0.001, 0.003]]), 32)
    assert found is not None and found.factors.tolist() == [[255, 0, 1]]


def test_factors_of_large_sums_are_smaller_or_impossible() -> None:
    scales = np.linspace(0.5, 1, 64)[None]
    for high, least in ((7, 255), (40, 68), (100, None)):
        found = block_factors(np.full((1, 64 * 32), high), scales, 32)
        assert (None if found is None else int(found.factors.max())) == least


@pytest.mark.parametrize("op", ["dense", "conv2d"])
def test_grouped_weights_run_with_factors_and_lose_little(op, rng) -> None:
    """A float model whose weights become groups of int4: exact on the machine, for targets with and without factors."""
    graph = Graph("products")
    rows, kernel, attributes = ((4,), (), {}) if op == "dense" else ((1, 2, 2), (1, 1), POINTWISE)
    x = graph.add_input(Tensor("x", (*rows, 96), "float32"))
    for name, outputs in (("first", 64), ("second", 24)):
        w = rng.normal(size=(outputs, x.shape[-1])) * rng.lognormal(0, 1, (1, x.shape[-1]))
        w = w.astype(np.float32).reshape(outputs, *kernel, -1)
        b = rng.normal(size=outputs).astype(np.float32)
        parts = [
            graph.add_tensor(Tensor(f"{name}.{i}", each.shape, "float32", data=each))
            for i, each in enumerate((w, b))
        ]
        y = graph.add_tensor(Tensor(f"{name}.y", (*rows, outputs), "float32"))
        graph.add_node(Node(name, op, (x.name, *(each.name for each in parts)), (y.name,), attributes))
        x = y
    graph = graph.finish([x.name])
    samples = {"x": rng.normal(size=(16, *rows, 96)).astype(np.float32)}
    inputs = {"x": samples["x"][0]}
    exact = evaluate(graph, inputs)[x.name]
    nearest, made = group_weights(graph), group_weights(graph, samples=samples)
    assert [node.op for node in made] == ["block_dense", "block_dense"]

    def noise(found) -> float:
        return float(np.square(evaluate(found, inputs)[x.name] - exact).sum())

    assert noise(made) < noise(nearest)
    for target, name in (("n8", "block_dense"), (replace(load_target("n8"), wide=0, sparse=0), "dense")):
        network = compile(made, target, calibration=samples)
        layers = [each for stage in network.stages for each in stage.infos]
        assert [each.ops for each in layers] == [(name,), (name,)]
        lanes = 8 if name == "block_dense" else 0
        rounded = quantize(made, samples, lanes=lanes)[0]
        lost = power = 0.0
        with GoldenDevice(network.config, dram_bytes(network)) as device:
            session = Session(device, network)
            for sample in samples["x"]:
                found = session.run({"x": sample})[x.name]
                assert np.array_equal(found, evaluate(rounded, {"x": sample})[x.name])
                exact = evaluate(graph, {"x": sample})[x.name]
                lost, power = lost + np.square(found - exact).sum(), power + np.square(exact).sum()
        assert lost < 0.02 * power
    assert [node.op for node in group_weights(graph, ["second"], group=48)] == [op, "block_dense"]
    with pytest.raises(InputError, match="'third' is not a dense node"):
        group_weights(graph, ["third"])


@pytest.mark.parametrize(
    ("kernel", "change"), [((1, 1), {"strides": (2, 2)}), ((1, 1), {"pads": (0, 1, 0, 1)}), ((2, 1), {})]
)
def test_other_convolutions_keep_their_weights(kernel, change) -> None:
    attributes = POINTWISE | change
    (top, left, bottom, right), (sy, sx) = attributes["pads"], attributes["strides"]
    result = (4 + top + bottom - kernel[0]) // sy + 1, (4 + left + right - kernel[1]) // sx + 1
    graph = Graph("products")
    x = graph.add_input(Tensor("x", (1, 4, 4, 32), "float32"))
    data = weights(8, 32 * kernel[0]).astype(np.float32).reshape(8, *kernel, 32)
    w = graph.add_tensor(Tensor("w", data.shape, "float32", data=data))
    y = graph.add_tensor(Tensor("y", (1, *result, 8), "float32"))
    graph.add_node(Node("product", "conv2d", (x.name, w.name), (y.name,), attributes))
    graph = graph.finish([y.name])
    assert [node.op for node in group_weights(graph)] == ["conv2d"]
    with pytest.raises(InputError, match="'product' is not a dense node or 1x1 convolution"):
        group_weights(graph, ["product"])


def test_tuned_integers_are_those_of_adam_on_straight_through_gradients() -> None:
    """A written-out reference; weights of 3 bits, some of which reach the ends of their range."""
    x, w, steps, rate = operands(40), weights(6, 40), 30, 0.05
    made = quantize_groups(w, 3)
    scale = np.repeat(made.group_scales * made.channel_scales[:, None].astype(np.float64), 32, 1)[:, :40]
    real = made.values + np.clip(w / scale - made.values, -0.45, 0.45)
    mean, square = np.zeros_like(w), np.zeros_like(w)
    seen = []

    def gradient(matrix: np.ndarray) -> np.ndarray:
        return (matrix - w) @ x.T @ x

    def gradients(matrices: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.append(matrices["w"])
        return {"w": gradient(matrices["w"])}

    found = tune_groups({"w": made}, {"w": w}, gradients, steps=steps, rate=rate)["w"]
    for step in range(steps):
        matrix = (np.rint(real) * scale).astype(np.float32)
        assert np.array_equal(matrix, seen[step])
        g = gradient(matrix) * scale
        mean, square = 0.9 * mean + 0.1 * g, 0.98 * square + 0.02 * g**2
        ratio = mean / (1 - 0.9 ** (step + 1)) / np.sqrt(square / (1 - 0.98 ** (step + 1)))
        real = np.clip(real - rate * 0.5 * (1 + np.cos(np.pi * step / steps)) * ratio, -4.49, 3.49)
    assert np.array_equal(found.values, np.rint(real)) and not np.array_equal(found.values, made.values)
    assert found.values.min() == -4 and found.values.max() == 3
    assert np.array_equal(found.group_scales, made.group_scales)


def test_tuned_matrices_reduce_the_error_of_the_network() -> None:
    """Two layers, whose matrices are tuned on batches and compared on other operands."""
    rng = np.random.default_rng(3)
    exact = {"first": rng.standard_normal((48, 32)), "second": rng.standard_normal((32, 48))}
    mixed = rng.standard_normal((32, 32))

    def through(x: np.ndarray, matrices: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        hidden = np.maximum(x @ matrices["first"].T, 0)
        return hidden, hidden @ matrices["second"].T

    def gradients(matrices: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        x = rng.standard_normal((200, 32)) @ mixed
        hidden, y = through(x, matrices)
        error = y - through(x, exact)[1]
        back = error @ matrices["second"] * (hidden > 0)
        return {"first": back.T @ x, "second": error.T @ hidden}

    made = {name: quantize_groups(each) for name, each in exact.items()}
    found = tune_groups(made, exact, gradients)
    x = rng.standard_normal((500, 32)) @ mixed
    errors = []
    for each in (made, found):
        real = {name: one.dequantized() for name, one in each.items()}
        errors.append(np.square(through(x, real)[1] - through(x, exact)[1]).mean())
    assert errors[1] < 0.7 * errors[0]


def test_zeros_of_pruned_weights_stay_zero_when_tuned() -> None:
    w = weights(8, 32)
    w[:, ::2] = 0
    found = tune_groups({0: quantize_groups(w)}, {0: w}, lambda each: {0: np.sign(each[0]) + 0.1}, rate=0.5)
    assert not found[0].values[:, ::2].any() and found[0].values.any()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"rate": 0.0}, "rate must be a positive number, not 0.0"),
        ({"rate": "x"}, "rate must be a positive number, not 'x'"),
        ({"exact": [np.ones((2, 4))]}, "exact must be a dict of arrays by name, not"),
        ({"gradients": 3}, "gradients must be a function, not 3"),
        ({"gradients": lambda _: None}, "gradients must be a dict of arrays by name, not None"),
        ({"gradients": lambda _: {"w": "x"}}, "gradients of 'w' must be an array of numbers, not 'x'"),
        ({"exact": {"v": np.ones((2, 4))}}, r"exact must have the matrices \['w'\], not \['v'\]"),
        ({"exact": {"w": np.ones((2, 3))}}, "exact of 'w' must be 2 x 4 finite numbers"),
        ({"gradients": lambda _: {}}, r"gradients must have the matrices \['w'\], not \[\]"),
        (
            {"gradients": lambda _: {"w": np.full((2, 4), np.nan)}},
            "gradients of 'w' must be 2 x 4 finite numbers",
        ),
    ],
)
def test_wrong_arguments_of_tuning_are_rejected(change, text) -> None:
    exact = {"w": np.ones((2, 4))}
    arguments = {"exact": exact, "gradients": lambda each: each} | change
    with pytest.raises(InputError, match=text):
        tune_groups({"w": quantize_groups(exact["w"])}, **arguments)


def test_activation_scales_give_elements_that_matter_finer_steps() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((500, 32)) * np.geomspace(0.05, 5, 32)
    reader = WeightReader(weights(16, 32), moments(x))

    def made(each: WeightReader) -> np.ndarray:
        return quantize_groups(each.weights, moments=each.moments).dequantized()

    factors = activation_scales([reader], made)
    assert np.exp(np.log(factors).mean()) == pytest.approx(1) and factors[-1] > 2 * factors[0]
    folded = made(reader.scaled(factors)) / factors
    errors = [np.square(x @ (each - reader.weights).T).sum() for each in (made(reader), folded)]
    assert errors[1] < 0.9 * errors[0]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"bits": 1}, "bits must be an integer from 2 to 8, not 1"),
        ({"bits": 4.0}, "bits must be an integer from 2 to 8, not 4.0"),
        ({"group": 0}, "group must be at least 1, not 0"),
        ({"group": "a"}, "group must be an integer of at least 1, not 'a'"),
        ({"weights": np.zeros(4)}, "weights must be a matrix of finite numbers"),
        ({"weights": np.full((2, 4), np.nan)}, "weights must be finite numbers"),
        ({"weights": np.ones((2, 4)) * 1e300}, r"weights must be at most 1.7e\+38"),
        ({"weights": np.ones((2, 4)) * 1j}, "weights must be an array of numbers, not"),
        ({"moments": np.eye(3)}, "moments must be 4 x 4 finite numbers"),
        ({"gradients": np.eye(3), "moments": np.eye(4)}, "gradients must be 2 x 2 finite numbers"),
        ({"gradients": np.eye(2)}, "gradients must come with moments"),
        ({"moments": -np.eye(4)}, "moments must be a symmetric, positive semidefinite matrix"),
        ({"moments": np.diag([1.0, 1, 1, -5])}, "moments must be a symmetric, positive semidefinite matrix"),
        ({"moments": np.triu(np.ones((4, 4)))}, "moments must be a symmetric, positive semidefinite matrix"),
    ],
)
def test_wrong_arguments_are_rejected(change, text) -> None:
    arguments = {"weights": np.ones((2, 4))} | change
    with pytest.raises(InputError, match=text):
        quantize_groups(arguments.pop("weights"), **arguments)


def test_weights_below_the_range_of_float32_have_positive_scales() -> None:
    exact = weights(4, 64)
    exact[1] *= 1e-320 / np.abs(exact[1]).max()
    exact[2] = 0
    made = quantize_groups(exact)
    assert (made.channel_scales > 0).all() and np.isfinite(made.dequantized()).all()
    assert not made.values[1:3].any() and made.values[0].any()


def test_bits_may_be_an_integer_of_numpy() -> None:
    exact = weights(4, 64)
    three, sixteen = np.int64(3), np.int32(16)
    made = quantize_groups(exact, three, group=sixteen)  # type: ignore[arg-type]
    assert made.bits == 3 and type(made.bits) is int and made.group == 16


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"graph": "file.onnx"}, "graph must be a Graph, .* not 'file.onnx'"),
        ({"group": "a"}, "group must be an integer of at least 1, not 'a'"),
        ({"bits": 1}, "bits must be an integer from 2 to 8, not 1"),
        ({"bits": 3.5}, "bits must be an integer from 2 to 8, not 3.5"),
        ({"nodes": "dense"}, "nodes must be a list of names, not 'dense'"),
        ({"samples": 4}, "calibration must be a dict of arrays"),
    ],
)
def test_wrong_arguments_of_group_weights_are_rejected(change, text) -> None:
    empty = Graph("empty")
    x = empty.add_input(Tensor("x", (1, 4), "float32"))
    arguments = {"graph": empty.finish([x.name])} | change
    with pytest.raises(InputError, match=text):
        group_weights(arguments.pop("graph"), **arguments)


def test_readers_of_activation_scales_are_checked() -> None:
    with pytest.raises(InputError, match="readers must be at least one WeightReader"):
        activation_scales([], lambda each: each.weights)
    with pytest.raises(InputError, match="moments must be 32 x 32 finite numbers"):
        activation_scales([WeightReader(weights(4, 32), np.eye(3))], lambda each: each.weights)
