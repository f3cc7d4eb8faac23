"""Counters distribute a run's cycles by cause, and must be consistent with the clock."""

import pytest

from compiler.profile.counters import MEANINGS, THROTTLED, split
from hw.errors import WorkError
from hw.isa.counters import CAUSES


def counts(cycles: int = 97, **causes: int) -> dict[int, dict[str, int]]:
    """Return the counters of two tags: one with the given causes, one with only 5 idle cycles."""
    first = dict.fromkeys((f"cause_{cause}" for cause in CAUSES), 0)
    second = first | {"cause_idle": 5, "cycles": 5}
    return {0: first | {f"cause_{c}": n for c, n in causes.items()} | {"cycles": cycles}, 1: second}


def test_idle_cycles_between_runs_are_excluded():
    parts = split(95, counts(useful=60, wait_bus=30, idle=7), resting=1)
    assert parts.where == dict.fromkeys(CAUSES, 0) | {"useful": 60, "wait_bus": 30, "idle": 5}
    assert parts.by_tag[1]["idle"] == 0 and parts.by_tag[0]["idle"] == 5


def test_stalled_cycles_are_distributed_over_tags():
    parts = split(195, counts(useful=60, wait_bus=30, idle=7), resting=1, stalled=100)
    assert parts.where == dict.fromkeys(CAUSES, 0) | {
        "useful": 60,
        "wait_bus": 30,
        "idle": 5,
        THROTTLED: 100,
    }
    assert {tag: row[THROTTLED] for tag, row in parts.by_tag.items()} == {0: 100, 1: 0}
    assert sum(parts.where.values()) == 195 and set(parts.where) <= set(MEANINGS)


@pytest.mark.parametrize(
    ("cycles", "counted", "message"),
    [
        (
            95,
            counts(useful=60, wait_bus=29, idle=7),
            "the causes sum to 101 cycles, not to the 102 that were counted",
        ),
        (95, counts(useful=61, wait_bus=30, idle=7), "the causes sum to 103 cycles, not to the 102"),
        (
            89,
            counts(useful=60, wait_bus=30, idle=7),
            "102 cycles were counted, 89 passed: 1 too many were not idle",
        ),
    ],
)
def test_inconsistent_counters_are_an_error(cycles, counted, message):
    with pytest.raises(WorkError, match=message):
        split(cycles, counted, resting=1)
