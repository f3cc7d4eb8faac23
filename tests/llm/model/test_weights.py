"""Tests of weight files of the language model."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from compiler.llm.model.numpy_transformer import Gpt, TransformerShape
from compiler.llm.model.weights import load, load_extended, save
from compiler.llm.tokens.vocabulary import LANGUAGE, RELATED
from hw.errors import InputError, WorkError

SHAPE = TransformerShape(len(LANGUAGE), width=16, heads=2, layers=1, hidden=24, context=32)


@pytest.fixture
def model() -> Gpt:
    rng = np.random.default_rng(0)
    return Gpt(
        SHAPE, {name: rng.normal(size=size).astype(np.float32) for name, size in SHAPE.tensors.items()}
    )


def test_round_trip(model: Gpt, tmp_path: Path) -> None:
    save(model, tmp_path / "a", {"networks": 3})
    read, about = load(tmp_path / "a")
    assert about == {"networks": 3} and read.shape == SHAPE
    for name, array in model.weights.items():
        assert np.abs(read.weights[name] - array).max() <= np.abs(array).max() / 127
    save(read, tmp_path / "b", {"networks": 3})
    assert (tmp_path / "a").stat().st_size == (tmp_path / "b").stat().st_size
    again, _ = load(tmp_path / "b")
    np.testing.assert_allclose(again.weights["words"], read.weights["words"], rtol=1e-6)


def test_number_of_known_schedules_is_stored(model: Gpt, tmp_path: Path) -> None:
    save(Gpt(SHAPE, model.weights, known=2), tmp_path / "a", {})
    assert load(tmp_path / "a")[0].known == load_extended(tmp_path / "a").known == 2


def test_model_with_fewer_words_is_extended(model: Gpt, tmp_path: Path) -> None:
    """Known words keep their embeddings at their new indices; new words have those of related words or small ones."""
    known = list(LANGUAGE.tokens[::-2])
    rows = model.weights["words"][: len(known)]
    shape = replace(SHAPE, words=len(known))
    save(Gpt(shape, model.weights | {"words": rows}), tmp_path / "a", {})
    _changed(tmp_path / "a", {"language": json.dumps(known)})
    with pytest.raises(InputError, match="--from"):
        load(tmp_path / "a")
    made = load_extended(tmp_path / "a")
    assert made.shape == SHAPE
    for number, word in enumerate(LANGUAGE.tokens):
        row = made.weights["words"][number]
        if (like := word if word in known else RELATED.get(word)) in known:
            np.testing.assert_allclose(row, rows[known.index(like)], atol=np.abs(rows).max() / 127)
        else:
            assert 0 < np.abs(row).max() < 0.2
    np.testing.assert_allclose(made.weights["norm"], model.weights["norm"])


def _changed(path: Path, header: dict | None = None, tensors: dict | None = None) -> Path:
    """Change some values of the file's header and tensors and return its path."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    save_file(load_file(path) | (tensors or {}), path, metadata | (header or {}))
    return path


@pytest.mark.parametrize(
    ("header", "tensors", "says"),
    [
        ({"format": "x"}, {}, "not a language model"),
        ({"version": "99"}, {}, "not a language model of version 1"),
        ({"language": json.dumps([*LANGUAGE.tokens[1:], "a"])}, {}, "another vocabulary"),
        ({"language": json.dumps(["a"])}, {}, "dimensions are inconsistent"),
        ({"language": json.dumps([1])}, {}, "vocabulary is missing or invalid"),
        ({"known": "9"}, {}, "known schedules must be 0..8"),
        ({"known": "true"}, {}, "known schedules must be 0..8"),
        ({"language": "{"}, {}, "cannot be read as a language model"),
        ({"shape": json.dumps({"words": 4})}, {}, "dimensions are not"),
        ({"shape": json.dumps(vars(SHAPE) | {"layers": 10**9})}, {}, "dimensions are not"),
        ({"shape": json.dumps(vars(SHAPE) | {"heads": 3})}, {}, "dimensions are inconsistent"),
        ({"shape": json.dumps(vars(SHAPE) | {"width": "16"})}, {}, "dimensions are not"),
        ({}, {"norm": np.zeros(5, np.float32)}, "'norm'"),
        ({}, {"norm": np.full(16, np.nan, np.float32)}, "not finite"),
        ({}, {"words.factor": np.zeros((3, 1), np.float32)}, "'words'"),
    ],
)
def test_invalid_files_are_rejected(
    model: Gpt, tmp_path: Path, header: dict, tensors: dict, says: str
) -> None:
    save(model, tmp_path / "a", {})
    with pytest.raises(InputError, match=says):
        load(_changed(tmp_path / "a", header, tensors))


@pytest.mark.parametrize("name", ["shape", "language", "about", "profile", "known"])
def test_deeply_nested_metadata_is_rejected(model: Gpt, tmp_path: Path, name: str) -> None:
    save(model, tmp_path / "a", {})
    with pytest.raises(InputError, match=r"cannot be read as a language model: .*recursion"):
        load(_changed(tmp_path / "a", {name: "[" * 200_000}))


def test_files_that_cannot_be_read_or_written(model: Gpt, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xff" * 100)
    for name in ("a", "none"):
        with pytest.raises(InputError, match=name):
            load(tmp_path / name)
    with pytest.raises(WorkError, match="cannot be written"):
        save(model, tmp_path / "no" / "a", {})
