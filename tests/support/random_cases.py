"""Option `--random-cases SHARE`: run a share of the cases of random tests, drawn anew in each run.

The marker `random_cases` names the parameters of a test whose values are drawn: its seed, or parameters that are
combined with all values of the others although they hardly affect each other. From the cases whose other parameters are
equal, the option draws a share, at least one. The fixture `drawn` draws from the cases of a loop. `MLA_SEED` determines
which.
"""

import os
import random
from collections import defaultdict
from collections.abc import Sequence
from math import ceil
from typing import TypeVar, cast

import pytest

_Case = TypeVar("_Case")


def add_option(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--random-cases",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="run this share of the cases of random tests, drawn with MLA_SEED (default 1: all cases)",
    )


def configure(config: pytest.Config) -> None:
    """Register the marker, and check the option."""
    config.addinivalue_line(
        "markers", "random_cases(*names): parameters whose values are drawn by --random-cases"
    )
    share = _share(config)
    if not 0 < share <= 1:
        raise pytest.UsageError(f"--random-cases must be above 0 and at most 1, not {share}")


def sample(config: pytest.Config, name: str, cases: Sequence[_Case]) -> list[_Case]:
    """Return the share of some cases that the option draws, in their order; `name` distinguishes random tests."""
    count = ceil(_share(config) * len(cases))
    chosen = random.Random(f"{_seed()} {name}").sample(range(len(cases)), count)
    return [cases[index] for index in sorted(chosen)]


def draw(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that are not drawn."""
    groups = defaultdict[tuple[object, ...], list[pytest.Item]](list)
    for item in items:
        marker = item.get_closest_marker("random_cases")
        if marker:
            groups[_group(cast(pytest.Function, item), set(marker.args))].append(item)
    kept = {case for cases in groups.values() for case in sample(config, cases[0].nodeid, cases)}
    dropped = {case for cases in groups.values() for case in cases} - kept
    items[:] = [item for item in items if item not in dropped]
    if dropped:
        config.hook.pytest_deselected(items=list(dropped))


def _group(item: pytest.Function, chance: set[str]) -> tuple[object, ...]:
    """Return a key that is the same for the cases of a test that differ only in the parameters `chance`."""
    others = [value for name, value in sorted(item.callspec.params.items()) if name not in chance]
    # Values of all kinds are the same objects in all cases; equal numbers and texts need not be.
    keys = [value if isinstance(value, (int, float, str)) else id(value) for value in others]
    return item.nodeid.partition("[")[0], *keys


def _share(config: pytest.Config) -> float:
    return cast(float, config.getoption("--random-cases"))


def _seed() -> str:
    """Return a seed that is the same in all processes of a run."""
    return os.environ.get("MLA_SEED") or os.environ.get("PYTEST_XDIST_TESTRUNUID", "0")
