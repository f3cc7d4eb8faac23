"""Tests of batch sizes, skipped nodes and reused results on the command line."""

import json

import numpy as np
import pytest

from compiler.api import compile
from scripts.networks.digits import MODEL

N4 = ("--target", "n4", "--device", "golden")
N16 = ("--target", "n16", "--device", "golden")


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Return five random images."""
    (tensor,) = compile(MODEL, "n16").inputs
    return np.random.default_rng(5).integers(0, 17, (5, *tensor.shape[1:])).astype(tensor.dtype)


@pytest.fixture
def file(tmp_path, images):
    path = tmp_path / "images.npy"
    np.save(path, images)
    return path


def test_package_with_several_batch_sizes(mla, tmp_path, file):
    path = tmp_path / "digits.mla"
    compiled = mla("compile", MODEL, "-o", path, "--batches", "1,2,4", "--json", "-")
    assert compiled.status == 0 and json.loads(compiled.out)["batches"] == [1, 2, 4], compiled.err
    assert [each["name"].rsplit(" x ")[1] for each in json.loads(compiled.out)["programs"]] == ["1", "2", "4"]
    assert mla("validate", path, "--calls", "2").status == 0
    found, wanted = (
        json.loads(mla("run", model, "--input", file, *N16, "--json", "-").out) for model in (path, MODEL)
    )
    assert found["outputs"] == wanted["outputs"] and found["macs"] == wanted["macs"]
    assert [(each["guard"], each["runs"]) for each in found["variants"]] == [
        ("op3 <u 2", 1),
        ("op3 <u 3", 0),
        (None, 1),
    ]
    text = mla("run", path, "--input", file, *N16).out
    assert "x 1 ran 1 time, if op3 <u 2" in text and "x 4 ran 1 time, otherwise" in text


def test_listing_of_package_with_several_batch_sizes(mla, tmp_path):
    path, text, again = tmp_path / "a.mla", tmp_path / "a.s", tmp_path / "b.mla"
    assert mla("compile", MODEL, "-o", path, "--batches", "1,3", "--listing", text).status == 0
    assert mla("disasm", path).out == text.read_text()
    assert mla("asm", text, "--network", path, "-o", again).status == 0
    assert again.read_bytes() == path.read_bytes()
    words = text.read_text()
    broken = words.replace("set store.dram, r0, op2", "set store.dram, r0, op3", 1)
    assert broken != words
    text.write_text(broken)
    assert mla("asm", text, "--network", path, "-o", again).status == 0
    result = mla("validate", again)
    assert result.status == 1 and "stage 0, program" in result.out and " x 1'" in result.out


def test_waiting_requests_are_batched(mla, file, images):
    result = mla(
        "serve", MODEL, "--input", file, "--requests", "12", "--batches", "1,4", "--max-in-flight", "1", *N16
    )
    assert result.status == 0, result.err
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert [line["index"] for line in lines] == list(range(12))
    assert lines[0]["together"] == 1 and max(line["together"] for line in lines) == 4
    alone = [json.loads(line) for line in mla("serve", MODEL, "--input", file, *N16).out.splitlines()]
    assert all(line["together"] == 1 for line in alone) and len(alone) == len(images)
    assert [line["outputs"] for line in lines] == [alone[i % len(images)]["outputs"] for i in range(12)]


def test_skip_zero_input(mla, tmp_path, images):
    tensor = compile(MODEL, "n16").inputs[0]
    zero = tensor.quantization.zero_point[0] if tensor.quantization else 0
    file = tmp_path / "some.npy"
    np.save(file, np.concatenate([images[:2], np.full_like(images[:1], zero)]))
    found, wanted = (
        json.loads(mla("run", MODEL, "--input", file, *N16, *skip, "--json", "-").out)
        for skip in (("--skip", tensor.name), ())
    )
    assert found["outputs"] == wanted["outputs"] and wanted["variants"] == []
    assert [each["runs"] for each in found["variants"]] == [1, 2]
    assert found["macs"] == wanted["macs"] * 2 // 3


def test_repeated_inputs_are_answered_without_computing(mla, tmp_path, images):
    """The lines of the requests name the variant that ran, and the outputs are those of a server without reuse."""
    file = tmp_path / "repeated.npy"
    np.save(file, np.concatenate([np.repeat(images[:2], 6, axis=0), images[2:3]]))
    reusing, usual = (
        [json.loads(line) for line in mla("serve", MODEL, "--input", file, *N16, *option).out.splitlines()]
        for option in (("--reuse",), ())
    )
    assert [line["outputs"] for line in reusing] == [line["outputs"] for line in usual]
    assert "".join(line["variant"][0] for line in reusing) == "crrrrrcrrrrrc" and "variant" not in usual[0]
    assert reusing[1]["why"] == "the inputs equal those of an earlier request"
    run = json.loads(mla("run", MODEL, "--input", file, *N16, "--reuse", "--json", "-").out)
    assert [each["runs"] for each in run["variants"]] == [10, 3]


def test_usage_errors(complains, tmp_path):
    path = tmp_path / "digits.mla"
    for batches, text in (
        ("2,1", "batches must ascend, not be 2, 1"),
        ("1,2,3,4,5", "must be at most 4 sizes (an opcode has 4 candidate programs), not 5"),
        ("1,", "--batches: must be an integer in 1..4096, not ''"),
        ("0,1", "--batches: must be an integer in 1..4096, not '0'"),
    ):
        complains(2, text, "compile", MODEL, "-o", path, "--batches", batches)
    complains(
        2,
        "batch must be omitted if batches is given, not 3",
        "run",
        MODEL,
        "--batches",
        "1,2",
        "--batch",
        "3",
        *N4,
    )
    complains(2, "skip cannot be combined with batches", "run", MODEL, "--batches", "1,2", "--skip", "x", *N4)
    complains(2, "reuse cannot be combined with skip", "run", MODEL, "--reuse", "--skip", "x", *N4)
    complains(2, "there is no tensor and no node 'nothing'", "run", MODEL, "--skip", "nothing", *N4)
    assert not path.exists()


def test_package_rejects_other_batches_and_skip(mla, complains, tmp_path):
    path = tmp_path / "digits.mla"
    assert mla("compile", MODEL, "-o", path, "--batches", "1,2").status == 0
    complains(
        2, "was compiled for batch sizes 1,2, not for --batches 1,4", "run", path, "--batches", "1,4", *N16
    )
    complains(2, "is already compiled: --skip", "run", path, "--skip", "x", *N16)
    complains(2, "is already compiled: --reuse", "run", path, "--reuse", *N16)
