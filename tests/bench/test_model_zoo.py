"""Tests of the download of trained networks, with a local folder in place of the public repository."""

import pytest

from compiler.bench import tiny
from compiler.bench.tiny import NETWORKS, model_path
from hw.errors import InputError, WorkError
from tests.support.trained_networks import model


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Create a local repository with one network, and an empty cache; return the network's folder and the URL."""
    data = model("ad01_int8").read_bytes()
    folder = tmp_path / "source" / NETWORKS["ad01_int8"][0]
    folder.mkdir(parents=True)
    (folder / "ad01_int8.tflite").write_bytes(data)
    monkeypatch.delenv("MLA_MODELS", raising=False)
    monkeypatch.setenv("MLA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tiny, "_BESIDE", tmp_path / "nowhere")
    return folder, (tmp_path / "source").as_uri()


def test_network_is_fetched_once(source):
    folder, url = source
    path = model_path("ad01_int8", url)
    assert path.read_bytes() == model("ad01_int8").read_bytes()
    (folder / "ad01_int8.tflite").unlink()
    assert model_path("ad01_int8", url) == path


def test_network_with_wrong_hash_is_rejected(source):
    folder, url = source
    (folder / "ad01_int8.tflite").write_bytes(b"TFL3")
    with pytest.raises(WorkError, match=r"has SHA-256 .* not 87cf2419"):
        model_path("ad01_int8", url)
    assert not (tiny.models_folder() / "ad01_int8.tflite").exists()


def test_failed_fetch_names_mla_models(source, monkeypatch, tmp_path):
    _, url = source
    with pytest.raises(WorkError, match=r"cannot be fetched: .* name that in MLA_MODELS"):
        model_path("kws_ref_model", url)
    with pytest.raises(InputError, match="network must be one of"):
        model_path("lenet", url)
    monkeypatch.setenv("MLA_MODELS", str(tmp_path))
    with pytest.raises(InputError, match="MLA_MODELS must name a folder with"):
        model_path("ad01_int8", url)
