"""Footprints equal the addresses of the loops in docs/machine.md; their overlaps equal set intersections."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from compiler.validate.errors import KIND_OF_TRAP
from compiler.validate.footprint import StridedRegion, intervals, overlap, region, streams
from compiler.validate.unit_commands import BadCommandError, CommandExaminer, reads_own_results
from cosim.semantics.command_checks import check_command
from cosim.semantics.command_fields import unpack_fields
from hw.config import load_target
from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import Unit
from tests.support.program_gen import fuse
from tests.support.program_gen.commands import CommandRanges, attempt, config_of, raw_fields
from tests.support.seeds import random_seed
from tests.validate.footprint_reference import fuse_points, touched


@pytest.fixture
def rng() -> random.Random:
    return random.Random(random_seed())


def addresses(item: StridedRegion) -> Iterator[int]:
    starts, ends = intervals(item.steps, item.run, item.high - item.low)
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield from range(item.low + start, item.low + end)


@pytest.mark.parametrize("target", ["n4", "n16"])
@pytest.mark.parametrize("unit", list(Unit))
def test_footprints_are_complete_and_tight(rng, target, unit):
    config = load_target(target)
    ranges = CommandRanges(config, rng, (0, 1 << 15))
    exact = total = 0
    for _ in range(150):
        c = config_of(attempt(ranges, rng, unit))
        found = {
            (item.space, address, item.write)
            for item in streams(config, unit, c)
            for address in addresses(item)
        }
        expected = touched(config.n, unit, c)
        assert expected <= found, c
        total += 1
        exact += expected == found
        reads = {(space, address) for space, address, write in found if not write and space == "sp"}
        used = {(item.space, a) for item in streams(config, unit, c, used=True) for a in addresses(item)}
        assert {key for key in used if key[0] == "sp"} <= reads | {(s, a) for s, a, write in found if write}
    # Footprints are approximate for irregular padding, partial rows of depthwise streams, and changing lanes.
    assert exact >= {Unit.LOAD: 1.0, Unit.STORE: 1.0, Unit.MATRIX: 0.6, Unit.FUSE: 0.6}[unit] * total


@pytest.mark.parametrize("target", ["n4", "n8"])
def test_points_that_read_earlier_results_are_detected(rng, target, monkeypatch):
    monkeypatch.setattr(fuse, "independent", lambda config, command: True)
    config = load_target(target)
    ranges = CommandRanges(config, rng, (0, 1 << 15))
    verdicts = []
    while len(verdicts) < 300:
        command = fuse.random_fuse(ranges, rng)
        if not command:
            continue
        c, written, expected = config_of(command), set(), False
        for point in fuse_points(config.n, c):
            expected |= any((space, a) in written for space, a, write in point if not write)
            written |= {(space, a) for space, a, write in point if write}
        assert reads_own_results(config.n, c) == expected, c
        verdicts.append(expected)
    assert 5 < sum(verdicts) < 295


def random_walk(rng) -> tuple[int, list[tuple[int, int]], int]:
    steps = [
        (rng.randint(1, 5), rng.choice((0, 1, 3, 8, 17, 40, -1, -5, -16))) for _ in range(rng.randint(0, 4))
    ]
    return rng.randint(-50, 50), steps, rng.randint(1, 12)


def addresses_of_walk(base, steps, run) -> set[int]:
    out = {base + i for i in range(run)}
    for count, stride in steps:
        out = {a + i * stride for a in out for i in range(count)}
    return out


def test_walks_and_their_intersections(rng):
    met = 0
    for _ in range(3000):
        a, b = random_walk(rng), random_walk(rng)
        sets = addresses_of_walk(*a), addresses_of_walk(*b)
        regions = region("sp", *a), region("sp", *b)
        for item, expected in zip(regions, sets, strict=True):
            assert (item.low, item.high) == (min(expected), max(expected))
            assert set(addresses(item)) == expected
        assert overlap(*regions) == bool(sets[0] & sets[1])
        met += overlap(*regions)
    assert 0 < met < 3000


def test_channel_slices_do_not_overlap():
    """The two halves of the channels of an NHWC tensor do not overlap, though their bounding boxes do."""
    halves = [region("dram", base, [(7, 8 * 24), (8, 24)], 12, write=True) for base in (100, 112)]
    assert not overlap(*halves)
    assert overlap(halves[0], region("dram", 111, [(7, 8 * 24), (8, 24)], 1))


def test_too_many_runs_are_treated_as_contiguous():
    rows = region("dram", 0, [(1 << 17, 4)], 1)
    assert overlap(rows, region("dram", 2, [(1 << 17, 4)], 1))
    assert not overlap(rows, region("dram", 1 << 20, [], 1))


def judged(config, unit: Unit, fields: list[int]) -> str | list[StridedRegion]:
    """Return the regions of a command, or the reason why it is illegal, without remembering anything."""
    c = unpack_fields(unit, fields)
    found = check_command(config, WINDOWS, unit, c)
    if found:
        return KIND_OF_TRAP[found[0]]
    regions = streams(config, unit, c)
    mine = [item for item in regions if item.write]
    reading = any(overlap(a, b) for a in regions if not a.write for b in mine if a.space == b.space)
    return "race" if unit == Unit.FUSE and reading and reads_own_results(config.n, c) else regions


WINDOWS = [(0, 1 << 13, 3), (1 << 14, 1 << 15, 1)]


@pytest.mark.parametrize("target", ["n4", "n16"])
@pytest.mark.parametrize("unit", list(Unit))
def test_commands_at_other_addresses_are_judged_as_anew(rng, target, unit):
    config = load_target(target)
    ranges, examiner = CommandRanges(config, rng, (0, 1 << 15)), CommandExaminer(config)
    verdicts = Counter()
    for _ in range(100):
        fields = raw_fields(unit, attempt(ranges, rng, unit).values)
        for _ in range(6):
            expected = judged(config, unit, fields)
            verdicts[expected if isinstance(expected, str) else "legal"] += 1
            try:
                assert examiner.examine(WINDOWS, unit, fields)[1] == expected
            except BadCommandError as error:
                assert error.kind == expected
            for number, item in enumerate(UNIT_FIELDS[unit]):
                if item.name.endswith(("base", "dst", "src", "dram")) and rng.getrandbits(1):
                    by = rng.choice((-1, 1)) * rng.choice((1, config.n, 64, 1000, 1 << 13, 1 << 17))
                    fields[number] = item.truncate(fields[number] + by)
                elif not rng.randrange(60):
                    fields[number] = item.truncate(rng.choice((0, 1, -1, fields[number] + 1)))
    assert verdicts["legal"] > 30 and len(verdicts) > 1, verdicts
