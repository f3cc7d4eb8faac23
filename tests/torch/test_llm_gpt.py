"""The language model in numpy agrees with its PyTorch version."""

from pathlib import Path

import numpy as np
import pytest

from compiler.llm.model.numpy_transformer import TransformerShape
from compiler.llm.model.weights import load, save
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.llm.training.torch_transformer import TorchTransformer

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed: make setup EXTRAS=torch")

SHAPE = TransformerShape(len(LANGUAGE), width=32, heads=2, layers=3, hidden=48, context=40)


def _scores(module: TorchTransformer, words: list[int]) -> np.ndarray:
    with torch.no_grad():
        return module(torch.tensor([words]))[0, -1].numpy()


def test_numpy_equals_torch_token_by_token() -> None:
    module, rng = TorchTransformer(SHAPE, seed=1), np.random.default_rng(2)
    words = rng.integers(len(LANGUAGE), size=20).tolist()
    state = module.gpt().read(words[:7])
    np.testing.assert_allclose(state.scores[0], _scores(module, words[:7]), rtol=1e-4, atol=1e-5)
    state = state.fork(3)
    others = rng.integers(len(LANGUAGE), size=(3, 13))
    for at in range(13):
        state.push(others[:, at : at + 1])
    state.select([2, 0])
    for row, which in enumerate([2, 0]):
        wanted = _scores(module, [*words[:7], *others[which].tolist()])
        np.testing.assert_allclose(state.scores[row], wanted, rtol=1e-4, atol=1e-5)


def test_file_stores_weights_in_8_bits(tmp_path: Path) -> None:
    module = TorchTransformer(SHAPE, seed=3)
    save(module.gpt(), tmp_path / "a.safetensors", {"made": "here"})
    model, about = load(tmp_path / "a.safetensors")
    assert about == {"made": "here"} and model.shape == SHAPE
    for name, array in module.gpt().weights.items():
        step = np.abs(array).max(axis=-1, keepdims=True) / 127
        assert (np.abs(model.weights[name] - array) <= 0.51 * step).all()
    again = TorchTransformer(SHAPE, seed=4)
    again.load_weights(model)
    np.testing.assert_array_equal(again.gpt().weights["words"], model.weights["words"])
