"""Tests of the rounding of weights: error compensation, scales of groups, and scaling by the activations."""

import numpy as np
import pytest

from compiler.quantize import quantize_groups
from compiler.quantize.weights import (
    WeightReader,
    activation_scales,
    compensated,
    output_error,
    refined,
    steps_of_rows,
    weight_range,
)
from hw.errors import InputError


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
        ({"group": 0}, "group must be an integer of at least 1, not 0"),
        ({"weights": np.zeros(4)}, "weights must be a matrix of finite numbers"),
        ({"weights": np.full((2, 4), np.nan)}, "weights must be a matrix of finite numbers"),
        ({"moments": np.eye(3)}, "moments must be 4 x 4 finite numbers"),
        ({"gradients": np.eye(3), "moments": np.eye(4)}, "gradients must be 2 x 2 finite numbers"),
        ({"gradients": np.eye(2)}, "gradients must come with moments"),
    ],
)
def test_wrong_arguments_are_rejected(change, text) -> None:
    arguments = {"weights": np.ones((2, 4))} | change
    with pytest.raises(InputError, match=text):
        quantize_groups(arguments.pop("weights"), **arguments)
