"""The trained networks that tests run, and their outputs in LiteRT."""

from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from compiler.bench.tiny import model_path
from hw.errors import WorkError

NETWORKS = ("ad01_int8", "kws_ref_model", "pretrainedResnet_quant", "vww_96_int8")


def model(name: str) -> Path:
    """Return the file of a network; skip the test or module if the file is missing and cannot be downloaded."""
    try:
        return model_path(name)
    except WorkError as error:
        pytest.skip(str(error), allow_module_level=True)


class Reference:
    """A network in LiteRT.

    Parameters
    ----------
    path : Path
        File of the network.
    rounding : str
        "reference" for the reference kernels, "xnnpack" for the default ones.
    """

    def __init__(self, path: Path, rounding: str = "reference"):
        resolver = OpResolverType.BUILTIN_REF if rounding == "reference" else OpResolverType.AUTO
        self.interpreter = Interpreter(str(path), experimental_op_resolver_type=resolver)
        self.interpreter.allocate_tensors()

    def __call__(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs for inputs in the model's order."""
        for array, detail in zip(inputs.values(), self.interpreter.get_input_details(), strict=True):
            self.interpreter.set_tensor(detail["index"], array)
        self.interpreter.invoke()
        return [self.interpreter.get_tensor(d["index"]) for d in self.interpreter.get_output_details()]


def random_inputs(network, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return random integers for all inputs."""
    return {t.name: rng.integers(-128, 128, t.shape).astype(t.dtype) for t in network.inputs}
