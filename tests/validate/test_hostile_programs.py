"""The static validator raises no exception other than ValidationError for hostile programs."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.validate import KINDS, MacroCall, ProofReport, ValidationError, races, validate
from compiler.validate import explore as check_module
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from hw.config import load_target
from hw.isa.assembler import assemble
from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import Unit
from hw.isa.micro_instruction import OPERAND_BASE, STATISTIC_BASE, MicroOp, encode
from hw.isa.program import Program
from tests.support.program_gen.generator import generate
from tests.validate.mutate import mutants
from tests.validate.validator_dsl import CONFIG, WINDOWS, rejected

LIMIT = 300
#: Program in which a unit waits for room in a full semaphore until the sequencer takes the first token.
FULL = """
set load.word, fill=1
loop {count}, issued
issue load, signal(seq:0)
issued: loop {count}, taken
wait load:0
taken: halt
"""


@pytest.mark.parametrize("count", [1, 62, 63, 64, 66, 67])
def test_unit_continues_when_the_sequencer_takes_a_token(count: int) -> None:
    """After 63 tokens, the queue accepts `queue_depth` commands; one more causes a deadlock, as on the machine."""
    program = assemble(FULL.format(count=count))
    legal = count <= 63 + CONFIG.queue_depth
    with GoldenDevice(CONFIG, 1 << 16) as device:
        driver = Driver(device)
        driver.load(program, opcode=1)
        driver.enqueue(1)
        traps = driver.run(resume=True)
        assert bool(traps) is not legal
    if legal:
        report = validate(CONFIG, [MacroCall(program)], WINDOWS)
        assert report.commands["load"] == count
        return
    with pytest.raises(ValidationError) as caught:
        validate(CONFIG, [MacroCall(program)], WINDOWS)
    assert caught.value.kind == "deadlock"


def hostile(calls: list[MacroCall], *, written: bool = False) -> ProofReport | None:
    """Return the validator's report, or None if it rejects the calls; any other exception is a defect."""
    try:
        return validate(CONFIG, calls, WINDOWS, limit=LIMIT, require_written=written)
    except ValidationError as error:
        assert error.kind in KINDS
        assert "\n" not in str(error)
        return None


words = st.one_of(
    st.integers(0, (1 << 64) - 1),
    st.integers(-(1 << 70), 1 << 70),
    st.builds(
        lambda op, d, a, b, imm: encode(op, d=d, a=a, b=b, imm=imm),
        st.sampled_from(list(MicroOp)),
        st.one_of(
            st.integers(0, 31),
            st.builds(
                lambda unit, index: unit << 7 | index,
                st.sampled_from(list(Unit)),
                st.integers(0, max(map(len, UNIT_FIELDS))),
            ),
        ),
        *[
            st.one_of(
                st.integers(0, 8),
                st.integers(OPERAND_BASE, OPERAND_BASE + 3),
                st.integers(STATISTIC_BASE, 255),
            )
        ]
        * 2,
        st.one_of(
            st.integers(0, 20), st.sampled_from([0xFFFF, 0x10000, 0x7FFFFFFF, 0x10001, (1 << 31) - 64])
        ),
    ),
)
programs = st.builds(lambda each: Program("hostile", tuple(each)), st.lists(words, max_size=24))
calls = st.builds(
    MacroCall,
    programs,
    st.lists(st.one_of(st.none(), st.integers(-(1 << 31), (1 << 32) - 1), st.integers()), max_size=4).map(
        tuple
    ),
    st.integers(-1, 70),
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(calls, max_size=3), st.booleans())
def test_random_words(chosen: list[MacroCall], written: bool) -> None:
    hostile(chosen, written=written)


@pytest.mark.parametrize("target", ["n4", "n16"])
def test_mutated_programs(target: str) -> None:
    """The validator raises no other exception for mutated programs with extreme field values."""
    config, outcomes = load_target(target), set()
    for seed in range(6000, 6060):
        print("seed", seed)
        rng, case = Random(seed), generate(config, seed)
        _, some = case.render()
        for program in some:
            damaged = [each for _, each in mutants(rng, program, 4)]
            for _ in range(4):
                changed = list(program.words)
                for _ in range(rng.randrange(1, 6)):
                    unit = rng.choice(list(Unit))
                    d = unit << 7 | rng.randrange(len(UNIT_FIELDS[unit]))
                    value = rng.choice([0, 1, 255, 256, 65535, -1, 1 << 30, rng.getrandbits(31)])
                    changed.insert(
                        rng.randrange(len(changed) + 1), encode(MicroOp.SET, d=d, imm=value & 0xFFFFFFFF)
                    )
                damaged.append(Program(program.name, tuple(changed)))
            for each in damaged:
                operands = tuple(rng.choice([0, 0x1000, 0xFFFFFFFF, None]) for _ in range(4))
                try:
                    validate(config, [MacroCall(each, operands)] * 2, WINDOWS, limit=LIMIT)
                    outcomes.add("passed")
                except ValidationError as error:
                    outcomes.add(error.kind)
    assert len(outcomes) > 5, outcomes


UNORDERED = """
set load.word, fill=1
set store.dram, 0x1000
set store.src, 64
loop 2000, end
issue load
issue store
end: halt
"""


def test_unordered_accesses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation takes bounded time and memory, even if no accesses are ordered."""
    proof = lambda: validate(CONFIG, [MacroCall(assemble(UNORDERED))], WINDOWS)  # noqa: E731
    assert proof().commands["store"] == 2000
    monkeypatch.setattr(races, "MAX_COMPARED", 1 << 16)
    monkeypatch.setattr("compiler.validate.sequence_proof.proved", lambda _stream: None)
    monkeypatch.setattr(check_module, "proved", lambda _stream: None)
    with pytest.raises(ValidationError) as caught:
        proof()
    assert caught.value.kind == "endless" and "comparisons" in caught.value.reason
    monkeypatch.undo()
    monkeypatch.setattr(check_module, "proved", lambda _stream: None)
    monkeypatch.setattr(races, "_CROWDED", 100)
    monkeypatch.setattr("compiler.validate.happens_before.MAX_ACCESSES", 1000)
    with pytest.raises(ValidationError) as caught:
        proof()
    assert caught.value.kind == "endless" and "accesses" in caught.value.reason
    # Accesses before a fence are dropped, since the fence orders them.
    assert (
        validate(
            CONFIG,
            [MacroCall(assemble(UNORDERED.replace("issue store\n", "issue store\nfence load, store\n")))],
            WINDOWS,
        ).commands["store"]
        == 2000
    )


def test_paths_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory used by pending paths and the number of remembered states are bounded."""
    source = (
        "fence fuse\nbeq %fuse_max, r0, a ;{0}\nadd r1, 1\na: loop 100, e\nadd r2, r2, 1\nfence fuse\ne: halt"
    )
    monkeypatch.setattr(check_module, "MAX_STATES", 4)
    assert validate(CONFIG, [MacroCall(assemble(source.format("")))], WINDOWS).paths == 2
    monkeypatch.setattr(check_module, "MAX_PATH_BYTES", 1000)
    rejected(source.format("<<"), "statistics", text="bytes")
