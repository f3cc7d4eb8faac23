"""None of ONNX's node tests fails, and the page generated from their results is up to date."""

from scripts.onnx_nodes.case import Placement, run
from scripts.onnx_nodes.page import PAGE, page
from scripts.onnx_nodes.suite import node_tests


def test_no_node_test_fails_and_page_is_current() -> None:
    tests = node_tests()
    results = [run(test) for test in tests]
    assert not [result for result in results if result.where == Placement.FAILED]
    assert PAGE.read_text() == page(tests, results), "run `python -m scripts.onnx_nodes --page`"
