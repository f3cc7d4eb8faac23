"""PyTorch front end, which exports modules and `module:function` references to ONNX and imports the result."""

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
from numpy.typing import NDArray

from compiler.frontends.onnx import UnsupportedNodesError, read_onnx
from compiler.ir.graph import Graph
from compiler.util import plugin_registry
from compiler.util.plugin_registry import guarded
from hw.errors import InputError, shown

#: Packages that the optional dependency `torch` installs.
_PACKAGES = ("torch", "onnxscript")
MISSING = (
    "PyTorch models need {name}, which is not installed: `make setup EXTRAS=torch`, or "
    "`pip install -e '.[torch]'` in the checkout, installs it"
)


def torch_library() -> Any:
    """Import the package torch.

    Raises
    ------
    InputError
        torch or a package needed for exporting is not installed; the message says how to install it.
    """
    for name in _PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise InputError(MISSING.format(name=name))
        guarded(partial(importlib.import_module, name), f"{name} cannot be imported")
    return importlib.import_module("torch")


def is_module(model: Any) -> bool:
    """Return True for a torch module or an exported program, without importing torch."""
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
    """Import a PyTorch module as a graph.

    Inputs are named after the parameters of `forward`. A single output is named `output`; several outputs are named
    `output_0`, `output_1` and so on. If `forward` returns a dict, outputs are named after its keys. Nodes are named
    after the submodules that contain them. The module is exported in evaluation mode; its training flags are restored
    afterwards.

    Parameters
    ----------
    model : torch.nn.Module or torch.export.ExportedProgram
        The model to import, with float32 weights or quantized with PT2E.
    example : tensor, array, tuple of them, or dict of them by name
        Example inputs, which determine the shapes and types to compile for; an exported program needs none.
    dynamic_shapes : as for torch.export.export
        Dimensions of the inputs that remain dynamic in the export.
    sizes : dict
        Sizes of the dynamic dimensions by name; a first dimension that is not listed has size 1.
    name : str or None
        Name for messages and reports; None: the name of the module's class.

    Raises
    ------
    InputError
        torch is not installed, the module cannot be exported, or `read_onnx` rejects the result.
    UnsupportedNodesError
        The model has operators without a conversion; the attribute `nodes` of the exception lists all of them.
    """
    torch = torch_library()
    title = name or type(model).__name__
    with _quiet(), torch.no_grad(), tempfile.TemporaryDirectory(prefix="mla-") as folder:
        program = exported(torch, model, example, dynamic_shapes, title)
        check_outputs(program, title)
        check_inference(torch, program, title)
        onnx_program = _as_onnx(torch, program, dynamic_shapes, title)
        named(onnx_program.model, program)
        path = Path(folder) / f"{_file_name(title)}.onnx"
        onnx_program.save(path)
        return _read(path, title, sizes)


#: Maximum number of operators without an ONNX equivalent that one message lists.
_MAX_MISSING = 20
#: Part of PyTorch's message about an operator without an ONNX equivalent: namespace, name and overload.
_NO_FUNCTION = re.compile(r"No ONNX function found for <OpOverload\(op='(\w+)\.(\w+)', overload='(\w+)'\)>")


def _as_onnx(torch: Any, program: Any, dynamic_shapes: Any, title: str) -> Any:
    """Export a program to ONNX.

    PyTorch's exporter stops at the first operator that ONNX does not have. Such operators become nodes of the same name
    in the domain of PyTorch's namespace, so that the ONNX front end lists all of them.
    """
    table = translations(torch, program)

    def export() -> Any:
        return torch.onnx.export(
            program,
            (),
            dynamo=True,
            verbose=False,
            dynamic_shapes=dynamic_shapes,
            custom_translation_table=table,
        )

    missing: list[tuple[str, str, str]] = []
    for _ in range(_MAX_MISSING):
        try:
            return guarded(export, f"{title} cannot be exported to ONNX")
        except InputError as error:
            found = _NO_FUNCTION.search(str(error))
            if found is None and missing:
                # An operator that needs the value of a missing operator cannot be exported either.
                raise UnsupportedNodesError(missing) from None
            if found is None:
                raise
            space, name, overload = found.groups()
            missing.append((name, f"{space}.{name}", ""))
            target = getattr(getattr(getattr(torch.ops, space), name), overload)
            if target in table:
                raise
            table[target] = _unknown_operator(space, name, len(target._schema.returns))
    return guarded(export, f"{title} cannot be exported to ONNX")


def _unknown_operator(space: str, name: str, outputs: int) -> Callable:
    """Return a translation to an ONNX node of an operator that ONNX does not have."""
    onnxscript, schemas = importlib.import_module("onnxscript"), importlib.import_module("onnx").defs.OpSchema
    variadic = schemas.FormalParameterOption.Variadic
    schema = schemas(
        name,
        space,
        1,
        inputs=[schemas.FormalParameter("inputs", "T", param_option=variadic, is_homogeneous=False)],
        outputs=[schemas.FormalParameter(f"output{number}", "T") for number in range(outputs)],
        type_constraints=[("T", [f"tensor({each})" for each in _ONNX_TYPES], "")],
    )
    operator = onnxscript.values.Op(onnxscript.values.Opset(space, 1), name, schema)

    def translation(*arguments: Any, **_named: Any) -> Any:
        return operator(*(each for each in arguments if isinstance(each, onnxscript.ir.Value)))

    return translation


#: Names of the types of ONNX tensors.
_ONNX_TYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("bfloat16", "float16", "float", "double", "complex64", "complex128"),
)


def _read(path: Path, title: str, sizes: Mapping[str, int] | None) -> Graph:
    """Import the exported file; errors name the model, not the temporary file."""
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
    """Return a context that redirects stdout to stderr and, unless -v is given, silences the exporter's log."""
    with redirect_stdout(sys.stderr):
        if logging.getLogger().isEnabledFor(logging.INFO):
            yield
            return
        previous_level = logging.root.manager.disable
        try:
            logging.disable(logging.CRITICAL)
            with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.disable(previous_level)


@dataclass(frozen=True)
class TorchModel:
    """Model returned by a user's function, with the arguments for its export.

    Parameters
    ----------
    model : torch.nn.Module or torch.export.ExportedProgram
        The model to import.
    example : tensor, array, tuple of them, dict of them by name, or None
        Example inputs for the export.
    dynamic_shapes : as for torch.export.export
        Dimensions of the inputs that remain dynamic in the export.
    """

    model: Any
    example: Any = None
    dynamic_shapes: Any = None


def is_reference(model: str | Path) -> bool:
    """Return True if a model is given as `module:function` and no file has that name."""
    return plugin_registry.is_reference(str(model)) and not Path(model).exists()


def load_reference(reference: str) -> TorchModel:
    """Import the module that a reference names and call the function that it names.

    This runs arbitrary user code.

    Parameters
    ----------
    reference : str
        `module:function`; as with `python -m`, the current directory is searched for the module first. The function
        takes no arguments and returns a module, or (module, example inputs), or (module, example inputs, dynamic
        shapes).

    Raises
    ------
    InputError
        The module or function does not exist, or the user's code raised an exception.
    """
    if not plugin_registry.is_reference(reference):
        raise InputError(f"a PyTorch model must be named module:function, not {shown(reference)}")
    function = plugin_registry.load_reference(reference, "functions")
    if not callable(function):
        raise InputError(f"{reference}: must be a function, not {shown(function)}")
    with redirect_stdout(sys.stderr):  # standard output is for results
        returned = guarded(function, f"{reference} failed")
    return _torch_model(reference, returned)


def _torch_model(reference: str, returned: Any) -> TorchModel:
    """Convert the return value of a user's function to a TorchModel."""
    if not isinstance(returned, Sequence):
        return TorchModel(returned)
    if not 2 <= len(returned) <= 3:
        raise InputError(
            f"{reference}: must return a module, (module, example inputs) or (module, example inputs, "
            f"dynamic shapes), not {len(returned)} values"
        )
    return TorchModel(*returned)


#: Metadata keys of PyTorch's exporter: the submodules and the program node from which an ONNX node was exported.
_SCOPES, _SOURCE = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.fx_node"
#: Quantization operator of PT2E, whose integer range may be narrower than that of its type.
_QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
_NO_EXAMPLE = (
    "{}: a module is exported with example inputs, which there are none of: return (module, example inputs), or give "
    "a file of samples, or example= in Python"
)


def exported(torch: Any, model: Any, example: Any, dynamic_shapes: Any, title: str) -> Any:
    """Return a module exported in evaluation mode; an exported program is returned unchanged.

    Parameters
    ----------
    torch : module
        The imported package torch.
    model, example, dynamic_shapes
        The same as for `read_module`.
    title : str
        Name of the module for error messages.

    Raises
    ------
    InputError
        The model is not a module, has no example inputs, or cannot be exported.
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
    """Return the example inputs as positional and keyword arguments of `forward`."""
    if isinstance(example, Mapping):
        return (), {name: _tensor(torch, each, title) for name, each in example.items()}
    examples = example if isinstance(example, tuple | list) else (example,)
    return tuple(_tensor(torch, each, title) for each in examples), {}


def _tensor(torch: Any, value: Any, title: str) -> Any:
    """Convert an array to a tensor; tensors and nested structures of tensors are returned unchanged."""
    if isinstance(value, np.ndarray | np.generic):
        return torch.from_numpy(np.array(value))
    if isinstance(value, torch.Tensor | tuple | list | Mapping):
        return value
    raise InputError(f"{title}: example inputs must be tensors or arrays, not {shown(value)}")


def _advice(error: str) -> str:
    """Return advice to append to a PyTorch export error; an empty string if the message suffices."""
    if "data-dependent" in error or "GuardOnDataDependent" in error:
        return "; what depends on values must be written with torch.where or torch.cond, not with `if`"
    return ""


@contextmanager
def _inference(torch: Any, model: Any) -> Iterator[None]:
    """Return a context in which the module is in evaluation mode; its training flags are restored on exit."""
    before = {module: module.training for module in model.modules()}
    try:
        # A previously exported module has a fixed mode and rejects eval().
        if not isinstance(model, torch.fx.GraphModule):
            model.eval()
        yield
    finally:
        for module, training in before.items():
            module.training = training


def evaluated(
    model: TorchModel, sample: Mapping[str, NDArray], bound: Mapping[str, NDArray], title: str
) -> list[NDArray]:
    """Return the outputs of a module in PyTorch, in evaluation mode.

    Parameters
    ----------
    model : TorchModel
        The module, with the example inputs from which the inputs of the sample are named.
    sample : dict of arrays
        Inputs by the names that `read_module` gives them.
    bound : dict of arrays
        Values, by name, of inputs that are not in the sample: arrays, or scalars for all elements.
    title : str
        Name of the module for error messages.

    Raises
    ------
    InputError
        The module cannot be exported or fails.
    """
    torch = torch_library()
    pytree = importlib.import_module("torch.utils._pytree")
    module, example = model.model, model.example
    if isinstance(module, torch.export.ExportedProgram):
        args, named = module.example_inputs or ((), {})
        names, module = list(module.graph_signature.user_inputs), module.module()
    elif example is not None:
        args, named = _arguments(torch, example, title)
        with _quiet():
            names = _input_names(torch, model, title) if bound else list(named or sample)
    else:
        args, named = ((), dict(sample)) if len(sample) > 1 else (tuple(sample.values()), {})
        names = list(sample)
    leaves, spec = pytree.tree_flatten((args, named))

    def value(name: str, leaf: Any) -> Any:
        if name in sample:
            return torch.from_numpy(np.array(sample[name]))
        return torch.from_numpy(np.array(bound[name])).to(leaf.dtype).expand(leaf.shape)

    given = [value(*pair) for pair in zip(names, leaves, strict=True)]
    args, named = pytree.tree_unflatten(given, spec)
    with _inference(torch, module), torch.no_grad():
        made = pytree.tree_leaves(module(*args, **named))
    return [each.numpy() for each in made if each is not None]


def _input_names(torch: Any, model: TorchModel, title: str) -> list[str]:
    """Return the names of all inputs of an exported module."""
    program = exported(torch, model.model, model.example, model.dynamic_shapes, title)
    return list(program.graph_signature.user_inputs)


def check_outputs(program: Any, title: str) -> None:
    """Check that a program returns only tensors or None.

    Raises
    ------
    InputError
        An output is of another type, for example a number.
    """
    for name, output in zip(_output_names(program), program.graph_signature.user_outputs, strict=True):
        if not isinstance(output, str | None):
            raise InputError(f"{title}: {name} must be a tensor, not {shown(output)}")


#: Arguments of operators that state whether they run in training mode, and with which probability they drop values.
_TRAINING, _PROBABILITY = ("train", "training"), ("p", "dropout", "dropout_p")


def check_inference(torch: Any, program: Any, title: str) -> None:
    """Check that a program is in evaluation mode, draws no random numbers and changes neither inputs nor buffers.

    Raises
    ------
    InputError
        The program does one of these things, which the accelerator cannot do as PyTorch does them.
    """
    random = torch.Tag.nondeterministic_seeded
    modules = [each for each in program.graph_module.modules() if isinstance(each, torch.fx.GraphModule)]
    nodes = [node for module in modules for node in module.graph.nodes if hasattr(node.target, "_schema")]
    for node in nodes:
        given = _arguments_by_name(node)
        modes = [given[name] for name in _TRAINING if name in given]
        if any(given.get(name) == 0 for name in _PROBABILITY):
            continue  # nothing is dropped
        if any(modes):
            raise InputError(f"{title}: {node.target} is in training mode: call eval() of the module first")
        if random in node.target.tags and not modes:
            raise InputError(f"{title}: {node.target} draws random numbers: make them an input")
    if any(node.target._schema.is_mutable for node in nodes):  # perhaps only of intermediate values
        program = program.run_decompositions({})
    signature = program.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise InputError(
            f"{title}: it changes {', '.join(changed)} in place, which a compiled network cannot do: return the new "
            "values as outputs"
        )


def _arguments_by_name(node: Any) -> dict[str, Any]:
    """Return the arguments of a node that calls an operator, with the operator's defaults."""
    names = node.target._schema.arguments
    given = {each.name: each.default_value for each in names if each.has_default_value()}
    return given | dict(zip((each.name for each in names), node.args, strict=False)) | dict(node.kwargs)


def named(model: Any, program: Any) -> None:
    """Name inputs, outputs and nodes of an exported ONNX model after the user's parameters and submodules.

    Parameters
    ----------
    model : onnx_ir.Model
        ONNX model exported from the program; changed in place.
    program : torch.export.ExportedProgram
        The program that the model was exported from.
    """
    signature = program.graph_signature
    outputs = zip(_output_names(program), signature.user_outputs, strict=True)
    _rename(model.graph.outputs, [name for name, output in outputs if output is not None])
    _rename(model.graph.inputs, list(signature.user_inputs))
    sources = Counter(node.metadata_props.get(_SOURCE) for node in model.graph)
    for node in model.graph:
        scopes = [scope for scope in _list(node.metadata_props.get(_SCOPES, "")) if scope]
        if scopes:
            unique = sources[node.metadata_props.get(_SOURCE)] == 1
            node.name = "/".join([*scopes[-2:], *(() if unique else (node.op_type,))])


def _rename(values: Any, names: list[Any]) -> None:
    """Rename the values if they are distinct and there is exactly one name for each."""
    if len({id(value) for value in values}) == len(values) == len(names):
        for value, name in zip(values, names, strict=True):
            value.name = str(name)


def _output_names(program: Any) -> list[str]:
    """Return the names of the outputs: `output`, or `output_0` and so on, or the keys of the returned dict."""
    pytree = importlib.import_module("torch.utils._pytree")
    spec = program.call_spec.out_spec
    paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(spec.num_leaves)), spec))
    keys = [pytree.keystr(path) for path, _ in paths]  # such as ['scores'][0]
    words = [re.findall(r"\w+", key) for key in keys]
    return [
        "_".join(parts if key[1:2] in "'\"" and key else ["output", *parts])
        for key, parts in zip(keys, words, strict=True)
    ]


def _list(text: str) -> list[str]:
    """Parse metadata of the exporter (the repr of a list of strings); return an empty list for any other text."""
    try:
        value = ast.literal_eval(text) if text else []
    except (ValueError, SyntaxError):
        return []
    return [str(each) for each in value] if isinstance(value, list) else []


def translations(torch: Any, program: Any) -> dict[Callable, Callable]:
    """Return ONNX translations of quantizations with narrower integer limits, which PyTorch's exporter ignores."""
    nodes = (node for node in program.graph.nodes if str(node.target) == _QUANTIZE)
    return dict.fromkeys((node.target for node in nodes if _narrow(torch, *node.args[3:6])), _quantize)


def _narrow(torch: Any, low: int, high: int, dtype: Any) -> bool:
    limits = torch.iinfo(dtype)
    return low > limits.min or high < limits.max


def _quantize(input: Any, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: int) -> Any:
    """Convert to a Clip to the narrow range and a QuantizeLinear; the importer merges the Clip into its producer."""
    op = importlib.import_module("onnxscript").opset18
    ir = importlib.import_module("onnx_ir")
    low, high = (np.float32(scale * (limit - zero_point)) for limit in (quant_min, quant_max))
    zero = np.array(zero_point, ir.DataType(dtype).numpy())
    bounds = (op.Constant(value=ir.tensor(np.array(each))) for each in (low, high))
    return op.QuantizeLinear(op.Clip(input, *bounds), scale, op.Constant(value=ir.tensor(zero)))
