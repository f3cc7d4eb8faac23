"""A model file by its name."""

from pathlib import Path

from compiler.frontends.onnx import read_onnx
from compiler.frontends.tflite import read_tflite
from compiler.ir.graph import Graph
from hw.errors import InputError

_READERS = {".tflite": read_tflite, ".onnx": read_onnx}


def read_model(path: Path) -> Graph:
    """The graph of a model file.

    Raises
    ------
    InputError
        Its kind is not known, or as its front end says.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: a model's name must end in {' or '.join(_READERS)}")
    return reader(path)
