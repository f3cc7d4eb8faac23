"""Import of PyTorch modules: exported to ONNX by PyTorch, then read by the ONNX front end.

Its exporter keeps what the accelerator has an operator for (GELU, layer normalization, LSTM), which the core ATen graph
takes apart, and writes modules quantized in PyTorch as QuantizeLinear and DequantizeLinear.
"""

import importlib.util
import io
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from compiler.frontends.onnx import UnsupportedNodesError, read_onnx
from compiler.frontends.torch_export import check_outputs, exported, named, translations
from compiler.ir.graph import Graph
from compiler.util.user_code_errors import guarded
from hw.errors import InputError

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
