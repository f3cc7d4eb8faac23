"""Tests of the training of the language model: losses, batches, examples, checkpoints."""

import pickle
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from compiler.llm.data.examples import CORPUS, examples
from compiler.llm.data.held_out import is_validation
from compiler.llm.data.trajectories import read
from compiler.llm.model.numpy_transformer import TransformerShape
from compiler.llm.model.weights import load, save
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.llm.training import dataset, loop
from compiler.llm.training.dataset import (
    PromptOptions,
    TokenizedExample,
    batch_of,
    batches,
    length_batches,
    tokenize,
    tokenize_examples,
)
from compiler.llm.training.loop import Recipe, fit, loss_of, validation_loss
from compiler.llm.training.pretrain import Plan, train
from compiler.llm.training.torch_transformer import TorchTransformer
from hw.errors import InputError

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed: make setup EXTRAS=torch")

SHAPE = TransformerShape(len(LANGUAGE), width=32, heads=2, layers=2, hidden=48, context=64)
OPTIONS = PromptOptions(profile=True, want=True, max_tokens=192)


def _examples(seed: int, count: int, most: int = 40) -> list[TokenizedExample]:
    rng = np.random.default_rng(seed)
    return [
        TokenizedExample(tuple(rng.integers(len(LANGUAGE), size=length).tolist()), int(length) // 2)
        for length in rng.integers(4, most, size=count)
    ]


def test_loss_equals_cross_entropy_of_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss equals that of the numpy model, token by token, within the precision of bfloat16."""
    module, drawn = TorchTransformer(SHAPE, seed=5), _examples(6, 5)
    gpt, losses = module.gpt(), []
    for each in drawn:
        for place in range(each.prompt_length, len(each.tokens)):
            scores = torch.tensor(gpt.read(each.tokens[:place]).scores)
            losses.append(float(functional.cross_entropy(scores, torch.tensor([each.tokens[place]]))))
    for low, tolerance in ((False, 1e-5), (True, 5e-3)):
        monkeypatch.setattr(loop, "multiplies_bfloat16", lambda low=low: low)
        found = float(loss_of(module, batch_of(drawn), torch.device("cpu")).detach())
        assert found == pytest.approx(np.mean(losses), rel=tolerance)
        assert validation_loss(module, drawn, Recipe(1, batch=2)) == pytest.approx(
            np.mean(losses), rel=tolerance
        )


def test_bfloat16_training_reaches_similar_loss(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    groups, recipe, losses = [_examples(7, 4)], Recipe(10, batch=4, rate=3e-2), []
    for low in (False, True):
        monkeypatch.setattr(loop, "multiplies_bfloat16", lambda low=low: low)
        losses.append(
            fit(TorchTransformer(SHAPE, seed=8), groups, groups[0], recipe, tmp_path / f"{low}.pt").curve[-1][
                1
            ]
        )
    before = validation_loss(TorchTransformer(SHAPE, seed=8), groups[0], recipe)
    assert losses[0] < before - 0.5 and losses[1] == pytest.approx(losses[0], rel=0.1)


def test_batches_respect_size_limits() -> None:
    drawn = [*_examples(9, 100, most=60), TokenizedExample((1,) * 400, 3)]
    found = list(length_batches(drawn, 16, 256))
    assert sorted(each.tokens for part in found for each in part) == sorted(each.tokens for each in drawn)
    assert found[-1] == [drawn[-1]]
    for part in found[:-1]:
        assert len(part) <= 16 and len(part) * max(len(each.tokens) for each in part) <= 256
    endless = batches([drawn], 16, 256, random.Random(1))
    assert all(next(endless).tokens.size <= 400 for _ in range(50))


def test_parallel_reading_gives_same_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    trajectories, told = read(CORPUS)[::150], []
    alone = tokenize_examples(trajectories, OPTIONS, told.append)
    assert told[-1] == f"tokenized {len(trajectories)} of {len(trajectories)} networks"
    monkeypatch.setattr(dataset, "_NETWORKS_PER_PROCESS", 1)
    monkeypatch.setattr(dataset.os, "sched_getaffinity", lambda _process: {0, 1})
    assert tokenize_examples(trajectories, OPTIONS) == alone
    for trajectory, found in zip(trajectories, alone, strict=True):
        known = list(examples(trajectory))
        every = [tokenize(each, best=False) for each in known]
        best = [tokenize(each, best=True) for each in known if each.best]
        assert found.every == [each for each in every if len(each.tokens) <= OPTIONS.max_tokens]
        assert found.best == [each for each in best if len(each.tokens) <= OPTIONS.max_tokens]


def test_model_records_omitted_inputs(tmp_path: Path) -> None:
    """The file of a model records which input was omitted in training, and the loaded model omits the same input."""
    trajectories = read(CORPUS)
    trajectories = [each for each in trajectories if each.machine == "usual"]
    trajectories = [
        *[each for each in trajectories if not is_validation(each)][:3],
        *[each for each in trajectories if is_validation(each)][:3],
    ]
    for what in ("profile", "want"):
        plan = Plan(replace(SHAPE, context=256), Recipe(1, batch=2), Recipe(0), **{what: False})  # type: ignore[arg-type]
        found = train(trajectories, plan, tmp_path / what)
        assert found.about["without"] == [what] and found.about["plan"][what] is False
        save(found.model, tmp_path / "a.safetensors", found.about)
        model, about = load(tmp_path / "a.safetensors")
        assert about["without"] == [what] and model.profile == (what != "profile")


def test_training_resumes_from_checkpoint(tmp_path: Path) -> None:
    groups, recipe, path = [_examples(3, 20)], Recipe(3, batch=4), tmp_path / "deep" / "a.pt"
    module = TorchTransformer(SHAPE, seed=1)
    first = fit(module, groups, groups[0], recipe, path)
    again = TorchTransformer(SHAPE, seed=1)
    assert fit(again, groups, groups[0], recipe, path) == first
    for name, array in module.gpt().weights.items():
        np.testing.assert_array_equal(again.gpt().weights[name], array)


@pytest.mark.parametrize("other", ["recipe", "weights", "examples"])
def test_checkpoints_of_other_runs_are_rejected(tmp_path: Path, other: str) -> None:
    groups, recipe, path = [_examples(3, 20)], Recipe(1, batch=4), tmp_path / "a.pt"
    fit(TorchTransformer(SHAPE, seed=1), groups, groups[0], recipe, path)
    recipe = Recipe(2, batch=4) if other == "recipe" else recipe
    groups = [_examples(4, 20)] if other == "examples" else groups
    with pytest.raises(InputError, match=r"a\.pt: the checkpoint belongs to another training run; remove it"):
        fit(TorchTransformer(SHAPE, seed=2 if other == "weights" else 1), groups, groups[0], recipe, path)


def _truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flipped(data: bytes) -> bytes:
    middle = data.index(b"data.pkl") + 100
    return data[:middle] + bytes(255 - each for each in data[middle : middle + 60]) + data[middle + 60 :]


@pytest.mark.parametrize(
    "damage",
    [
        _truncated,
        _flipped,
        lambda _: b"",
        lambda data: data[:3],
        lambda data: data[4:],
        lambda data: random.Random(1).randbytes(len(data)),
        lambda _: pickle.dumps({"step": 3}),
        lambda _: pickle.dumps([1, 2]),
        lambda _: pickle.dumps(Path("a")),
        lambda _: b"PK\x03\x04nonsense",
        lambda _: b"(((((",
        lambda _: b"\x80\x02.",
    ],
)
def test_damaged_checkpoints_are_rejected(tmp_path: Path, damage) -> None:
    groups, recipe, path = [_examples(3, 20)], Recipe(1, batch=4), tmp_path / "a.pt"
    fit(TorchTransformer(SHAPE, seed=1), groups, groups[0], recipe, path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        InputError, match=r"a\.pt: cannot be read as a checkpoint: .*; remove it to start from scratch"
    ):
        fit(TorchTransformer(SHAPE, seed=1), groups, groups[0], recipe, path)


@pytest.mark.parametrize(
    "state",
    [
        [],
        {},
        {"asked": 1},
        {"asked": None, "module": {}},
        {"asked": None, "module": {}, "optimizer": 3},
    ],
)
def test_foreign_checkpoints_are_rejected(tmp_path: Path, state) -> None:
    torch.save(state, tmp_path / "a.pt")
    groups = [_examples(3, 20)]
    with pytest.raises(InputError, match=r"a\.pt: .*; remove it to start from scratch"):
        fit(TorchTransformer(SHAPE, seed=1), groups, groups[0], Recipe(1, batch=4), tmp_path / "a.pt")


def test_incomplete_checkpoints_are_rejected(tmp_path: Path) -> None:
    groups, recipe, path = [_examples(3, 20)], Recipe(1, batch=4), tmp_path / "a.pt"
    fit(TorchTransformer(SHAPE, seed=1), groups, groups[0], recipe, path)
    whole = torch.load(path, weights_only=True)
    for missing in ("module", "optimizer", "step", "curve"):
        for value in ({}, "nonsense", None, [1, 2]):
            if (missing, value) != ("curve", {}):
                torch.save(whole | {missing: value}, path)
                with pytest.raises(InputError, match="cannot be read as a checkpoint"):
                    fit(TorchTransformer(SHAPE, seed=1), groups, groups[0], recipe, path)
