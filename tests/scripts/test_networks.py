"""Tests of the trainer's gradients, of the quantization, and of the committed digits network."""

import numpy as np
import onnx
import pytest

from scripts.networks.digits import HELD_OUT, MODEL, load_digits_split
from scripts.networks.layers import Conv3x3, Dense, Layer, MaxPool2x2, Relu, Residual, cross_entropy
from scripts.networks.quantize import Affine, quantize_bias, quantize_weight
from scripts.train_digits import LOWEST_ACCURACY, accuracy_int8

RNG = np.random.default_rng(5)


@pytest.mark.parametrize(
    "layer",
    [Conv3x3(RNG, 3, 2), Dense(RNG, 48, 5), Relu(), MaxPool2x2(), Residual(Conv3x3(RNG, 3, 3))],
    ids=lambda layer: type(layer).__name__,
)
def test_gradients(layer: Layer):
    x = RNG.normal(size=(2, 4, 4, 3)).astype(np.float32)
    weights = RNG.normal(size=layer.forward(x).shape)
    grad = layer.backward(weights.astype(np.float32))
    analytic = [grad, *(p.grad for p in layer.parameters())]
    for values, expected in zip([x, *(p.value for p in layer.parameters())], analytic, strict=True):
        for _ in range(5):
            index = tuple(RNG.integers(0, values.shape))
            kept, step = values[index], 1e-2
            outputs = []
            for sign in (1, -1):
                values[index] = kept + sign * step
                outputs.append(float((layer.forward(x) * weights).sum()))
            values[index] = kept
            assert (outputs[0] - outputs[1]) / (2 * step) == pytest.approx(
                expected[index], rel=2e-2, abs=2e-2
            )


def test_cross_entropy_gradient():
    logits, labels = RNG.normal(size=(3, 4)), np.array([0, 3, 1])
    _, grad = cross_entropy(logits, labels)
    moved = logits.copy()
    moved[1, 2] += 1e-5
    slope = (cross_entropy(moved, labels)[0] - cross_entropy(logits, labels)[0]) / 1e-5
    assert slope == pytest.approx(grad[1, 2], rel=1e-3)


@pytest.mark.parametrize(("low", "high"), [(0, 5), (-1, 3), (-2, 0), (1, 2)])
def test_affine_covers_the_range_and_zero(low, high):
    affine = Affine.of_values(np.array([low, high], np.float32))
    assert -128 <= affine.zero_point <= 127
    assert affine.scale * (-128 - affine.zero_point) <= min(low, 0) + affine.scale
    assert affine.scale * (127 - affine.zero_point) >= max(high, 0) - affine.scale


def test_weights_and_bias():
    weight = RNG.normal(size=(4, 3, 3, 3))
    quantized, scale = quantize_weight(weight)
    assert (quantized.dtype, np.abs(quantized).max(axis=(1, 2, 3)).tolist()) == (np.int8, [127] * 4)
    assert np.abs(quantized * scale.reshape(-1, 1, 1, 1) - weight).max() <= scale.max() / 2 * 1.001
    bias, bias_scale = quantize_bias(np.ones(4), 0.5, scale)
    assert bias.dtype == np.int32
    assert bias * bias_scale == pytest.approx(np.ones(4), rel=1e-2)


def test_split_is_disjoint_and_stratified():
    training, held_out = load_digits_split()
    assert len(held_out.labels) == HELD_OUT
    assert len(training.labels) == 1797 - HELD_OUT
    assert np.abs(np.bincount(held_out.labels) - HELD_OUT / 10).max() <= 2
    seen = {image.tobytes() for image in training.images}
    assert not any(image.tobytes() in seen for image in held_out.images)


def test_committed_network_classifies():
    _, held_out = load_digits_split()
    assert accuracy_int8(onnx.load(MODEL), held_out) >= LOWEST_ACCURACY
