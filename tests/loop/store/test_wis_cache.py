"""Which programs stay in the instruction store: those worth most, and those that are needed, always."""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from compiler.store.wis import Version, WisCache
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from cosim.programs import Candidate, ProgramStore
from hw.config import load_target
from hw.errors import InputError
from hw.isa.assembler import assemble
from hw.isa.enums import Compare
from hw.isa.micro import OPERAND_BASE
from hw.isa.program import Program

CONFIG = replace(load_target("n4"), wis_words=256, segments=8)


@pytest.fixture
def driver() -> Iterator[Driver]:
    with GoldenDevice(CONFIG, 1 << 16) as device:
        yield Driver(device)


def program(number: int, words: int = 20) -> Program:
    """Writes its number, eight bytes of it, to the address in operand 0."""
    text = f"""
        set load.word, fill=1 fill_value={number}
        set load.len, 8
        issue load, signal(store:0)
        set store.dram, op0
        set store.len, 8
        issue store, wait(load:0)
        halt
    """
    made = assemble(text, f"program {number}")
    spare = assemble("halt").words * (words - len(made.words))
    return replace(made, words=made.words + spare)


def run(driver: Driver, opcode: int, operand: int = 7) -> int:
    """The number that the program behind an opcode writes."""
    address = driver.put(np.zeros(8, np.uint8))
    driver.enqueue(opcode, [address, operand])
    assert driver.run() == []
    (value,) = set(driver.fetch(address, (8,), np.uint8).tolist())
    driver.memory.release(address)
    return value


def test_a_program_is_loaded_once(driver):
    cache = WisCache(driver.programs)
    segment = cache.bring(program(1))
    assert cache.bring(program(1)) == segment and cache.bring(replace(program(1), name="other")) == segment
    assert (cache.hits, cache.loads, cache.evictions) == (2, 1, 0)
    assert cache.bring(program(2)) != segment and cache.loads == 2


def test_the_least_used_goes(driver):
    cache = WisCache(driver.programs)
    segments = {number: cache.bring(program(number, 60)) for number in (1, 2, 3, 4)}
    for number in (1, 1, 2, 4, 1, 4):
        cache.bring(program(number, 60))
    assert cache.bring(program(5, 60)) == segments[3]
    assert cache.bring(program(6, 70)) and cache.evictions == 3  # no single one is long enough
    there = {each.name for each in driver.programs.programs.values()}
    assert there >= {"program 6", "program 1"}


def test_old_uses_count_less(driver):
    lfu, lru = WisCache(driver.programs, 1e9), WisCache(driver.programs, 0.1)
    with GoldenDevice(CONFIG, 1 << 16) as device:
        lru.store = Driver(device).programs
        for cache in (lfu, lru):
            for number in (1, 1, 1, 1, 2, 3, 4):
                cache.bring(program(number, 60))
            cache.bring(program(5, 60))
        first = {each.name for each in lru.store.programs.values()}
    assert "program 1" in {each.name for each in lfu.store.programs.values()}
    assert "program 1" not in first


def test_bound_programs_stay(driver):
    cache = WisCache(driver.programs)
    for opcode in (1, 2, 3):
        cache.bind(opcode, [Version(program(opcode, 60))])
    for number in range(10, 20):
        cache.bring(program(number, 60))
        assert [run(driver, opcode) for opcode in (1, 2, 3)] == [1, 2, 3]
    with pytest.raises(
        InputError, match="finds no room in the instruction store of 256 words and 8 segments"
    ):
        cache.bring(program(20, 100))
    cache.unbind(3)
    cache.bring(program(21, 100))
    assert [run(driver, opcode) for opcode in (1, 2)] == [1, 2]
    assert driver.get("TRAP_COUNT") == 0


def test_versions_of_an_opcode_come_together(driver):
    cache = WisCache(driver.programs)
    for number in (7, 8, 9):
        cache.bring(program(number, 60))
    versions = [
        Version(program(1, 60), Compare.LT, OPERAND_BASE + 1, 5),
        Version(program(2, 60), Compare.LT, OPERAND_BASE + 1, 10),
        Version(program(3, 60)),
    ]
    cache.bind(4, versions)
    assert [run(driver, 4, operand) for operand in (4, 5, 9, 10)] == [1, 2, 2, 3]
    cache.bind(4, versions[2:])
    assert run(driver, 4, 4) == 3
    cache.bring(program(5, 120))
    assert run(driver, 4, 4) == 3


def test_what_cannot_be_bound_leaves_the_opcode_as_it_was(driver):
    cache = WisCache(driver.programs)
    cache.bind(1, [Version(program(1, 100))])
    with pytest.raises(InputError, match="finds no room"):
        cache.bind(1, [Version(program(2, 100)), Version(program(3, 100))])
    assert run(driver, 1) == 1
    with pytest.raises(InputError, match="opcode must be in"):
        cache.bind(99, [Version(program(1, 100))])
    cache.bind(1, [Version(program(2, 100))])  # the old one is free to go from now on
    cache.bind(2, [Version(program(3, 100))])
    assert [run(driver, 1), run(driver, 2)] == [2, 3]


def test_programs_of_others_are_left_alone(driver):
    cache = WisCache(driver.programs)
    theirs = driver.load(program(1, 100), opcode=1)
    pinned = cache.bring(program(2, 20))
    driver.set("SEG_SELECT", pinned)
    driver.set("SEG_COMMAND", 4)
    for number in range(3, 30):
        cache.bring(program(number, 60))
    assert run(driver, 1) == 1 and cache.worth(theirs) == math.inf
    assert driver.programs.in_use(pinned) and driver.programs.programs[pinned].name == "program 2"
    with pytest.raises(InputError, match="finds no room"):
        cache.bring(program(30, 150))
    # A segment that somebody loaded again is theirs.
    segment = cache.bring(program(31, 60))
    driver.programs.load(program(32, 60), segment)
    cache.bring(program(33, 60))
    assert cache.worth(segment) == math.inf and driver.programs.programs[segment].name == "program 32"


def test_programs_in_use_stay(driver, monkeypatch):
    cache = WisCache(driver.programs)
    segments = [cache.bring(program(number, 60)) for number in range(4)]
    monkeypatch.setattr(ProgramStore, "in_use", lambda _self, segment: segment == segments[0])
    for number in range(4, 12):
        assert cache.bring(program(number, 60)) != segments[0]
    monkeypatch.undo()
    for number in range(12, 15):
        cache.bring(program(number, 60))
    assert "program 0" not in {each.name for each in driver.programs.programs.values()}


def test_segments_run_out_before_words(driver):
    cache = WisCache(driver.programs)
    for number in range(20):
        cache.bring(program(number, 10))
        assert len(driver.programs.programs) == min(number + 1, CONFIG.segments)
    assert cache.evictions == 20 - CONFIG.segments
    cache.bind(1, [Version(program(number, 10))] if (number := 3) else [])
    assert run(driver, 1) == 3


def test_what_is_too_long_or_no_half_life_is_refused(driver):
    cache = WisCache(driver.programs)
    cache.bring(program(1))
    with pytest.raises(InputError, match="of 257 words finds no room"):
        cache.bring(program(2, 257))
    assert len(driver.programs.programs) == 1
    for value in (0, -1.0, math.nan):
        with pytest.raises(InputError, match="half_life must be more than 0"):
            WisCache(driver.programs, value)


def _fits(kept: list[tuple[int, int]], length: int) -> bool:
    """Whether there is a gap of a length beside stretches of words: word by word."""
    taken = {word for base, size in kept for word in range(base, base + size)}
    free = 0
    for word in range(CONFIG.wis_words):
        free = 0 if word in taken else free + 1
        if free == length:
            return True
    return False


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_cheapest_programs_go(driver, seed):
    """Against a search through all sets of programs that may go."""
    print(f"seed {seed}")
    rng, cache = random.Random(seed), WisCache(driver.programs, half_life=16)
    store, evicted = driver.programs, 0
    library = [program(number, rng.randrange(8, 90)) for number in range(1, 25)]
    for step in range(150):
        wanted = rng.choice(library[: 6 if rng.random() < 0.5 else None])
        if step % 10 == 0:
            cache.bind(rng.randrange(3), [Version(rng.choice(library[:4]))])
        bound = set().union(*cache._bound.values())
        there = {s: (store.base(s), len(p.words)) for s, p in store.programs.items()}
        if any(each is wanted for each in store.programs.values()):
            cache.bring(wanted)
            continue
        cache._now += 1  # as `bring` will see it
        worth = {segment: cache.worth(segment) for segment in there}
        cache._now -= 1
        costs = []
        for count in range(len(there) + 1):
            for gone in itertools.combinations([s for s in there if s not in bound], count):
                kept = [place for segment, place in there.items() if segment not in gone]
                if len(kept) < CONFIG.segments and _fits(kept, len(wanted.words)):
                    costs.append(sum(worth[segment] for segment in gone))
        if not costs:
            with pytest.raises(InputError, match="finds no room"):
                cache.bring(wanted)
            continue
        before = cache.evictions
        cache.bring(wanted)
        gone = [
            s
            for s, place in there.items()
            if s not in store.programs or (store.base(s), len(store.programs[s].words)) != place
        ]
        gone += [s for s in there if s in store.programs and store.programs[s] is wanted and s not in gone]
        assert sum(worth[segment] for segment in gone) == pytest.approx(min(costs))
        assert cache.evictions - before == len(gone)
        evicted += len(gone)
        assert [run(driver, opcode) for opcode in cache._bound] == [
            int(store.programs[segment].name.split()[1]) for (segment,) in cache._bound.values()
        ]
    assert evicted > 40
    assert driver.get("TRAP_COUNT") == 0


def test_unbound_opcodes_run_nothing(driver):
    cache = WisCache(driver.programs)
    cache.bind(1, [Version(program(1))])
    cache.unbind(1)
    driver.enqueue(1, [0])
    assert [trap.cause for trap in driver.run(resume=True)]
    assert Candidate(0).compare == Version(program(1)).compare
