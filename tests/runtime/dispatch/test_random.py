"""A few random graphs with several sizes and with parts that are skipped; `make soak` tries many."""

import pytest

from tests.runtime.dispatch.random_graphs import Dispatched
from tests.support.strategies.examples import check_examples
from tests.support.strategies.graphs import graphs


@pytest.mark.parametrize(("count", "rtl"), [(4, False), (1, True)], ids=["golden", "rtl"])
def test_batch_sizes_and_skips_of_random_graphs(count: int, rtl: bool) -> None:
    dispatched = Dispatched(rtl)
    check_examples(graphs(3), dispatched.check, count)
    assert dispatched.tally["sizes"] and dispatched.tally["skipping"]
