"""Tests of `mla llm`: training without PyTorch, samples, evaluation, and invalid input."""

import json
import sys
from typing import Any

import pytest
from numpy.random import default_rng

from compiler.llm.generate.requests import Schedules
from compiler.llm.model.numpy_transformer import Gpt, TransformerShape
from compiler.llm.model.weights import save
from compiler.llm.tokens.vocabulary import LANGUAGE
from scripts.networks.digits import MODEL as DIGITS


def test_sampled_schedules_compile(mla, tmp_path):
    sampled = ("llm", "sample", DIGITS, "--answers", "3", "--seed", "5", "--json", str(tmp_path / "a.json"))
    result = mla(*sampled)
    assert result.status == 0, result.err
    document = json.loads((tmp_path / "a.json").read_text("utf-8"))
    assert document["cycles"] == sum(each["cycles"] for each in document["layers"])
    for layer in document["layers"]:
        assert layer["question"][0] == "machine" and layer["question"][-1] == "answer"
        assert len(layer["answers"]) == 3
        for answer in layer["answers"]:
            assert answer["log_likelihood"] <= 0 and answer["words"][-1] == "end"
    assert result.out.count(" cycles; log likelihood and text of answers:\n") == len(document["layers"])
    assert mla(*sampled[:-2]).out == result.out  # the same seed gives the same answers


def test_layer_without_a_prompt_is_reported(mla, tmp_path, monkeypatch):
    """Sampling continues with the other layers; if there are none, the command fails."""
    prompt = Schedules.prompt

    def limited(self: Schedules, *args: Any, **named: Any) -> list[str]:
        if self.about == "conv1_sum":
            raise ValueError("too large")
        return prompt(self, *args, **named)

    monkeypatch.setattr(Schedules, "prompt", limited)
    result = mla("llm", "sample", DIGITS, "--answers", "1", "--json", str(tmp_path / "a.json"))
    assert result.status == 0, result.err
    found = {each["layer"]: each for each in json.loads((tmp_path / "a.json").read_text())["layers"]}
    assert found["conv1_sum"]["answers"] == []
    assert "conv1_sum: " in result.out and "; cannot be expressed as a prompt: too large\n" in result.out
    assert all(each["answers"] and not each["reason"] for name, each in found.items() if name != "conv1_sum")
    result = mla("llm", "sample", DIGITS, "--answers", "1", "--layer", "conv1_sum")
    assert result.status == 2
    assert "layer 'conv1_sum' cannot be expressed as a prompt: too large" in result.err


@pytest.mark.parametrize(("ask", "last"), [("edits", "end"), ("programs", "stop")])
def test_sample_edits_and_programs(mla, tmp_path, ask, last):
    sampled = ("llm", "sample", DIGITS, "--layer", "conv1_sum", "--ask", ask, "--answers", "2", "--seed", "5")
    result = mla(*sampled, "--json", str(tmp_path / "a.json"))
    assert result.status == 0, result.err
    (program,) = json.loads((tmp_path / "a.json").read_text("utf-8"))["programs"]
    assert program["program"] == "conv1_sum" and f"ask {ask.removesuffix('s')}" in " ".join(
        program["question"]
    )
    assert len(program["answers"]) == 2
    for answer in program["answers"]:
        assert answer["complete"] and answer["words"][-1] == last
    assert mla(*sampled).out == result.out


def test_sample_fusions(mla, tmp_path):
    sampled = ("llm", "sample", DIGITS, "--layer", "conv1_sum", "--ask", "fusions", "--answers", "2")
    result = mla(*sampled, "--json", str(tmp_path / "a.json"))
    assert result.status == 0, result.err
    pairs = json.loads((tmp_path / "a.json").read_text("utf-8"))["pairs"]
    assert pairs and all("conv1_sum" in each["pair"] and "ask fusion" in each["question"] for each in pairs)
    assert all(answer["words"][-1] == "end" for each in pairs for answer in each["answers"])
    assert f"{pairs[0]['pair']}: " in result.out


@pytest.mark.parametrize("ask", ["schedules", "edits", "programs"])
def test_unconstrained_answers_of_all_kinds(mla, ask):
    asked = ("--layer", "conv1_sum", "--answers", "1", "--unconstrained", "--ask", ask)
    result = mla("llm", "sample", DIGITS, *asked)
    assert result.status == 0 and len(result.out.splitlines()) == 2


def test_unconstrained_answers_at_high_temperature(mla):
    result = mla("llm", "sample", DIGITS, "--answers", "2", "--unconstrained", "--temperature", "3")
    assert result.status == 0 and len(result.out.splitlines()) > 3


def test_answers_generated_on_accelerator(mla, tmp_path):
    """A one-layer model runs on the accelerator; since it is untrained, its agreement with the host is not checked."""
    shape, rng = (
        TransformerShape(len(LANGUAGE), width=16, heads=2, layers=1, hidden=16, context=128),
        default_rng(0),
    )
    weights = {name: rng.normal(size=size).astype("float32") for name, size in shape.tensors.items()}
    save(Gpt(shape, weights), tmp_path / "small.safetensors", {})
    asked = (
        "--llm",
        str(tmp_path / "small.safetensors"),
        "--layer",
        "conv1_sum",
        "--answers",
        "2",
        "--on-machine",
    )
    result = mla("llm", "sample", DIGITS, *asked, "--json", str(tmp_path / "a.json"))
    assert result.status == 0, result.err
    document = json.loads((tmp_path / "a.json").read_text("utf-8"))
    (layer,), machine = document["layers"], document["machine"]
    written = [len(each["words"]) for each in layer["answers"]]
    assert (
        machine["words"] == len(layer["question"]) + sum(written) - 2
    )  # nothing is computed after the last word
    assert 0 < machine["same"] <= machine["compared"] and machine["cycles"] > 1000 * machine["words"]
    assert f"{machine['words']} tokens processed on n16" in result.out


def test_evaluation_compares_methods(mla, tmp_path):
    asked = (
        "--layers",
        "1",
        "--trials",
        "2",
        "--baseline-trials",
        "2",
        "--methods",
        "random",
        "--seeds",
        "1",
    )
    asked += ("--samples", "4")
    result = mla("llm", "eval", *asked, "--json", str(tmp_path / "a.json"))
    assert result.status == 0, result.err
    document = json.loads((tmp_path / "a.json").read_text("utf-8"))
    (layer,) = document["layers"]
    assert {name: len(curve) for name, (curve,) in layer["curves"].items()} == {"llm": 3, "random": 3}
    assert all(curve[0] == layer["static_cycles"] for (curve,) in layer["curves"].values())
    assert [each["trials"] for each in document["ratios"]] == [1, 2]
    assert "llm after 2" in result.out
    ((cycles,), found) = document["samples"], document["sampled"]
    assert len(cycles) == 4 and found["some"] == pytest.approx(min(cycles) / layer["static_cycles"])
    assert found["one"] >= found["some"] and f"one answer: {found['one']:.4f} times" in result.out
    kinds = document["kinds"].values()
    assert 0 < sum(each["valid"] for each in kinds) <= 2 and all(
        each["made"] >= each["valid"] for each in kinds
    )
    assert "schedules with edits: " in result.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("sample", DIGITS, "--layer", "nonsense"), "--layer must be one of"),
        (("sample", "none.onnx"), "none.onnx"),
        (("sample", DIGITS, "--llm", "none"), "none: cannot be read as a language model"),
        (("sample", DIGITS, "--llm", DIGITS), "cannot be read as a language model"),
        (("sample", DIGITS, "--temperature", "-1"), "--temperature must be at least 0"),
        (("eval", "--methods", "nonsense"), "--methods must be among"),
        (("eval", "--machine", "nonsense"), "--machine must be one of"),
        (("eval", "--seeds", "0"), "--seeds"),
        (("eval", "--samples", "3"), "--samples must be 0 or at least 4"),
    ],
)
def test_invalid_options(complains, options, words):
    complains(2, words, "llm", *options)


def test_training_without_pytorch(complains, tmp_path, monkeypatch):
    """Training without PyTorch fails with a message; the test hides an installed PyTorch."""
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("compiler.llm.training.")]:
        monkeypatch.delitem(sys.modules, name)
    words = "training needs PyTorch: make setup EXTRAS=torch"
    complains(2, words, "llm", "train", "--out", str(tmp_path / "a.safetensors"))
    assert not list(tmp_path.iterdir())
