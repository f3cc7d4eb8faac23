"""Reading of models of any supported format."""

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
#: Files of PyTorch hold weights or code, and are no models by themselves.
_TORCH = (".py", ".pt", ".pth", ".pt2")


def read_model(
    model: Path | Any,
    sizes: Mapping[str, int] | None = None,
    *,
    example: Any = None,
    dynamic_shapes: Any = None,
    bind: Mapping[str, NDArray] | None = None,
) -> Graph:
    """The graph of a model.

    Parameters
    ----------
    model : Path, or torch.nn.Module, or torch.export.ExportedProgram
        A file, whose suffix tells its kind; or `module:function`, Python code of the user's own, which is run.
    sizes : dict
        Sizes of dimensions that an ONNX file only names, or that a PyTorch module leaves open.
    example, dynamic_shapes
        As `read_module` has them, if the function does not say it; for PyTorch modules only.
    bind : dict
        Values of inputs that become constants, by name: one number, or an array of the input's shape.

    Raises
    ------
    InputError
        Its kind is not known, or as its front end says.
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
        made = load_reference(str(path))
        example = example if made.example is None else made.example
        shapes = dynamic_shapes if made.dynamic_shapes is None else made.dynamic_shapes
        graph = read_module(made.model, example, dynamic_shapes=shapes, sizes=sizes, name=str(path))
        return bind_inputs(graph, bind)
    suffix = path.suffix.lower()
    if suffix in _TORCH:
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
    """Whose rounding a model has where none is asked for: that of who runs such models elsewhere."""
    if isinstance(model, str | Path):
        onnx = is_reference(model) or Path(model).suffix.lower() == ".onnx"
    else:
        onnx = is_module(model)
    return "onnxruntime" if onnx else "reference"
