"""Import of models in any supported format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from compiler.frontends.builder import bind_inputs
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
from compiler.util.files import PACKAGE_SUFFIX
from compiler.util.plugin_registry import check_module
from hw.errors import InputError, shown

_SUFFIXES = (".tflite", ".onnx")
#: Suffixes of PyTorch files; these hold weights or code and cannot be imported as models.
_TORCH_SUFFIXES = (".py", ".pt", ".pth")
#: Suffix of files written by `torch.export.save`.
_EXPORTED = ".pt2"
#: Suffixes of Keras files, and the file that marks a folder as a SavedModel.
_KERAS_SUFFIXES, _SAVED_MODEL = (".h5", ".keras"), "saved_model.pb"


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
        Export arguments of PyTorch modules, as for `read_module`; arguments that the named function returns take
        precedence.
    bind : dict
        Values of the inputs that become constants, by name: scalars, or arrays of the inputs' shapes.

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
        check_module(str(path))
        torch_library()
        loaded = load_reference(str(path))
        example = example if loaded.example is None else loaded.example
        shapes = dynamic_shapes if loaded.dynamic_shapes is None else loaded.dynamic_shapes
        graph = read_module(loaded.model, example, dynamic_shapes=shapes, sizes=sizes, name=str(path))
        return bind_inputs(graph, bind)
    check_suffix(path)
    if path.suffix.lower() == ".onnx":
        return read_onnx(path, sizes, bind)
    if sizes:
        raise InputError(f"{path}: only .onnx files have named dimensions, so there is no {', '.join(sizes)}")
    return bind_inputs(read_tflite(path), bind)


def check_suffix(path: Path, *, compiled: bool = False) -> None:
    """Raise InputError, with advice for known formats, if a file does not have the suffix of a supported format.

    Parameters
    ----------
    path : Path
        Path of the file, which need not exist.
    compiled : bool
        True if the file may also be a compiled network.
    """
    suffix = path.suffix.lower()
    known = (*_SUFFIXES, PACKAGE_SUFFIX) if compiled else _SUFFIXES
    if suffix in known:
        return
    if suffix == PACKAGE_SUFFIX:
        raise InputError(f"{path} is already compiled: give the model itself")
    if suffix in _TORCH_SUFFIXES:
        raise InputError(
            f"{path}: pickled models are not loaded (unsafe); pass module:function, or export to ONNX"
        )
    if suffix == _EXPORTED:
        raise InputError(
            f"{path}: write a function that returns torch.export.load({str(path)!r}), and name it module:function"
        )
    if suffix in _KERAS_SUFFIXES or (path / _SAVED_MODEL).is_file():
        raise InputError(
            f"{path}: TensorFlow models are read as .tflite: convert it with tf.lite.TFLiteConverter"
        )
    raise InputError(
        f"{path}: a model must be a file ending in {', '.join(known[:-1])} or {known[-1]}, or module:function"
    )


def default_rounding(model: Path | Any) -> str:
    """Return the default rounding mode of a model, which is the mode of the reference runtime of its format."""
    if isinstance(model, str | Path):
        onnx = is_reference(model) or Path(model).suffix.lower() == ".onnx"
    else:
        onnx = is_module(model)
    return "onnxruntime" if onnx else "reference"
