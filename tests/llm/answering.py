"""Programs of small networks, and models that have not learnt anything."""

from collections.abc import Sequence

import numpy as np

from compiler.hpm.points import Op, Point
from compiler.llm.gpt import Gpt, Shape, State
from compiler.llm.language import LANGUAGE
from compiler.options import Options
from compiler.pipeline import Prepared
from compiler.specialize.edits.workshop import Piece, Workshop
from hw.config import load_target

POINTS = {
    "conv": Point((9, 9, 12), (Op("conv", 20, 3),)),
    "depthwise": Point((9, 9, 20), (Op("depthwise", 0, 3),)),
    "add": Point((9, 9, 12), (Op("add"),)),
    "max_pool": Point((8, 8, 12), (Op("max_pool", 0, 2, 2),)),
    "softmax": Point((5, 6, 12), (Op("softmax"),)),
    "chain": Point((9, 9, 8), (Op("conv", 12, 3), Op("tanh"), Op("conv", 8))),
}


def workshop(name: str, target: str = "n4") -> Workshop:
    """The programs of a network."""
    return Workshop(
        Prepared(POINTS[name].graph(5), load_target(target), Options(rounding="reference")).network()
    )


def pieces() -> list[tuple[Workshop, Piece]]:
    """Programs of all of them."""
    made = [workshop(name) for name in POINTS]
    return [(each, piece) for each in made for piece in each.pieces]


def ignorant(seed: int = 0, context: int = 512) -> Gpt:
    """A model with weights by chance."""
    shape = Shape(len(LANGUAGE), width=16, heads=2, layers=1, hidden=24, context=context)
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(size=size).astype(np.float32) * 0.3 for name, size in shape.tensors.items()}
    return Gpt(shape, weights)


class Recording(Gpt):
    """A model that keeps the questions that it is asked."""

    def __init__(self, model: Gpt):
        super().__init__(model.shape, model.weights)
        self.questions: list[list[str]] = []

    def read(self, words: Sequence[int]) -> State:
        """As the model reads them."""
        self.questions.append(LANGUAGE.decode(words))
        return super().read(words)
