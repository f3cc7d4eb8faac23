"""None of ONNX's node tests and shipped models fails, and the pages generated from their results are up to date."""

from scripts.onnx_nodes.case import Placement, run
from scripts.onnx_nodes.page import PAGE, SHIPPED_PAGE, page, shipped_page
from scripts.onnx_nodes.suite import node_tests, shipped_tests


def test_no_node_test_fails_and_page_is_current() -> None:
    tests = node_tests()
    results = [run(test) for test in tests]
    assert not [result for result in results if result.where == Placement.FAILED]
    assert PAGE.read_text() == page(tests, results), "run `python -m scripts.onnx_nodes --page`"


def test_shipped_models_run_and_page_is_current() -> None:
    """Only strings, gradients, and doubles beyond the range of float32 are rejected."""
    tests = shipped_tests()
    results = [run(test) for test in tests]
    assert not [result for result in results if result.where == Placement.FAILED]
    left = [result for result in results if result.where in (Placement.REFUSED, Placement.SKIPPED)]
    reasons = ("type string", "beyond the range of float32", "training:Gradient")
    assert not [result for result in left if not any(reason in result.reason for reason in reasons)]
    message = "run `python -m scripts.onnx_nodes --shipped --page`"
    assert SHIPPED_PAGE.read_text() == shipped_page(tests, results), message
