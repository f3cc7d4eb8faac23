"""Functions in single precision equal onnxruntime's kernels bit for bit."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from compiler.reference import onnx_single
from tests.support.onnx_operator import run

CORNERS = np.array(
    [0, -0.0, 1e-45, -1e-38, 8.999, 9, 9.001, -9, 17.99, 18, -18, 18.01, 88, -104, 3e38, -3e38], np.float32
)


@pytest.mark.parametrize(
    ("name", "function", "attributes"),
    [
        ("Sigmoid", onnx_single.sigmoid, {}),
        ("Tanh", onnx_single.tanh, {}),
        ("HardSwish", onnx_single.hard_swish, {}),
        ("Elu", partial(onnx_single.elu, alpha=1.0), {"alpha": 1.0}),
        ("Elu", partial(onnx_single.elu, alpha=0.7), {"alpha": 0.7}),
    ],
)
def test_function_equals_onnxruntime(
    rng: np.random.Generator, name: str, function: Callable[..., np.ndarray], attributes: dict[str, Any]
) -> None:
    spread = np.float32(2) ** rng.integers(-20, 6, 300_000).astype(np.float32)
    x = np.concatenate([CORNERS, (rng.normal(size=spread.size) * spread).astype(np.float32)])
    got, want = function(x), run(name, x, **attributes)
    assert got.dtype == want.dtype == np.float32
    different = got.view(np.int32) != want.view(np.int32)
    assert not different.any(), x[different][:8]
