"""Random graphs of all accelerator operators are correct: 500 on the golden model, 50 on the RTL (`make soak`)."""

import sys
from pathlib import Path

import pytest

from tests.support.seeds import random_seed
from tests.support.strategies.examples import GOLDEN, ONNX, RTL, check_examples
from tests.support.strategies.graphs import Tally, check, graphs
from tests.support.strategies.onnx_floats import models
from tests.support.strategies.onnx_quantized import LayerComparison


@pytest.mark.parametrize(("count", "rtl"), [(GOLDEN, False), (RTL, True)], ids=["golden", "rtl"])
def test_random_graphs_equal_host_operators(capfd: pytest.CaptureFixture[str], count: int, rtl: bool) -> None:
    tally, number = Tally(), random_seed()
    with capfd.disabled():
        check_examples(graphs(), lambda grown: check(grown, tally, rtl=rtl), count, number)
        print(tally, file=sys.stderr, flush=True)
    tally.check(operators=20 if rtl else 32, share=0.9)


def test_random_onnx_models_equal_onnxruntime(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    layers = LayerComparison(tmp_path)
    with capfd.disabled():
        check_examples(models(most=8, batch=1), layers.check, ONNX, random_seed())
        print(layers, file=sys.stderr, flush=True)
    layers.finish()
