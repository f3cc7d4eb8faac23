"""The exported ONNX network has the same scores in onnxruntime as the numpy model."""

import numpy as np
import onnxruntime

from compiler.llm.model.accelerated import export
from compiler.llm.model.numpy_transformer import Gpt, TransformerShape
from compiler.llm.tokens.vocabulary import LANGUAGE

SHAPE = TransformerShape(len(LANGUAGE), width=16, heads=2, layers=2, hidden=24, context=12)


def test_exported_model_word_by_word() -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=size).astype(np.float32) * 0.3 for name, size in SHAPE.tensors.items()}
    model = Gpt(SHAPE, weights)
    session = onnxruntime.InferenceSession(export(model, 8).SerializeToString())
    cache = {
        f"{kind} {number}": rng.normal(size=(2, 8, 8)).astype(
            np.float32
        )  # unwritten cache entries are arbitrary
        for number in range(2)
        for kind in ("keys", "values")
    }
    words = rng.integers(len(LANGUAGE), size=8)
    names = [each.name for each in session.get_outputs()]
    for place, word in enumerate(words):
        given = {"word": np.array([word]), "place": np.array([place])}
        found = dict(zip(names, session.run(None, given | cache), strict=True))
        np.testing.assert_allclose(
            found["scores"], model.read(words[: place + 1].tolist()).scores, rtol=1e-3, atol=1e-4
        )
        for number in range(2):
            cache[f"keys {number}"][:, place] = found[f"key {number}"][:, 0]
            cache[f"values {number}"][:, place] = found[f"value {number}"][:, 0]
