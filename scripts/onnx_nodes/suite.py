"""Node tests of the installed onnx package."""

import re
import warnings
from collections.abc import Sequence
from typing import Any

_BODY = re.compile(r"_expanded(_ver\d+)?$")


def node_tests() -> list[Any]:
    """Return all node tests; onnx computes their expected results during loading, in some cases with numpy warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return load_model_tests(kind="node")


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
