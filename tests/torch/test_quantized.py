"""Tests of modules that are quantized in PyTorch."""

from typing import Any

import numpy as np
import pytest

from compiler.api import compile
from compiler.frontends.model import read_model
from compiler.reference import evaluate
from hw.errors import InputError
from tests.torch.networks import NETWORKS
from tests.torch.running import answers, arrays, samples_like

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed: make setup EXTRAS=torch")

MISSING = "torchao is not installed: make setup EXTRAS=torch"

pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e", reason=MISSING)
xnnpack = pytest.importorskip("torchao.testing.pt2e._xnnpack_quantizer", reason=MISSING)
x86 = pytest.importorskip("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer", reason=MISSING)

#: Networks that PyTorch quantizes: convolutions, linear layers, sums, and the operators after these.
NAMES = ("resnet_block", "mobilenet_block", "conv1d", "pooling")


def whole() -> Any:
    """Return the XNNPACK quantizer, configured to quantize all operators to int8."""
    config = xnnpack.get_symmetric_quantization_config(is_per_channel=True)
    return xnnpack.XNNPACKQuantizer().set_global(config)


def parts(**options: Any) -> Any:
    """Return the x86 quantizer, which has uint8 activations and covers only operators with x86 kernels."""
    config = x86.get_default_x86_inductor_quantization_config(**options)
    return x86.X86InductorQuantizer().set_global(config)


def quantized(name: str, quantizer: Any) -> tuple[Any, tuple]:
    """Return a network quantized with random samples, and its example input."""
    module, example = NETWORKS[name]()
    prepared = pt2e.prepare_pt2e(torch.export.export(module.eval(), example).module(), quantizer)
    for sample in samples_like(example, 8, seed=2):
        prepared(*sample)
    return pt2e.convert_pt2e(prepared), example


def steps_off(module: Any, example: tuple, network: Any) -> int:
    """Return the largest difference of a network's outputs in units of their scale."""
    graph, worst = network.graph, 0
    (last,) = (graph.producer(name) for name in graph.outputs)
    assert last.op == "dequantize"
    (scale,) = graph.ins(last)[0].quantization.scale
    for sample in samples_like(example):
        (wanted,) = answers(module, sample)
        (found,) = network(**arrays(graph.inputs, sample)).values()
        worst = max(worst, round(float(np.abs(found - wanted).max()) / scale))
    return worst


@pytest.mark.parametrize("name", NAMES)
def test_outputs_equal_pytorch_within_one(name: str) -> None:
    module, example = quantized(name, whole())
    network = compile(module, "n8", example=example)
    assert network.quantization is None
    assert steps_off(module, example, network) <= 1


def test_quantized_operators_run_on_accelerator() -> None:
    module, example = quantized("resnet_block", whole())
    network = compile(module, "n8", example=example)
    assert {each.op for each in network.host} <= {"quantize", "dequantize", "transpose"}


def test_reduced_range() -> None:
    """The x86 quantizer can leave half of uint8 unused, so values beyond 127 are clipped."""
    module, example = quantized("resnet_block", parts(reduce_range=True))
    graph = read_model(module, example=example)
    for sample in samples_like(example):
        wide = tuple(4 * x for x in sample)
        (wanted,) = answers(module, wide)
        (found,) = evaluate(graph, arrays(graph.inputs, wide), rounding="onnxruntime").values()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_dynamic_scales_are_rejected() -> None:
    module, example = quantized("layer_norm", parts(is_dynamic=True))
    with pytest.raises(InputError, match=r"no conversion for node .*choose_qparams"):
        read_model(module, example=example)
