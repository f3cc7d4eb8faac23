"""Tests of the operator sets that the functions of an ONNX file import."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from compiler.frontends.onnx import read_onnx
from hw.errors import InputError
from tests.support.onnx_models import check, node, ops, small


def using(body: list[onnx.NodeProto], *imports: tuple[str, int]) -> onnx.ModelProto:
    """Return a model of operator set 17 that uses a function with input `a` and output `b`."""
    opsets = [helper.make_opsetid(*each) for each in imports]
    made = small(node("Own", "x", "y", domain="own"))
    made.functions.append(helper.make_function("own", "Own", ["a"], ["b"], body, opsets))
    made.opset_import.append(helper.make_opsetid("own", 1))
    made.ir_version = 8
    return made


@pytest.mark.parametrize(("op", "version"), [("Relu", 14), ("Relu", 21), ("Softmax", 13), ("Softmax", 17)])
def test_function_of_another_operator_set_with_an_unchanged_operator(
    tmp_path: Path, op: str, version: int
) -> None:
    made = using([node(op, "a", "b")], ("", version))
    assert read_onnx(made).outputs == ["y"]
    made.functions[0].opset_import[0].version = 17  # onnxruntime requires this version
    x = np.random.default_rng(version).normal(size=(2, 3)).astype(np.float32)
    assert sum(ops(check(tmp_path, made, {"x": x})).values()) == 1


@pytest.mark.parametrize(
    ("body", "imports", "message"),
    [
        (
            [node("Softmax", "a", "b")],
            [("", 11)],
            "'Softmax' of its operator set 11 is not that of 17, which the model imports",
        ),
        ([node("Relu", "a", "b")], [("", 6)], "operator set must be 7 or later, not 6; onnx.version_"),
        ([node("Relu", "a", "b")], [("", 1 << 40)], "operator set must be "),
        ([node("Relu", "a", "b")], [], "uses 'Relu' of domain '' and imports no operator set of it"),
        (
            [node("Gelu", "a", "b", domain="com.microsoft")],
            [("", 17)],
            "uses 'Gelu' of domain 'com.microsoft' and imports no operator set of it",
        ),
        ([node("Own", "a", "b", domain="own")], [("own", 2)], "uses itself"),
    ],
)
def test_incompatible_operator_sets_are_rejected(
    body: list[onnx.NodeProto], imports: list[tuple[str, int]], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_onnx(using(body, *imports))
    assert f"function 'Own'{' ' if message.startswith('uses itself') else ': '}{message}" in str(caught.value)
