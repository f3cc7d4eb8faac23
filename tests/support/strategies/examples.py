"""Functions that check random examples."""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

#: Numbers of examples in `make soak` (graphs on the golden model, graphs on the RTL, ONNX models); `make test` divides
#: them by TENTH.
GOLDEN, RTL, ONNX, TENTH = 500, 50, 100, 10


def check_examples(
    strategy: SearchStrategy[Any], check: Callable[[Any], object], count: int, number: int | None = None
) -> None:
    """Check `count` examples of a strategy, either random or fixed; failing examples are shrunk and printed."""
    if number is None:
        print("always the same examples")

    @settings(
        deadline=None,
        print_blob=True,
        max_examples=count,
        derandomize=number is None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(strategy)
    def examples(example: Any) -> None:
        check(example)

    (examples if number is None else seed(number)(examples))()
