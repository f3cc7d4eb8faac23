"""Execution of a model in its own runtime: LiteRT for .tflite files, onnxruntime for .onnx files, or PyTorch.

The runtimes are optional packages; they are used only to compare results with those of the accelerator.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from compiler.frontends.torch_module import evaluated, is_reference, load_reference
from compiler.util.plugin_registry import guarded
from hw.errors import InputError

Arrays = dict[str, NDArray]
#: Function that runs one sample and returns the outputs by name.
OwnRuntime = Callable[[Mapping[str, NDArray]], Arrays]


def own_runtime(
    path: Path,
    rounding: str,
    outputs: Sequence[str],
    bound: Mapping[str, Any] | None = None,
    *,
    reset: bool = False,
) -> tuple[str, OwnRuntime]:
    """Open a model in its own runtime.

    Parameters
    ----------
    path : Path
        A .tflite or .onnx file, or `module:function` for a function that returns a PyTorch module.
    rounding : str
        "reference" selects LiteRT's reference kernels, any other value LiteRT's default kernels; for .tflite only.
    outputs : sequence of str
        Names of the model's outputs, in the order of the file.
    bound : dict of arrays or numbers by name, optional
        Values of inputs that are not in the samples.
    reset : bool
        True to start each sample from the initial states of the model, False to run the samples as a sequence.

    Returns
    -------
    str, callable
        Name of the runtime, and a function that runs one sample.

    Raises
    ------
    InputError
        The file has another format, the runtime is not installed, or it rejects the model or, later, a sample.
    """
    fixed = {name: np.asarray(value) for name, value in (bound or {}).items()}
    suffix = path.suffix.lower()
    if suffix == ".tflite":
        return _litert(path, rounding, outputs, fixed, reset=reset)
    if suffix == ".onnx":
        return "onnxruntime", _onnxruntime(path, outputs, fixed)
    if is_reference(path):
        return "PyTorch", _torch(path, outputs, fixed)
    raise InputError(
        f"{path}: only .tflite and .onnx files and PyTorch modules have a runtime to compare with"
    )


def _litert(
    path: Path, rounding: str, outputs: Sequence[str], bound: Arrays, *, reset: bool
) -> tuple[str, OwnRuntime]:
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise _missing(path, "LiteRT", "ai-edge-litert") from None
    reference = rounding == "reference"
    kernels = OpResolverType.BUILTIN_REF if reference else OpResolverType.AUTO
    where = f"{path}: LiteRT rejects the model"

    def opened() -> Any:
        return guarded(
            lambda: Interpreter(str(path), experimental_op_resolver_type=kernels, num_threads=1), where
        )

    interpreter = opened()
    inputs, made = interpreter.get_input_details(), interpreter.get_output_details()
    shapes: list[tuple[int, ...]] = []

    def run(sample: Mapping[str, NDArray]) -> Arrays:
        nonlocal interpreter
        if reset and shapes:  # LiteRT cannot reset resource variables
            interpreter = opened()
            shapes.clear()
        arrays = [
            sample[each["name"]]
            if each["name"] in sample
            else _filled(bound[each["name"]], each["shape"], each["dtype"])
            for each in inputs
        ]
        if [array.shape for array in arrays] != shapes:
            for each, array in zip(inputs, arrays, strict=True):
                interpreter.resize_tensor_input(each["index"], array.shape)
            interpreter.allocate_tensors()
            shapes[:] = [array.shape for array in arrays]
        for each, array in zip(inputs, arrays, strict=True):
            interpreter.set_tensor(each["index"], array)
        interpreter.invoke()
        return {name: interpreter.get_tensor(each["index"]) for name, each in zip(outputs, made, strict=True)}

    name = f"LiteRT ({'reference' if reference else 'default'} kernels)"
    return name, lambda sample: guarded(lambda: run(sample), where)


def _onnxruntime(path: Path, outputs: Sequence[str], bound: Arrays) -> OwnRuntime:
    try:
        import onnxruntime  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise _missing(path, "onnxruntime", "onnxruntime") from None
    where = f"{path}: onnxruntime rejects the model"
    session = guarded(
        lambda: onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]), where
    )
    # The graph optimizations of onnxruntime are on, as in an application.
    entries = session.get_inputs()

    def run(sample: Mapping[str, NDArray]) -> Arrays:
        given = {
            each.name: sample[each.name]
            if each.name in sample
            else _filled(bound[each.name], each.shape, _ONNX_TYPES[each.type])
            for each in entries
            if each.name in sample or each.name in bound  # others have default values
        }
        return dict(zip(outputs, session.run(list(outputs), given), strict=True))

    return lambda sample: guarded(lambda: run(sample), where)


def _torch(path: Path, outputs: Sequence[str], bound: Arrays) -> OwnRuntime:
    model = load_reference(str(path))

    def run(sample: Mapping[str, NDArray]) -> Arrays:
        arrays = evaluated(model, sample, bound, str(path))
        return dict(zip(outputs, arrays, strict=True))

    return lambda sample: guarded(lambda: run(sample), f"{path}: PyTorch rejects the model")


#: Types of inputs that `--bind` accepts, by their names in onnxruntime.
_ONNX_TYPES = {f"tensor({name})": name for name in ("bool", "int8", "uint8", "int16", "int32", "int64")} | {
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
}


def _filled(value: NDArray, shape: Sequence[int], dtype: DTypeLike) -> NDArray:
    """Return the value of a bound input: an array, or a number that applies to all elements."""
    given = value.astype(dtype)
    return np.full(shape, given) if given.ndim == 0 else given


def _missing(path: Path, runtime: str, package: str) -> InputError:
    return InputError(
        f"{path}: the comparison needs {runtime} (PyPI package {package}); --no-reference omits it"
    )
