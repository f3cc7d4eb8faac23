"""A model file by its name."""

from collections.abc import Mapping
from pathlib import Path

from compiler.frontends.onnx import read_onnx
from compiler.frontends.tflite import read_tflite
from compiler.ir.graph import Graph
from hw.errors import InputError

_SUFFIXES = (".tflite", ".onnx")


def read_model(path: Path, sizes: Mapping[str, int] | None = None) -> Graph:
    """The graph of a model file.

    Parameters
    ----------
    path : Path
        The file; its suffix tells its kind.
    sizes : dict
        Sizes of dimensions that an ONNX file only names.

    Raises
    ------
    InputError
        Its kind is not known, or as its front end says.
    """
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise InputError(f"{path}: a model's name must end in {' or '.join(_SUFFIXES)}")
    if suffix == ".onnx":
        return read_onnx(path, sizes)
    if sizes:
        raise InputError(f"{path}: only dimensions of .onnx files have names, none is {', '.join(sizes)}")
    return read_tflite(path)
