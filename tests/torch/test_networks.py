"""Graphs and compiled networks of float modules agree with PyTorch."""

from typing import Any

import numpy as np
import pytest

from compiler.api import compile
from compiler.frontends.model import read_model
from compiler.lowering.partition import BOUNDARY_REASON
from compiler.reference import evaluate
from tests.torch.networks import NETWORKS
from tests.torch.running import answers, arrays, samples_like

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed: make setup EXTRAS=torch")

#: Operators that the accelerator does not support: data-dependent addresses and batches.
ON_HOST = {"embedding": {"gather"}, "batch": {"conv2d"}}
#: Minimum SQNR of the outputs in dB: a layer in 8 bits has about 40 dB, and each further layer adds noise.
LEAST_SQNR = 30


@pytest.mark.parametrize("name", NETWORKS)
def test_graph_and_network_compared_with_module(name: str) -> None:
    """The error compared with the module is within the reported quantization error (docs/numerics.md)."""
    module, example = NETWORKS[name]()
    graph = read_model(module, example=example)
    samples = samples_like(example)
    wanted = [answers(module, sample) for sample in samples]
    given = [arrays(graph.inputs, sample) for sample in samples]
    for sample, answer in zip(given, wanted, strict=True):
        found = evaluate(graph, sample)
        for output, array in zip(graph.outputs, answer, strict=True):
            assert found[output].shape == array.shape
            assert np.abs(found[output] - array).max() <= 1e-5 * max(1, np.abs(array).max())

    network = compile(module, "n8", example=example, calibration=given)
    rest = {each.op for each in network.host if each.reason != BOUNDARY_REASON}
    assert rest <= ON_HOST.get(name, set())
    assert network.infos or name == "batch"
    assert network.quantization is not None
    for report, array in zip(network.quantization.outputs, wanted[0], strict=True):
        assert report.sqnr_db is None or report.sqnr_db > LEAST_SQNR
        found = network(**given[0])[report.name]
        assert np.abs(found - array).max() <= report.max_abs + 1e-5 * max(1, np.abs(array).max())


def test_names_of_module_are_kept() -> None:
    module, example = NETWORKS["several"]()
    graph = read_model(module, example=example)
    assert graph.inputs == ["image", "context"]
    assert graph.outputs == ["map", "scores_0", "scores_1"]
    names = set(read_model(NETWORKS["encoder_layer"]()[0], example=NETWORKS["encoder_layer"]()[1]).nodes)
    assert {"norm1/layer_norm", "self_attn/scaled_dot_product_attention/Softmax", "relu"} <= names


@pytest.mark.parametrize("form", ["tensor", "array", "dict"])
def test_forms_of_examples(form: str) -> None:
    module, (x,) = NETWORKS["rms_norm"]()
    example: Any = {"tensor": x, "array": x.numpy(), "dict": {"input": x.numpy()}}[form]
    assert read_model(module, example=example).tensors["input"].shape == tuple(x.shape)


def test_size_of_dynamic_batch() -> None:
    module, (x,) = NETWORKS["layer_norm"]()
    example, batch = torch.cat([x, x]), torch.export.Dim("batch")
    shapes = {"input": {0: batch}}
    for sizes, count in ((None, 1), ({"batch": 3}, 3)):
        graph = read_model(module, sizes, example=example, dynamic_shapes=shapes)
        assert graph.tensors["input"].shape == (count, *x.shape[1:])
        (sample,) = samples_like((torch.cat([x] * count),), 1)
        found = evaluate(graph, arrays(graph.inputs, sample))
        np.testing.assert_allclose(found["output"], answers(module, sample)[0], rtol=0, atol=1e-5)


def test_exported_program_is_accepted() -> None:
    module, example = NETWORKS["layer_norm"]()
    program = torch.export.export(module.eval(), example)
    network = compile(program, "n4")
    assert network.rounding == "onnxruntime" and list(network(example[0].numpy())) == ["output"]


def test_modules_are_not_modified() -> None:
    module, example = NETWORKS["resnet_block"]()
    module.train()
    module.bn2.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    read_model(module, example=example)
    assert module.training and module.bn1.training and not module.bn2.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.requires_grad for parameter in module.parameters())
