"""All variants of ONNX's node tests with other element types, and TFLite operators of all kinds and types."""

import os
from pathlib import Path

import pytest

from scripts.onnx_nodes.suite import node_tests
from tests.frontends.onnx.test_operator_types import check_operators
from tests.frontends.tflite.test_operator_types import check_kinds
from tests.frontends.tflite.type_sweep import RECURRENT
from tests.support.tflite_kinds import KINDS

#: Trials of each case, type and resolver. Seeds are fixed unless MLA_SEED is set, because some models that LiteRT does
#: not support end the process.
_FIRST, _TRIALS = 1000, 8


def test_operator_types(tmp_path: Path) -> None:
    count = check_operators(node_tests(), tmp_path)
    print(count)
    assert count["exact"] > 3000, count


@pytest.mark.parametrize("kind", [*KINDS, *RECURRENT])
def test_tflite_operator_types(kind: str, tmp_path: Path) -> None:
    first = int(os.environ.get("MLA_SEED", "0")) or _FIRST
    print(f"MLA_SEED={first}")
    count = check_kinds([kind], range(first, first + _TRIALS), tmp_path)
    print(kind, dict(count))
    assert count["exact"] + count["rounded"] > 0, count
