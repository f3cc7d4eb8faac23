"""Reads ONNX files."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

# Importing them enters their conversions and rewrites.
import compiler.frontends.onnx.integers
import compiler.frontends.onnx.operators.cast
import compiler.frontends.onnx.operators.control
import compiler.frontends.onnx.operators.conv_transpose
import compiler.frontends.onnx.operators.elementwise
import compiler.frontends.onnx.operators.functions
import compiler.frontends.onnx.operators.groups
import compiler.frontends.onnx.operators.limits
import compiler.frontends.onnx.operators.logic
import compiler.frontends.onnx.operators.loops
import compiler.frontends.onnx.operators.lstm
import compiler.frontends.onnx.operators.matmul
import compiler.frontends.onnx.operators.pad
import compiler.frontends.onnx.operators.parts
import compiler.frontends.onnx.operators.pool
import compiler.frontends.onnx.operators.repeat
import compiler.frontends.onnx.operators.resize
import compiler.frontends.onnx.qlinear  # noqa: F401
from compiler.frontends.onnx.convert import GraphReader
from compiler.frontends.onnx.errors import DAMAGE, UnsupportedNodesError
from compiler.ir.graph import Graph
from hw.errors import InputError, shown


def read_onnx(
    source: Path | ModelProto,
    sizes: Mapping[str, int] | None = None,
    bind: Mapping[str, NDArray] | None = None,
) -> Graph:
    """The graph of an ONNX model.

    Inputs and outputs keep the file's names, shapes and types; inside, images have their channels last. Quantized
    models, in any of the forms that there are, become nodes on integers; what is not quantized becomes float32.

    Parameters
    ----------
    source : Path or ModelProto
        A file, whose external data must lie below its folder; or a model in memory, which cannot have any.
    sizes : dict
        Sizes of dimensions that the file only names. A first dimension that is not named here is 1.
    bind : dict
        Values of inputs that become constants, by name: one number, or an array of the input's shape.

    Raises
    ------
    InputError
        The file cannot be read, is damaged, or a size is missing.
    UnsupportedNodesError
        It has nodes that there is no conversion for; all such are named at once.
    """
    called = source if isinstance(source, Path) else shown(source.graph.name or "model")
    try:
        with np.errstate(all="ignore"):  # what overflows in a damaged file is seen by its result
            return GraphReader(source, dict(sizes or {}), dict(bind or {})).graph()
    except UnsupportedNodesError as error:
        error.args = (f"{called}: {error}",)
        raise
    except InputError as error:
        raise InputError(f"{called}: {error}") from None
    except DAMAGE as error:
        raise InputError(f"{called}: damaged ONNX file: {error or type(error).__name__}") from None
