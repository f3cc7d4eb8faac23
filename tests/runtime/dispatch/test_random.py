"""A few random graphs give correct results with several batch sizes and with skipped parts; `make soak` tries many."""

import pytest

from tests.runtime.dispatch.random_graphs import DispatchChecks
from tests.support.strategies.examples import check_examples
from tests.support.strategies.graphs import graphs


@pytest.mark.parametrize(("count", "rtl"), [(4, False), (1, True)], ids=["golden", "rtl"])
def test_batch_sizes_and_skips_of_random_graphs(count: int, rtl: bool) -> None:
    checks = DispatchChecks(rtl)
    check_examples(graphs(3), checks.check, count)
    assert checks.tally["sizes"] and checks.tally["skipping"]
