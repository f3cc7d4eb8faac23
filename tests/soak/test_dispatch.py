"""Random graphs with several batch sizes and skipped operators are correct on the golden model and the RTL."""

import sys

import pytest

from tests.runtime.dispatch.random_graphs import DispatchChecks
from tests.support.seeds import random_seed
from tests.support.strategies.examples import GOLDEN, RTL, TENTH, check_examples
from tests.support.strategies.graphs import graphs


@pytest.mark.parametrize(
    ("count", "rtl"), [(GOLDEN // TENTH, False), (RTL // TENTH, True)], ids=["golden", "rtl"]
)
def test_batch_sizes_and_skips_of_random_graphs(
    capfd: pytest.CaptureFixture[str], count: int, rtl: bool
) -> None:
    dispatched = DispatchChecks(rtl)
    with capfd.disabled():
        check_examples(graphs(6), dispatched.check, count, random_seed())
        print(dict(dispatched.tally), file=sys.stderr, flush=True)
    assert dispatched.tally["sizes"] and dispatched.tally["skipped"]
