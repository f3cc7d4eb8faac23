"""Programs of small networks, and untrained models."""

from collections.abc import Sequence

import numpy as np

from compiler.llm.model.numpy_transformer import Gpt, TransformerShape, TransformerState
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.edits.editable_programs import EditableProgram, EditablePrograms
from hw.config import load_target

POINTS = {
    "conv": CalibrationNetwork((9, 9, 12), (CalibrationOp("conv", 20, 3),)),
    "depthwise": CalibrationNetwork((9, 9, 20), (CalibrationOp("depthwise", 0, 3),)),
    "add": CalibrationNetwork((9, 9, 12), (CalibrationOp("add"),)),
    "max_pool": CalibrationNetwork((8, 8, 12), (CalibrationOp("max_pool", 0, 2, 2),)),
    "softmax": CalibrationNetwork((5, 6, 12), (CalibrationOp("softmax"),)),
    "chain": CalibrationNetwork(
        (9, 9, 8), (CalibrationOp("conv", 12, 3), CalibrationOp("tanh"), CalibrationOp("conv", 8))
    ),
}


def workshop(name: str, target: str = "n4") -> EditablePrograms:
    """Return the editable programs of a network."""
    return EditablePrograms(
        ModelCompiler(
            POINTS[name].graph(5), load_target(target), CompileOptions(rounding="reference")
        ).network()
    )


def pieces() -> list[tuple[EditablePrograms, EditableProgram]]:
    """Return each program of all networks, together with all programs of the same network."""
    made = [workshop(name) for name in POINTS]
    return [(each, piece) for each in made for piece in each.programs]


def random_model(seed: int = 0, context: int = 512) -> Gpt:
    """Return a model with random weights."""
    shape = TransformerShape(len(LANGUAGE), width=16, heads=2, layers=1, hidden=24, context=context)
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(size=size).astype(np.float32) * 0.3 for name, size in shape.tensors.items()}
    return Gpt(shape, weights)


class RecordingModel(Gpt):
    """Model that records the questions it reads."""

    def __init__(self, model: Gpt):
        super().__init__(model.shape, model.weights)
        self.questions: list[list[str]] = []

    def read(self, tokens: Sequence[int]) -> TransformerState:
        """Record a question and read it."""
        self.questions.append(LANGUAGE.decode(tokens))
        return super().read(tokens)
