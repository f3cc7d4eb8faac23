"""All of ONNX's node tests, and the page that is made of them."""

from scripts.onnx_nodes.case import Placement, run
from scripts.onnx_nodes.page import PAGE, page
from scripts.onnx_nodes.suite import node_tests


def test_none_fails_and_the_page_says_what_is() -> None:
    tests = node_tests()
    results = [run(test) for test in tests]
    assert not [result for result in results if result.where == Placement.FAILED]
    assert PAGE.read_text() == page(tests, results), "run `python -m scripts.onnx_nodes --page`"
