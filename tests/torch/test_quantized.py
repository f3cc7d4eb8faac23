"""Modules that were quantized in PyTorch."""

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

#: Of what PyTorch quantizes: convolutions, linear layers, sums and what stands behind them.
NAMES = ("resnet_block", "mobilenet_block", "conv1d", "pooling")


def whole() -> Any:
    """Everything to int8, as for XNNPACK."""
    config = xnnpack.get_symmetric_quantization_config(is_per_channel=True)
    return xnnpack.XNNPACKQuantizer().set_global(config)


def parts(**options: Any) -> Any:
    """What x86 has kernels for, to uint8 activations."""
    config = x86.get_default_x86_inductor_quantization_config(**options)
    return x86.X86InductorQuantizer().set_global(config)


def quantized(name: str, quantizer: Any) -> tuple[Any, tuple]:
    """A network, quantized with samples of its own."""
    module, example = NETWORKS[name]()
    prepared = pt2e.prepare_pt2e(torch.export.export(module.eval(), example).module(), quantizer)
    for sample in samples_like(example, 8, seed=2):
        prepared(*sample)
    return pt2e.convert_pt2e(prepared), example


def steps_off(module: Any, example: tuple, network: Any) -> int:
    """How many units of the output a network is off at most."""
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
def test_integers_are_those_of_pytorch_within_one(name: str) -> None:
    module, example = quantized(name, whole())
    network = compile(module, "n8", example=example)
    assert network.quantization is None
    assert steps_off(module, example, network) <= 1


def test_operators_that_pytorch_quantized_are_on_the_accelerator() -> None:
    module, example = quantized("resnet_block", whole())
    network = compile(module, "n8", example=example)
    assert {each.op for each in network.host} <= {"quantize", "dequantize", "transpose"}


def test_part_of_a_types_range() -> None:
    """The x86 quantizer can leave half of uint8 unused: what is beyond 127 is cut."""
    module, example = quantized("resnet_block", parts(reduce_range=True))
    graph = read_model(module, example=example)
    for sample in samples_like(example):
        wide = tuple(4 * x for x in sample)
        (wanted,) = answers(module, wide)
        (found,) = evaluate(graph, arrays(graph.inputs, wide), rounding="onnxruntime").values()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_scales_that_depend_on_data_are_refused() -> None:
    module, example = quantized("layer_norm", parts(is_dynamic=True))
    with pytest.raises(InputError, match=r"cannot be exported to ONNX.*choose_qparams"):
        read_model(module, example=example)
