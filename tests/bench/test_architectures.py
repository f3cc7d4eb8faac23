"""Published architectures are generated with seeded weights, once per version of their source."""

import onnx
import pytest

from compiler.bench.architectures import NETWORKS, main, model_file
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
