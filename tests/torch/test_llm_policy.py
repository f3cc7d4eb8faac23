"""Tests of the group-relative policy gradient: agreement with numpy, effect on the model, and training in rounds."""

import json
import random
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from compiler.llm.data.self_training import RolloutGroup
from compiler.llm.model.numpy_transformer import Gpt, TransformerShape
from compiler.llm.model.weights import load
from compiler.llm.tokens.layer_prompt import Ask
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.llm.training import loop
from compiler.llm.training.grpo import GrpoPolicy, advantages, policy_loss, reinforce, tokenize_answers
from compiler.llm.training.torch_transformer import TorchTransformer
from scripts import llm_reinforce

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed: make setup EXTRAS=torch")

SHAPE = TransformerShape(len(LANGUAGE), width=32, heads=2, layers=2, hidden=48, context=64)


def _group(seed: int, answers: int) -> RolloutGroup:
    rng = random.Random(seed)
    words = list(LANGUAGE.tokens)
    said = [rng.choices(words, k=rng.randint(2, 5)) for _ in range(answers)]
    return RolloutGroup(Ask.SCHEDULE, rng.choices(words, k=7), said, [rng.uniform(0.7, 2.0) for _ in said])


def _logs(model: Gpt, prompt: list[int], answer: list[int]) -> list[float]:
    """Return the log-probability of each word of an answer."""
    found = []
    for at, word in enumerate(answer):
        scores = model.read([*prompt, *answer[:at]]).scores[0].astype(np.float64)
        found.append(scores[word] - scores.max() - np.log(np.exp(scores - scores.max()).sum()))
    return found


def test_advantages_from_logarithms_of_costs():
    found = advantages([0.5, 1.0, 2.0])
    assert found == pytest.approx([1 / (np.sqrt(2 / 3) + 0.01 / np.log(2)), 0, -found[0]]) and found[0] > 0
    assert advantages([1.2, 1.2]) == [0, 0]
    close = advantages([1.0, 1.0001])
    assert 0 < close[0] < 0.01  # the difference is too small to learn from


def test_equal_costs_and_long_answers_are_omitted():
    group = _group(1, 4)
    same = RolloutGroup(group.ask, group.prompt, group.answers, [1.0] * 4)
    found = tokenize_answers([same, group], 64)
    assert [each.advantage for each in found] == advantages(group.costs)
    assert [list(each.tokens[each.prompt_length :]) for each in found] == [
        LANGUAGE.encode(a) for a in group.answers
    ]
    assert len(tokenize_answers([group], 7 + 2)) == sum(len(answer) <= 2 for answer in group.answers)


def test_objective_equals_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "multiplies_bfloat16", lambda: False)
    policy, device = GrpoPolicy(clip=0.1, near=0.5), torch.device("cpu")
    now, before = TorchTransformer(SHAPE, seed=1), TorchTransformer(SHAPE, seed=2)
    answers = tokenize_answers([_group(3, 5)], 64)
    terms, clipped = [], 0
    for each in answers:
        prompt, answer = list(each.tokens[: each.prompt_length]), list(each.tokens[each.prompt_length :])
        new, old = (_logs(module.gpt(), prompt, answer) for module in (now, before))
        for a, b in zip(new, old, strict=True):
            ratio = np.exp(a - b)
            kept = min(max(ratio, 0.9), 1.1)
            clipped += kept != ratio
            terms.append(
                min(ratio * each.advantage, kept * each.advantage) - 0.5 * (np.exp(b - a) - (b - a) - 1)
            )
    assert clipped
    found = float(policy_loss(now, before, answers, policy, device).detach())
    assert found == pytest.approx(-np.mean(terms), rel=1e-4)


def test_better_answers_become_more_likely() -> None:
    model, groups = TorchTransformer(SHAPE, seed=4).gpt(), [_group(seed, 6) for seed in range(8)]
    found = reinforce(model, groups, [], GrpoPolicy(passes=12, batch=16, rate=1e-3))
    again = reinforce(model, groups, [], GrpoPolicy(passes=12, batch=16, rate=1e-3))
    assert all(np.array_equal(array, again.weights[name]) for name, array in found.weights.items())
    better, worse = [], []
    for group in groups:
        prompt = LANGUAGE.encode(group.prompt)
        for words, advantage in zip(group.answers, advantages(group.costs), strict=True):
            answer = LANGUAGE.encode(words)
            more = np.mean(_logs(found, prompt, answer)) - np.mean(_logs(model, prompt, answer))
            (better if advantage > 0.3 else worse if advantage < -0.3 else []).append(more)
    assert np.mean(better) > 0.1 > 0 > np.mean(worse)


def test_rounds_and_resumption(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    folder = tmp_path / "rounds"

    def status(*more: object) -> int:
        options = {
            "--networks": 3,
            "--answers": 4,
            "--beside": 2,
            "--layers": 1,
            "--samples": 4,
            "--workers": 1,
        }
        asked = [str(each) for pair in options.items() for each in pair]
        monkeypatch.setattr(
            "sys.argv",
            ["", "--corpus", str(corpus), "--folder", str(folder), *asked, *map(str, more)],
        )
        return llm_reinforce.main()

    assert status("--rounds", 1) == 0
    points = json.loads((folder / "curve.json").read_text("utf-8"))
    assert [each["round"] for each in points] == [0, 1] and 0 < points[1]["questions"] <= 3
    ElementTree.parse(folder / "curve.svg")
    model, about = load(folder / "1" / "model.safetensors")
    assert about["reinforced"]["rounds"] == 1

    # A run that resumes from a journal with a truncated last line has the same results.
    groups = folder / "1" / "groups.jsonl"
    whole = groups.read_text("utf-8")
    groups.write_text(whole[: len(whole) * 2 // 3], "utf-8")
    (folder / "1" / "model.safetensors").unlink()
    assert status("--rounds", 1) == 0
    *_, torn = whole[: len(whole) * 2 // 3].splitlines()
    lines = [line for line in groups.read_text("utf-8").splitlines() if line != torn]
    assert sorted(lines) == sorted(whole.splitlines())
    again = load(folder / "1" / "model.safetensors")[0].weights
    assert all(np.array_equal(array, again[name]) for name, array in model.weights.items())
    assert json.loads((folder / "curve.json").read_text("utf-8")) == points

    capsys.readouterr()
    assert status("--passes", 3) == 2
    assert "was created with another --passes: choose another --folder" in capsys.readouterr().err
    assert status("--rate", "nan") == 2 and "--rate must be between 0 and 1" in capsys.readouterr().err
    assert status("--workers", 0) == 2 and "--workers must be at least 1, not 0" in capsys.readouterr().err
    assert status("--answers", 1) == 2 and "--answers must be at least 2, not 1" in capsys.readouterr().err
