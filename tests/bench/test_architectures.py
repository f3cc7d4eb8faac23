"""Published architectures are generated with seeded weights, once per version of their source. A block of a language
model reaches its share of the limit.
"""

import numpy as np
import onnx
import pytest

from compiler.api import compile
from compiler.bench.architectures import NETWORKS, main, model_file
from compiler.bench.float_networks import EagerBuilder
from compiler.runtime.device import open_device
from compiler.runtime.run_report import document, run_samples
from hw.errors import InputError


@pytest.mark.parametrize("name", ["lstm", "bert_layer"])
def test_generated_file_is_a_valid_model_and_is_cached(name, tmp_path, monkeypatch):
    monkeypatch.setenv("MLA_CACHE", str(tmp_path))
    path = model_file(name)
    onnx.checker.check_model(str(path), full_check=True)
    written = path.stat().st_mtime_ns
    assert model_file(name) == path
    assert path.stat().st_mtime_ns == written


def test_unknown_network_is_rejected():
    with pytest.raises(InputError, match=f"must be one of {', '.join(NETWORKS)}, not 'resnet'"):
        model_file("resnet")


def test_command_prints_paths(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MLA_CACHE", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["architectures", "lstm"])
    main()
    assert capsys.readouterr().out.strip().endswith("lstm.onnx")


def test_gpt_block(tmp_path):
    """A quantized block of width 256 with 4 causal heads and 64 tokens takes less than the limits of its layers."""
    width, tokens = 256, 64
    net = EagerBuilder("gpt_block", lambda rng, n: rng.standard_normal((n, tokens, width)).astype(np.float32))
    path = tmp_path / "gpt_block.onnx"
    onnx.save(net.model(net.transformer("x", 4, causal=True)), path)
    samples = [{"x": each[None]} for each in net.samples(np.random.default_rng(1), 4)]
    network = compile(path, "n16", calibration=samples, cache=False)
    assert not [each for each in network.host if not each.edge]
    with open_device(network, "rtl", 1, 100, 16, lambda _text: None) as device:
        run = run_samples(device, network, samples[:1], lambda _text: None, steadily=False)
    with open_device(network, "golden", 1, 100, 16, lambda _text: None) as device:
        wanted = run_samples(device, network, samples[:1], lambda _text: None, steadily=False).outputs
    assert all(np.array_equal(run.outputs[name], array) for name, array in wanted.items())
    assert run.cycles is not None
    limit = document(network, run, 16)["floor_layerwise_cycles"]
    print(f"{run.cycles[0]:,} cycles, {limit / run.cycles[0]:.1%}")
    assert run.cycles[0] <= 210_000 and limit >= 0.95 * run.cycles[0]
