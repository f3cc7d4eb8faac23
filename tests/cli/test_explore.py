"""`mla explore` prints one row per target, reports targets that a model does not fit, and gives equal outputs."""

import json

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from compiler.api import compile
from hw.config import TARGETS, load_target
from scripts.networks.digits import MODEL
from tests.support.one_operator import options
from tests.support.tflite_models import Draft


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> object:
    """Return a file of two random images."""
    path = tmp_path_factory.mktemp("images") / "images.npy"
    (tensor,) = compile(MODEL, "n4").inputs
    values = np.random.default_rng(5).integers(0, 17, (2, *tensor.shape[1:])).astype(tensor.dtype)
    np.save(path, values)
    return path


def test_golden(mla, images):
    result = mla(
        "explore", MODEL, "--targets", "n4,n16", "--device", "golden", "--input", images, "--json", "-"
    )
    assert result.status == 0, result.err
    document = json.loads(result.out)
    assert (document["schema_version"], document["samples"], document["outputs_equal"]) == (1, 2, True)
    assert [row["target"] for row in document["targets"]] == ["n4", "n16"]
    for row in document["targets"]:
        config = load_target(row["target"])
        assert row["on_chip_bytes"] == config.sp_bytes + config.acc_bytes + 8 * config.wis_words
        absent = ("cycles_per_sample", "milliseconds", "utilization", "energy_uj_per_sample", "reason")
        assert {row[name] for name in absent} == {None}
        # `mla run` reports these values for the same samples.
        alone = mla(
            "run", MODEL, "--target", row["target"], "--device", "golden", "--input", images, "--json", "-"
        )
        outputs = {name: each["sha256"] for name, each in json.loads(alone.out)["outputs"].items()}
        assert row["outputs"] == outputs
    for line in (
        "mla: n4 (1 of 2): compiling\n",
        "mla: n16 (2 of 2): compiling\n",
        "mla: n16: sample 2 of 2\n",
    ):
        assert line in result.err


def test_rtl_agrees_with_run(mla, tmp_path):
    out = tmp_path / "explore.json"
    options = ("--dram-latency", "150", "--seed", "3")
    result = mla("explore", MODEL, "--targets", "n4", "--clock", "50", *options, "--json", out)
    assert result.status == 0, result.err
    (row,) = json.loads(out.read_text())["targets"]
    alone = json.loads(mla("run", MODEL, "--target", "n4", *options, "--json", "-").out)
    assert row["cycles_per_sample"] == alone["cycles_per_sample"]
    assert row["milliseconds"] == pytest.approx(row["cycles_per_sample"] / 50_000)
    assert row["utilization"] == alone["utilization"]
    assert row["energy_uj_per_sample"] == pytest.approx(alone["energy_uj"])
    assert row["dram_bytes_per_sample"] == alone["dram_bytes_read"] + alone["dram_bytes_written"]
    heading, line, equal = result.out.splitlines()[1:]
    assert heading.split()[:4] == ["target", "cycles", "ms", "utilization"]
    assert line.split()[:3] == ["n4", f"{row['cycles_per_sample']:,.0f}", f"{row['milliseconds']:,.3f}"]
    assert equal.startswith("outputs are equal on 1 target: ")


@pytest.fixture
def tiny_target(tmp_path):
    """Create a target with the smallest memories."""
    path = tmp_path / "tiny.toml"
    text = (TARGETS / "n4.toml").read_text().replace("sp_bytes = 65536", "sp_bytes = 512")
    path.write_text(text.replace("acc_bytes = 16384", "acc_bytes = 1024"))
    return path


@pytest.fixture
def wide_pool(tmp_path):
    """Write a model of one pool whose window does not fit the smallest memories."""
    draft = Draft(np.random.default_rng(0), "int8")
    window = {"filterHeight": 9, "filterWidth": 9, "strideH": 1, "strideW": 1}
    settings = options("Pool2D", padding=schema.Padding.VALID, fusedActivationFunction=0, **window)
    x = draft.input((1, 10, 10, 8))
    draft.op("AVERAGE_POOL_2D", [x], (1, 2, 2, 8), settings, like=x)
    path = tmp_path / "pool.tflite"
    path.write_bytes(draft.file())
    return path


def test_target_that_does_not_fit_is_a_row(mla, tiny_target, wide_pool):
    result = mla("explore", wide_pool, "--targets", f"{tiny_target},n4", "--device", "golden", "--json", "-")
    assert result.status == 0, result.err
    first, second = json.loads(result.out)["targets"]
    assert first["target"] == "tiny" and first["outputs"] is None and first["cycles_per_sample"] is None
    assert "does not fit" in first["reason"] and second["reason"] is None
    result = mla("explore", wide_pool, "--targets", tiny_target, "--device", "golden")
    assert result.status == 1 and f"tiny: cannot run: {first['reason']}\n" in result.out
    assert "outputs" not in result.out


def test_targets_of_equal_names_are_told_apart(mla, tmp_path):
    path = tmp_path / "n4.toml"
    path.write_text((TARGETS / "n4.toml").read_text())
    result = mla("explore", MODEL, "--targets", f"n4,{path}", "--device", "golden", "--json", "-")
    assert result.status == 0, result.err
    assert [row["target"] for row in json.loads(result.out)["targets"]] == ["n4", str(path)]


def test_differing_outputs_are_reported(mla, monkeypatch):
    from compiler.cli import explore

    measured = explore._measured

    def changed(args, name, network, samples):
        row = measured(args, name, network, samples)
        return row | {"outputs": dict.fromkeys(row["outputs"], name)}

    monkeypatch.setattr(explore, "_measured", changed)
    arguments = ("explore", MODEL, "--targets", "n4,n8", "--device", "golden")
    result = mla(*arguments)
    assert result.status == 1 and "outputs differ: n4: scores sha256 n4\n" in result.out
    assert json.loads(mla(*arguments, "--json", "-").out)["outputs_equal"] is False


def test_bad_input(complains, tmp_path):
    golden = ("--device", "golden")
    complains(2, "required: --targets", "explore", MODEL)
    complains(2, "must be different targets, T,T,..., not 'n4,n4'", "explore", MODEL, "--targets", "n4,n4")
    complains(2, "must be different targets, T,T,..., not 'n4,'", "explore", MODEL, "--targets", "n4,")
    complains(2, "target must be one of n4 n8", "explore", MODEL, "--targets", "n4,n5", *golden)
    complains(2, "absent.onnx", "explore", tmp_path / "absent.onnx", "--targets", "n4", *golden)
    complains(2, "explore needs the model itself", "explore", tmp_path / "x.mla", "--targets", "n4", *golden)
    complains(
        2, "--clock: must be a frequency in MHz above 0", "explore", MODEL, "--targets", "n4", "--clock", "0"
    )
