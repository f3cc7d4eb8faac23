"""Node tests of the installed onnx package, and tests of the models that it ships."""

import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper, version_converter

#: Folders of the package's models, all but those without input data.
FOLDERS = ("pytorch-converted", "pytorch-operator", "simple")
#: Models of older operator sets are converted to this one.
SHIPPED_OPSET = 13
_BODY = re.compile(r"_expanded(_ver\d+)?$")


def node_tests() -> list[Any]:
    """Return all node tests; onnx computes their expected results during loading, in some cases with numpy warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return load_model_tests(kind="node")


def shipped_tests() -> list[Any]:
    """Return a test of each model that the onnx package ships, with the package's own inputs and expected outputs.

    Models of old operator sets are converted with onnx's version converter. Inputs that are only overridable constants
    become constants.
    """
    from onnx.backend.test.loader import load_model_tests

    tests = [test for folder in FOLDERS for test in load_model_tests(kind=folder)]
    return [
        _with_data(test) for test in sorted(tests, key=lambda test: (FOLDERS.index(test.kind), test.name))
    ]


def _with_data(test: Any) -> Any:
    """Return a test of a stored model with its model and its sets of inputs and outputs."""
    folder = Path(test.model_dir)
    model = onnx.load(folder / "model.onnx")
    if all(each.version < SHIPPED_OPSET for each in model.opset_import if not each.domain):
        model = version_converter.convert_version(model, SHIPPED_OPSET)
    constants = {tensor.name for tensor in model.graph.initializer}
    for value in [value for value in model.graph.input if value.name in constants]:
        model.graph.input.remove(value)
    sets = [
        tuple([_tensor(path) for path in _numbered(each, kind)] for kind in ("input", "output"))
        for each in sorted(folder.glob("test_data_set_*"))
    ]
    return replace(test, name=f"{test.kind}/{test.name}", model=model, data_sets=sets)


def _numbered(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.rpartition("_")[2]))


def _tensor(path: Path) -> Any:
    """Return the array in a file; all inputs and outputs of these models are tensors."""
    return numpy_helper.to_array(onnx.load_tensor(path))


def operators(tests: Sequence[Any]) -> dict[str, str]:
    """Return the operator of each test by test name; a function body counts as the operator that it implements."""
    own = {test.name: test.model.graph.node[-1].op_type for test in tests}
    return {name: own.get(_BODY.sub("", name), op) for name, op in own.items()}


def share(tests: Sequence[Any], whole: Sequence[str], each: int = 1) -> list[Any]:
    """Return the first `each` tests of every operator, and all tests of the operators in `whole`."""
    taken: dict[str, int] = {}
    chosen = []
    for test, op in zip(tests, operators(tests).values(), strict=True):
        taken[op] = taken.get(op, 0) + 1
        if taken[op] <= each or op in whole:
            chosen.append(test)
    return chosen
