"""Messages about invalid arguments name the option or file and state the expected value."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from compiler.tuning.measure.worker_pool import DaskCluster
from hw.errors import InputError
from scripts.networks.digits import MODEL

GOLDEN = ("--target", "n4", "--device", "golden")


@pytest.fixture
def package(mla, tmp_path) -> Path:
    """Return a package with a network compiled for n4."""
    path = tmp_path / "digits.mla"
    assert mla("compile", MODEL, "--target", "n4", "-o", path).status == 0
    return path


@pytest.mark.parametrize("address", ["foo", "tcp://foo", "127.0.0.1:99999", "http://x:1", "tcp://a b:3"])
def test_malformed_cluster_address_is_rejected_before_a_connection(address, monkeypatch):
    missing = "the extra `cluster` is not installed: make setup EXTRAS=cluster"
    distributed = pytest.importorskip("distributed", reason=missing)
    monkeypatch.setattr(distributed, "Client", None)
    with pytest.raises(InputError, match=r"--cluster: an address must have the form tcp://HOST:8786, not "):
        DaskCluster(None, address)  # type: ignore[arg-type]


def test_missing_module_of_a_model_is_named(complains):
    complains(2, "nosuchmod:f: there is no module nosuchmod", "run", "nosuchmod:f", *GOLDEN)
    complains(2, "a.b.c:f: there is no module a.b.c", "run", "a.b.c:f", *GOLDEN)


def test_graph_rejects_unknown_suffixes_without_a_format(mla, complains, tmp_path):
    path = tmp_path / "x.png"
    complains(
        2, "x.png: the suffix must be .txt, .text, .dot, .svg, .json or absent", "graph", MODEL, "-o", path
    )
    assert not path.exists()
    assert mla("graph", MODEL, "-o", path, "--format", "text").status == 0
    assert mla("graph", MODEL, "-o", tmp_path / "x.txt").status == 0


def test_compiled_networks_are_recognized_by_their_suffix(mla, complains, tmp_path, package):
    path = tmp_path / "x.foo"
    complains(2, f"--output: {path} must end in .mla", "compile", MODEL, "-o", path)
    assert not path.exists()
    assert mla("compile", MODEL, "-o", "/dev/null").status == 0
    for verb in ("run", "profile", "serve"):
        complains(
            2, f"{path}: a model must be a file ending in .tflite, .onnx or .mla, or module", verb, path
        )
    for verb in (("tune", "--trials", "1"), ("fuse",), ("graph",), ("compile", "-o", tmp_path / "y.mla")):
        complains(2, f"{package} is already compiled: give the model itself", verb[0], package, *verb[1:])


@pytest.mark.parametrize("verb", [("run",), ("explore", "--targets", "n4")])
def test_clock_without_effect_is_a_warning(mla, verb):
    device = GOLDEN if verb == ("run",) else GOLDEN[2:]
    result = mla(verb[0], MODEL, *verb[1:], *device, "--clock", "60", "--json", "-")
    assert result.status == 0
    assert result.err.startswith("the golden model has no clock: --clock is ignored\n")
    if verb == ("run",):
        assert "the golden model has no clock: --clock is ignored" in json.loads(result.out)["warnings"]


def test_golden_model_has_no_waves(complains, tmp_path):
    complains(
        2, "--waves: the golden model has no signals", "run", MODEL, *GOLDEN, "--waves", tmp_path / "x.fst"
    )
    path = tmp_path / "no" / "x.fst"
    complains(2, f"{path} cannot be written", "run", MODEL, "--waves", path)


def test_search_options_of_serve_require_adapt(complains):
    complains(2, "--method requires --adapt", "serve", MODEL, *GOLDEN, "--method", "evolution")
    complains(2, "--endpoint-model requires --adapt", "serve", MODEL, *GOLDEN, "--endpoint-model", "x")


def test_other_files_are_not_compiled_networks(complains, tmp_path, package):
    other = tmp_path / "other.mla"
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    for data in (b"", b"hello", package.read_bytes()[:500], (tmp_path / "a.npz").read_bytes()):
        other.write_bytes(data)
        for verb in ("run", "validate"):
            complains(
                2,
                f"{other}: is not a compiled network (.mla, written by mla compile), or is cut short",
                verb,
                other,
                "--target",
                "n4",
            )


def test_limits_and_dispatch_options_are_named(complains):
    run = ("run", MODEL, *GOLDEN)
    complains(
        2,
        "--sp-limit: the limit of the scratchpad must be at least 128 bytes, not 10",
        *run,
        "--sp-limit",
        10,
    )
    complains(2, "--acc-limit: the limit of the accumulator", *run, "--acc-limit", 10)
    complains(2, "raise --sp-limit or --acc-limit, or choose a larger --target", *run, "--sp-limit", 200)
    complains(
        2,
        "--skip: there is no tensor and no node 'conv2_sun' (did you mean conv2_sum?); nodes: ",
        *run,
        "--skip",
        "conv2_sun",
    )
    complains(2, "--batches must ascend, not be 2, 2", *run, "--batches", "2,2")


def test_misspelled_targets_and_stages_get_a_suggestion(complains):
    complains(2, "not 'n61' (did you mean n16?)", "run", MODEL, "--target", "n61")
    complains(2, "not 'schedule' (did you mean scheduled?)", "graph", MODEL, "--stage", "schedule")


def test_other_files_are_not_databases(complains, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text("{}")
    tune = ("tune", MODEL, "--trials", "1", "--target", "n4")
    complains(2, f"{path} is not a measurement database", "db", "show", "--db", path)
    complains(2, f"{path} is not a measurement database", *tune, "--db", path)
    assert path.read_text() == "{}"


def test_the_missing_endpoint_option_is_named(complains):
    tune = ("tune", MODEL, "--trials", "1", "--method", "llm")
    complains(
        2, "tune: --endpoint needs --endpoint-model NAME\n", *tune, "--endpoint", "http://localhost:1/v1"
    )
    complains(2, "tune: --endpoint-model needs --endpoint URL\n", *tune, "--endpoint-model", "x")


def test_files_that_cannot_be_read_are_named_once(mla, complains, caplog, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty.npy").touch()
    Path("plain").touch()
    compiling = ("compile", MODEL, "-o", "x.mla", "--schedule", "nosuch.json")
    complains(2, "mla compile: nosuch.json cannot be read: No such file or directory\n", *compiling)
    reason = "nosuch: cannot be read as a language model: No such file or directory\n"
    complains(2, f"mla llm: {reason}", "llm", "sample", MODEL, "--llm", "nosuch")
    complains(2, "mla run: empty.npy: is empty\n", "run", MODEL, *GOLDEN, "--input", "empty.npy")
    complains(2, "plain is a file, not a folder\n", "fpga", "--board", "ulx3s-85f", "-o", "plain")
    monkeypatch.setenv("MLA_CACHE", "/proc/foo")
    assert mla("run", MODEL, *GOLDEN).status == 0
    assert "caching is disabled: /proc/foo: No such file or directory" in caplog.messages


def test_full_standard_output_is_named():
    command = [sys.executable, "-m", "compiler.cli.main", "graph", str(MODEL), "--format", "json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "mla graph: No space left on device: standard output\n")


def test_counts_of_one_are_singular(mla):
    assert "(golden), 1 sample\n" in mla("run", MODEL, *GOLDEN).out
    result = mla("serve", MODEL, *GOLDEN, "--requests", "1")
    assert "using 1 random sample (seed 0)\n" in result.err and result.err.endswith("serve: 1 request\n")


def test_serve_prints_no_summary_without_requests(mla, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[1]\n")))
    result = mla("serve", MODEL, *GOLDEN, "--input", "-")
    assert result.status == 2 and result.err.count("\n") == 1 and "0 requests" not in result.err


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("m.h5", "m.h5: TensorFlow models are read as .tflite: convert it with tf.lite.TFLiteConverter"),
        (
            "m.keras",
            "m.keras: TensorFlow models are read as .tflite: convert it with tf.lite.TFLiteConverter",
        ),
        ("saved", "saved: TensorFlow models are read as .tflite: convert it with tf.lite.TFLiteConverter"),
        ("m.pt2", "returns torch.export.load('m.pt2'), and name it module:function"),
        ("m.pt", "m.pt: pickled models are not loaded (unsafe)"),
    ],
)
def test_other_frameworks_files_get_advice(complains, tmp_path, monkeypatch, name, advice):
    monkeypatch.chdir(tmp_path)
    if name == "saved":
        Path(name).mkdir()
        Path(name, "saved_model.pb").touch()
    else:
        Path(name).touch()
    for verb in (("run",), ("compile", "-o", "x.mla"), ("graph",)):
        complains(2, advice, verb[0], name, *verb[1:])
