"""Counter deltas by layer and stall cause, and the meaning of each cause."""

from collections.abc import Mapping
from dataclasses import dataclass

from cosim.driver import Driver
from hw.errors import WorkError
from hw.isa.counters import CAUSES, SP_BANKS_MAX

#: Meaning of each cause, in the order of `hw.isa.counters.CAUSES`, followed by that of throttled cycles.
MEANINGS = {
    "useful": "a row of activations enters the array.",
    "fill_drain": "the array fills or empties: rows are still on their way through it.",
    "weight_shift": "the weights of the next tile are shifted into the array.",
    "wait_weights": "the next tile's weights could not be read: the scratchpad served another unit.",
    "wait_activations": "the activations could not be read from the scratchpad; always 0: MATRIX has priority.",
    "wait_accumulator": "the accumulator could not accept the sums; always 0: it accepts one row per cycle.",
    "wait_fuse": "the array waits for FUSE, which requantizes, adds, pools or looks up, or FUSE works alone.",
    "wait_bus": "the array waits for LOAD or STORE, that is for data to or from DRAM, or these work alone.",
    "wait_sequencer": "the array waits for the program to issue its next command.",
    "idle": "nothing was left to do: no macro-instruction was running.",
}
#: Name and meaning of the cause of the cycles that the chip's counters do not count.
THROTTLED = "throttled"
MEANINGS[THROTTLED] = (
    "the clock of the chip was stalled; such cycles are distributed in proportion to all others."
)

#: Counters that reports sum up, in addition to cycles.
COUNTED = (
    "macs_issued",
    "acc_reads",
    "acc_writes",
    "load_beats",
    "store_beats",
    "load_bytes",
    "load_expanded",
    "sparse_rows",
    "store_bytes",
    *(f"sp_{kind}_bank{b}" for kind in ("reads", "writes") for b in range(SP_BANKS_MAX)),
)
#: Counters of accesses that were delayed by bank conflicts.
CONFLICTS = ("acc_conflicts", *(f"sp_conflicts_bank{b}" for b in range(SP_BANKS_MAX)))
_CAUSES = tuple(f"cause_{cause}" for cause in CAUSES)

ByTag = dict[int, dict[str, int]]


def read_counts(driver: Driver, tags: int) -> ByTag:
    """Read the counters that reports need, for the first `tags` tags."""
    names = (*_CAUSES, "cycles", *COUNTED, *CONFLICTS)
    return {tag: driver.counters.read_all(names, tag) for tag in range(tags)}


def growth(before: ByTag, after: ByTag) -> ByTag:
    """Return the increase of each counter between two samples."""
    return {
        tag: {name: value - before[tag][name] for name, value in row.items()} for tag, row in after.items()
    }


@dataclass(frozen=True)
class CycleSplit:
    """Cycle breakdown of a run.

    Parameters
    ----------
    where : dict
        Cycles by cause; they sum to the cycles of the run.
    by_tag : dict
        Cycles by cause for each tag; they sum to `where`.
    """

    where: dict[str, int]
    by_tag: ByTag


def split(cycles: int, counts: ByTag, resting: int, stalled: int = 0) -> CycleSplit:
    """Attribute the cycles of a run to causes and tags.

    Parameters
    ----------
    cycles : int
        Elapsed cycles, from doorbells to interrupts.
    counts : dict
        Growth of the counters, by tag.
    resting : int
        Tag to which idle cycles between runs are attributed.
    stalled : int
        Those of the elapsed cycles in which the clock of the chip was stalled; if there are any, they are attributed to
        the cause "throttled".

    Raises
    ------
    WorkError
        The counters contradict each other or the clock.
    """
    by_tag = {tag: {cause: row[f"cause_{cause}"] for cause in CAUSES} for tag, row in counts.items()}
    caused, counted = (
        sum(sum(row.values()) for row in by_tag.values()),
        sum(row["cycles"] for row in counts.values()),
    )
    if caused != counted:
        raise WorkError(f"the causes sum to {caused} cycles, not to the {counted} that were counted")
    rest = counted + stalled - cycles
    for tag in sorted(by_tag, key=lambda t: (t != resting, t)):
        taken = min(rest, by_tag[tag]["idle"])
        by_tag[tag]["idle"] -= taken
        rest -= taken
    if rest:
        raise WorkError(f"{counted} cycles were counted, {cycles} passed: {rest} too many were not idle")
    if stalled:
        by_tag = with_stalled(by_tag, stalled)
    causes = (*CAUSES, THROTTLED) if stalled else CAUSES
    where = {cause: sum(row[cause] for row in by_tag.values()) for cause in causes}
    return CycleSplit(where, by_tag)


def with_stalled(by_tag: ByTag, stalled: int) -> ByTag:
    """Return the cycles by tag and cause with stalled cycles, in proportion to the cycles of each tag."""
    total = max(sum(sum(row.values()) for row in by_tag.values()), 1)
    out, counted, given = ByTag(), 0, 0
    for tag, row in by_tag.items():
        counted += sum(row.values())
        out[tag] = row | {THROTTLED: stalled * counted // total - given}
        given += out[tag][THROTTLED]
    return out


def bound(causes: Mapping[str, int]) -> str:
    """Return the main bottleneck of a layer: the group of causes with the most cycles."""
    groups = {
        "compute": causes["useful"] + causes["fill_drain"],
        "bus": causes["wait_bus"] + causes["wait_weights"] + causes["wait_activations"],
        "weight_shift": causes["weight_shift"],
        "fuse": causes["wait_fuse"] + causes["wait_accumulator"],
        "dispatch": causes["wait_sequencer"],
    }
    return max(groups, key=lambda name: groups[name])
