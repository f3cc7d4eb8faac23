"""Import of models in any supported format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from compiler.frontends.bind import bind_inputs
from compiler.frontends.onnx import read_onnx
from compiler.frontends.tflite import read_tflite
from compiler.frontends.torch_module import (
    is_module,
    is_reference,
    load_reference,
    read_module,
    torch_library,
)
from compiler.ir.graph import Graph
from hw.errors import InputError, shown

_SUFFIXES = (".tflite", ".onnx")
#: Suffixes of PyTorch files; these hold weights or code and cannot be imported as models.
_TORCH_SUFFIXES = (".py", ".pt", ".pth", ".pt2")


def read_model(
    model: Path | Any,
    sizes: Mapping[str, int] | None = None,
    *,
    example: Any = None,
    dynamic_shapes: Any = None,
    bind: Mapping[str, NDArray] | None = None,
) -> Graph:
    """Import a model as a graph.

    Parameters
    ----------
    model : Path, or torch.nn.Module, or torch.export.ExportedProgram
        A model file, whose suffix determines the format, or `module:function`, which names Python code to run.
    sizes : dict
        Sizes of symbolic dimensions of an ONNX file or of dynamic dimensions of a PyTorch module.
    example, dynamic_shapes
        Export arguments as for `read_module`, used if the named function returns none; PyTorch modules only.
    bind : dict
        Values of inputs that become constants, by name: a scalar, or an array of the input's shape.

    Raises
    ------
    InputError
        The format is not supported, or its front end rejects the model.
    """
    bind = bind or {}
    if is_module(model):
        return bind_inputs(read_module(model, example, dynamic_shapes=dynamic_shapes, sizes=sizes), bind)
    if not isinstance(model, str | Path):
        raise InputError(
            f"a model must be a file, module:function, a graph or a PyTorch module, not {shown(model)}"
        )
    path = Path(model)
    if is_reference(path):
        torch_library()
        loaded = load_reference(str(path))
        example = example if loaded.example is None else loaded.example
        shapes = dynamic_shapes if loaded.dynamic_shapes is None else loaded.dynamic_shapes
        graph = read_module(loaded.model, example, dynamic_shapes=shapes, sizes=sizes, name=str(path))
        return bind_inputs(graph, bind)
    suffix = path.suffix.lower()
    if suffix in _TORCH_SUFFIXES:
        raise InputError(
            f"{path}: pickled models are not loaded (unsafe); pass module:function, or export to ONNX"
        )
    if suffix not in _SUFFIXES:
        raise InputError(
            f"{path}: a model must be a file ending in {' or '.join(_SUFFIXES)}, or module:function"
        )
    if suffix == ".onnx":
        return read_onnx(path, sizes, bind)
    if sizes:
        raise InputError(f"{path}: only .onnx files have named dimensions, so there is no {', '.join(sizes)}")
    return bind_inputs(read_tflite(path), bind)


def default_rounding(model: Path | Any) -> str:
    """Return the default rounding mode of a model: that of the reference runtime of its format."""
    if isinstance(model, str | Path):
        onnx = is_reference(model) or Path(model).suffix.lower() == ".onnx"
    else:
        onnx = is_module(model)
    return "onnxruntime" if onnx else "reference"
