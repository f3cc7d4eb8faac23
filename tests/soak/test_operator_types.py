"""All variants of ONNX's node tests with other element types."""

from pathlib import Path

from scripts.onnx_nodes.suite import node_tests
from tests.frontends.onnx.test_operator_types import check_operators


def test_operator_types(tmp_path: Path) -> None:
    count = check_operators(node_tests(), tmp_path)
    print(count)
    assert count["exact"] > 3000, count
