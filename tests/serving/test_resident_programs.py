"""The instruction store keeps the programs with the highest scores, and all programs that are needed."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from compiler.codegen.split_programs import ProgramPart
from compiler.serving.resident_programs import ResidentPrograms
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from cosim.programs import ProgramStore
from hw.config import load_target
from hw.isa.assembler import assemble

CONFIG = replace(load_target("n4"), wis_words=256, segments=8)


@pytest.fixture
def driver() -> Iterator[Driver]:
    with GoldenDevice(CONFIG, 1 << 16) as device:
        yield Driver(device)


def program(number: int, words: int = 20) -> ProgramPart:
    """Return a program that writes its number into eight bytes at the address in operand 0."""
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
    return ProgramPart(replace(made, words=made.words + spare), ())


def run(driver: Driver, residency: ResidentPrograms, which: ProgramPart) -> None:
    """Run a resident program and check the number that it writes."""
    address = driver.put(np.zeros(8, np.uint8))
    driver.enqueue(residency.opcode(which), [address])
    residency.expect(which)
    assert driver.run() == []
    residency.complete(which)
    (value,) = set(driver.fetch(address, (8,), np.uint8).tolist())
    assert f"program {value}" == which.program.name
    driver.memory.release(address)


def use(residency: ResidentPrograms, *which: ProgramPart) -> None:
    for each in which:
        assert residency.load(each)
        residency.expect(each)
        residency.complete(each)


def test_a_program_is_loaded_once(driver: Driver) -> None:
    residency = ResidentPrograms(driver)
    use(
        residency,
        program(1),
        program(1),
        ProgramPart(replace(program(1).program, name="other"), ()),
        program(2),
    )
    assert (residency.loads, residency.evictions) == (2, 0)
    assert residency.opcode(program(1)) != residency.opcode(program(2))


def test_least_used_program_is_evicted(driver: Driver) -> None:
    residency = ResidentPrograms(driver)
    each = {number: program(number, 60) for number in range(1, 6)}
    use(residency, *(each[number] for number in (1, 2, 3, 4, 1, 1, 2, 4, 1, 4, 5)))
    assert each[3] not in residency and residency.evictions == 1
    use(residency, program(6, 70))  # no single program is long enough
    assert residency.evictions == 3 and each[1] in residency


def test_old_uses_have_less_weight(driver: Driver) -> None:
    residency = ResidentPrograms(driver)
    old, *new = (program(number, 60) for number in (1, 2, 3, 4))
    use(residency, *[old] * 4, *new)
    for _ in range(100):
        use(residency, *new)
    assert residency.score(old) < 0.2 < min(residency.score(each) for each in new)
    use(residency, program(5, 60))
    assert old not in residency and all(each in residency for each in new)


def test_programs_needed_soonest_remain(driver: Driver) -> None:
    residency = ResidentPrograms(driver)
    each = [program(number, 60) for number in range(4)]
    use(residency, *each, *[each[0]] * 50)
    assert residency.load(program(5, 60), soon=[each[2], each[1], each[3]])
    assert each[0] not in residency
    assert residency.load(program(6, 60), soon=[program(5, 60), each[2], each[1], each[3]])
    assert each[3] not in residency and all(kept in residency for kept in each[1:3])


def test_pending_and_active_programs_remain(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    residency = ResidentPrograms(driver)
    each = [program(number, 60) for number in range(4)]
    use(residency, *each)
    residency.expect(each[0])
    busy = driver.programs.programs.keys()
    (segment,) = (s for s in busy if driver.programs.programs[s].name == "program 1")
    monkeypatch.setattr(ProgramStore, "in_use", lambda _self, numbers: {segment} & set(numbers))
    for number in range(4, 12):
        assert residency.load(program(number, 60), keep=[each[2]])
    assert all(kept in residency for kept in each[:3])
    assert not residency.load(program(12, 130), keep=[each[2]])
    residency.complete(each[0])
    assert residency.load(program(12, 60), keep=[each[2]])


def test_other_programs_are_not_evicted(driver: Driver) -> None:
    theirs = driver.programs.load(program(1, 100).program)
    residency = ResidentPrograms(driver)
    for number in range(2, 30):
        assert residency.load(program(number, 60))
    assert driver.programs.programs[theirs].name == "program 1"
    assert not residency.load(program(30, 200)) and residency.evictions > 20


def test_segments_are_exhausted_before_words(driver: Driver) -> None:
    residency = ResidentPrograms(driver)
    for number in range(20):
        use(residency, program(number, 10))
        assert len(driver.programs.programs) == min(number + 1, CONFIG.segments)
    assert residency.evictions == 20 - CONFIG.segments
    run(driver, residency, program(19, 10))


def test_opcodes_are_exhausted_before_segments() -> None:
    config = replace(CONFIG, opcodes=8, segments=16)
    with GoldenDevice(config, 1 << 16) as device:
        driver = Driver(device)
        residency = ResidentPrograms(driver)
        for number in range(20):
            use(residency, program(number, 10))
        assert residency.evictions == 20 - config.opcodes
        run(driver, residency, program(19, 10))


def test_too_long_program_is_not_loaded(driver: Driver) -> None:
    residency = ResidentPrograms(driver)
    use(residency, program(1))
    assert not residency.load(program(2, 257)) and program(1) in residency


def _fits(kept: list[tuple[int, int]], length: int) -> bool:
    """Return True if a gap of the given length exists between the occupied ranges, as checked word by word."""
    taken = {word for base, size in kept for word in range(base, base + size)}
    free = 0
    for word in range(CONFIG.wis_words):
        free = 0 if word in taken else free + 1
        if free == length:
            return True
    return False


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cheapest_programs_are_evicted(driver: Driver, seed: int) -> None:
    """The evicted programs are the cheapest of all possible sets, as found by exhaustive search."""
    print(f"seed {seed}")
    rng, residency, store = random.Random(seed), ResidentPrograms(driver), driver.programs
    library = [program(number, rng.randrange(8, 90)) for number in range(1, 25)]
    for _ in range(150):
        wanted = rng.choice(library[: 6 if rng.random() < 0.5 else None])
        keep = rng.sample(library[:4], rng.randrange(3))
        if wanted in residency:
            use(residency, wanted)
            continue
        there = {p.words: (store.base(s), len(p.words)) for s, p in store.programs.items()}
        score = {each.program.words: residency.score(each) for each in library if each in residency}
        free = [words for words in there if words not in {each.program.words for each in keep}]
        costs = []
        for count in range(len(free) + 1):
            for gone in itertools.combinations(free, count):
                kept = [place for words, place in there.items() if words not in gone]
                if len(kept) < CONFIG.segments and _fits(kept, len(wanted.program.words)):
                    costs.append(sum(score[words] for words in gone))
        before = residency.evictions
        assert residency.load(wanted, keep=keep) == bool(costs)
        gone = [
            each.program.words for each in library if each.program.words in there and each not in residency
        ]
        assert residency.evictions - before == len(gone)
        if costs:
            assert sum(score[words] for words in gone) == pytest.approx(min(costs))
            run(driver, residency, wanted)
    assert residency.evictions > 40
    assert driver.get("TRAP_COUNT") == 0
