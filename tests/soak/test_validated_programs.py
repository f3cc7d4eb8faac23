"""More random programs than `tests/validate` for the proofs of the static validator."""

import pytest

from tests.validate.test_random_programs import TARGETS, check_orders, check_races


@pytest.mark.parametrize("target", TARGETS)
def test_outcome_of_accepted_programs_does_not_depend_on_the_order(target: str) -> None:
    check_orders(target, range(4000, 4200))


@pytest.mark.parametrize("target", TARGETS)
def test_races_compared_with_an_oracle(target: str) -> None:
    check_races(target, range(5000, 5160))
