"""PyTorch modules and `module:function` references: exported to ONNX, then read by the ONNX front end."""

import ast
import importlib
import importlib.util
import io
import logging
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from compiler.frontends.onnx import UnsupportedNodesError, read_onnx
from compiler.ir.graph import Graph
from compiler.util import plugin_registry
from compiler.util.plugin_registry import guarded
from hw.errors import InputError, shown

#: What the extra `torch` brings.
_PACKAGES = ("torch", "onnxscript")
MISSING = (
    "PyTorch models need {name}, which is not installed: `make setup EXTRAS=torch`, or "
    "`pip install -e '.[torch]'` in the checkout, installs it"
)


def torch_library() -> Any:
    """The package torch.

    Raises
    ------
    InputError
        It, or what exporting with it needs, is not installed; the message says how to get it.
    """
    for name in _PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise InputError(MISSING.format(name=name))
        guarded(partial(importlib.import_module, name), f"{name} cannot be imported")
    return importlib.import_module("torch")


def is_module(model: Any) -> bool:
    """Return True for a torch module or an exported program; does not import torch."""
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(model).__mro__}
    return bool(kinds & {"torch.nn.modules.module.Module", "torch.export.exported_program.ExportedProgram"})


def read_module(
    model: Any,
    example: Any = None,
    *,
    dynamic_shapes: Any = None,
    sizes: Mapping[str, int] | None = None,
    name: str | None = None,
) -> Graph:
    """The graph of a PyTorch module.

    Inputs are called as the parameters of `forward`, outputs `output`, or `output_0`, `output_1`, or by their keys if
    it returns a dict; nodes as the submodules they come from. The module is exported for inference and left as it was.

    Parameters
    ----------
    model : torch.nn.Module or torch.export.ExportedProgram
        What to compile: of float32 weights, or quantized with PT2E.
    example : tensor, array, tuple of them, or dict of them by name
        Inputs that say which shapes and types it is compiled for. An exported program needs none.
    dynamic_shapes : as torch.export.export has it
        Dimensions that the export leaves open.
    sizes : dict
        Their sizes; a first dimension that is not named is 1.
    name : str or None
        For messages and reports; left out: that of the module's class.

    Raises
    ------
    InputError
        torch is not installed, the module cannot be exported, or as `read_onnx`.
    UnsupportedNodesError
        It has operators that there is no conversion for; all such are named at once.
    """
    torch = torch_library()
    title = name or type(model).__name__
    with _quiet(), torch.no_grad(), tempfile.TemporaryDirectory(prefix="mla-") as folder:
        program = exported(torch, model, example, dynamic_shapes, title)
        check_outputs(program, title)
        made = guarded(
            lambda: torch.onnx.export(
                program,
                (),
                dynamo=True,
                verbose=False,
                dynamic_shapes=dynamic_shapes,
                custom_translation_table=translations(torch, program),
            ),
            f"{title} cannot be exported to ONNX",
        )
        named(made.model, program)
        path = Path(folder) / f"{_file_name(title)}.onnx"
        made.save(path)
        return _read(path, title, sizes)


def _read(path: Path, title: str, sizes: Mapping[str, int] | None) -> Graph:
    """The graph of the file, which the user does not know."""
    try:
        return read_onnx(path, sizes)
    except UnsupportedNodesError as error:
        error.args = (str(error).replace(f"{path}", title, 1),)
        raise
    except InputError as error:
        raise InputError(str(error).replace(f"{path}", title, 1)) from None


def _file_name(title: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "." for c in title)[:64] or "model"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' remarks on themselves, which -v lets through; what code prints goes to standard error."""
    with redirect_stdout(sys.stderr):
        if logging.getLogger().isEnabledFor(logging.INFO):
            yield
            return
        before = logging.root.manager.disable
        try:
            logging.disable(logging.CRITICAL)
            with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.disable(before)


@dataclass(frozen=True)
class TorchModel:
    """What a function returned.

    Parameters
    ----------
    model : torch.nn.Module or torch.export.ExportedProgram
    example : tensor, array, tuple of them, dict of them by name, or None
        Inputs to export it with.
    dynamic_shapes : as torch.export.export has it
        Dimensions that stay open.
    """

    model: Any
    example: Any = None
    dynamic_shapes: Any = None


def is_reference(model: str | Path) -> bool:
    """Whether a model is named as `module:function`, not as a file."""
    return plugin_registry.is_reference(str(model)) and not Path(model).exists()


def load_reference(reference: str) -> TorchModel:
    """Call the function that a reference names. This runs the user's code, with all it may do.

    Parameters
    ----------
    reference : str
        `module:function`; the module is looked for as `python -m` does, in the current folder first. The function
        takes no arguments and returns a module, or (module, example inputs), or (module, example inputs, dynamic
        shapes).

    Raises
    ------
    InputError
        There is no such module or function, or its code failed.
    """
    if not plugin_registry.is_reference(reference):
        raise InputError(f"a PyTorch model must be named module:function, not {shown(reference)}")
    function = plugin_registry.load_reference(reference, "functions")
    if not callable(function):
        raise InputError(f"{reference}: must be a function, not {shown(function)}")
    with redirect_stdout(sys.stderr):  # standard output is for results
        made = guarded(function, f"{reference} failed")
    return _parts(reference, made)


def _parts(reference: str, made: Any) -> TorchModel:
    """A module by itself, or with what it is exported with."""
    if not isinstance(made, Sequence):
        return TorchModel(made)
    if not 2 <= len(made) <= 3:
        raise InputError(
            f"{reference}: must return a module, (module, example inputs) or (module, example inputs, "
            f"dynamic shapes), not {len(made)} values"
        )
    return TorchModel(*made)


#: Where PyTorch's exporter notes which submodules and which node of the program a node comes from.
_SCOPES, _SOURCE = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.fx_node"
#: Quantizes to a range of integers that it names.
_QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
_NO_EXAMPLE = (
    "{}: a module is exported with example inputs, which there are none of: return (module, example inputs), or give "
    "a file of samples, or example= in Python"
)


def exported(torch: Any, model: Any, example: Any, dynamic_shapes: Any, title: str) -> Any:
    """The exported program of a module, as it is for inference.

    Parameters
    ----------
    torch : module
        The package.
    model, example, dynamic_shapes
        As `compiler.frontends.torch_module.read_module` has them.
    title : str
        What messages call the module.

    Raises
    ------
    InputError
        It is no module, has no example inputs, or cannot be exported.
    """
    if isinstance(model, torch.export.ExportedProgram):
        return model
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"{title}: must be a torch.nn.Module, not {shown(model)}")
    if example is None:
        raise InputError(_NO_EXAMPLE.format(title))
    args, named = _arguments(torch, example, title)
    with _inference(torch, model):
        return guarded(
            lambda: torch.export.export(model, args, named, dynamic_shapes=dynamic_shapes),
            f"{title} cannot be exported",
            right=_advice,
        )


def _arguments(torch: Any, example: Any, title: str) -> tuple[tuple, dict[str, Any]]:
    """Example inputs as arguments of `forward`."""
    if isinstance(example, Mapping):
        return (), {name: _tensor(torch, each, title) for name, each in example.items()}
    many = example if isinstance(example, tuple | list) else (example,)
    return tuple(_tensor(torch, each, title) for each in many), {}


def _tensor(torch: Any, value: Any, title: str) -> Any:
    """An array as a tensor; tensors, and structures of them, as they are."""
    if isinstance(value, np.ndarray | np.generic):
        return torch.from_numpy(np.array(value))
    if isinstance(value, torch.Tensor | tuple | list | Mapping):
        return value
    raise InputError(f"{title}: example inputs must be tensors or arrays, not {shown(value)}")


def _advice(error: str) -> str:
    """What would be right, where PyTorch's message alone does not say it."""
    if "data-dependent" in error or "GuardOnDataDependent" in error:
        return "; what depends on values must be written with torch.where or torch.cond, not with `if`"
    return ""


@contextmanager
def _inference(torch: Any, model: Any) -> Iterator[None]:
    """The module in evaluation mode, and afterwards as it was."""
    before = {module: module.training for module in model.modules()}
    try:
        # What was exported before says itself for what it was; it refuses eval().
        if not isinstance(model, torch.fx.GraphModule):
            model.eval()
        yield
    finally:
        for module, training in before.items():
            module.training = training


def check_outputs(program: Any, title: str) -> None:
    """Refuse a program that returns what is no tensor; None is left out.

    Raises
    ------
    InputError
        It returns a number, say.
    """
    for name, output in zip(_output_names(program), program.graph_signature.user_outputs, strict=True):
        if not isinstance(output, str | None):
            raise InputError(f"{title}: {name} must be a tensor, not {shown(output)}")


def named(model: Any, program: Any) -> None:
    """Name inputs, outputs and nodes of an ONNX model as the user knows them.

    Parameters
    ----------
    model : onnx_ir.Model
        Made of the program; changed in place.
    program : torch.export.ExportedProgram
    """
    signature = program.graph_signature
    made = zip(_output_names(program), signature.user_outputs, strict=True)
    _rename(model.graph.outputs, [name for name, output in made if output is not None])
    _rename(model.graph.inputs, list(signature.user_inputs))
    sources = Counter(node.metadata_props.get(_SOURCE) for node in model.graph)
    for node in model.graph:
        scopes = [part for part in _list(node.metadata_props.get(_SCOPES, "")) if part]
        if scopes:
            alone = sources[node.metadata_props.get(_SOURCE)] == 1
            node.name = "/".join([*scopes[-2:], *(() if alone else (node.op_type,))])


def _rename(values: Any, names: list[Any]) -> None:
    """Names for values, if there is one for each and they are different values."""
    if len({id(value) for value in values}) == len(values) == len(names):
        for value, name in zip(values, names, strict=True):
            value.name = str(name)


def _output_names(program: Any) -> list[str]:
    """`output`, or `output_0` and so on, or the keys of a dict, for each tensor that the program returns."""
    pytree = importlib.import_module("torch.utils._pytree")
    spec = program.call_spec.out_spec
    paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(spec.num_leaves)), spec))
    keys = [pytree.keystr(path) for path, _ in paths]  # such as ['scores'][0]
    parts = [re.findall(r"\w+", key) for key in keys]
    return [
        "_".join(part if key[1:2] in "'\"" and key else ["output", *part])
        for key, part in zip(keys, parts, strict=True)
    ]


def _list(text: str) -> list[str]:
    """The exporter's notes: a list of texts as Python writes it."""
    try:
        made = ast.literal_eval(text) if text else []
    except (ValueError, SyntaxError):
        return []
    return [str(each) for each in made] if isinstance(made, list) else []


def translations(torch: Any, program: Any) -> dict[Callable, Callable]:
    """Translations of its quantization to a part of a type's range, which PyTorch's own leaves out."""
    steps = (node for node in program.graph.nodes if str(node.target) == _QUANTIZE)
    return dict.fromkeys((node.target for node in steps if _narrow(torch, *node.args[3:6])), _quantize)


def _narrow(torch: Any, low: int, high: int, dtype: Any) -> bool:
    limits = torch.iinfo(dtype)
    return low > limits.min or high < limits.max


def _quantize(input: Any, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: int) -> Any:
    """As ONNX has it, of numbers that are cut to the part before: a clip is part of what makes them."""
    op = importlib.import_module("onnxscript").opset18
    ir = importlib.import_module("onnx_ir")
    low, high = (np.float32(scale * (step - zero_point)) for step in (quant_min, quant_max))
    zero = np.array(zero_point, ir.DataType(dtype).numpy())
    bounds = (op.Constant(value=ir.tensor(np.array(each))) for each in (low, high))
    return op.QuantizeLinear(op.Clip(input, *bounds), scale, op.Constant(value=ir.tensor(zero)))
