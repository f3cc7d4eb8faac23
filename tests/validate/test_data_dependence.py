"""Tests of the static validator: data-dependent paths, known bits of values, and initialized memory."""

import random

import pytest

from compiler.validate import explore
from compiler.validate.known_bits import Word, compute, parts, taken, word_of
from cosim.semantics.alu import ALU, BRANCH, MASK
from hw.isa.micro_instruction import MicroOp
from tests.support.seeds import random_seed
from tests.validate.validator_dsl import proof, rejected


@pytest.fixture
def rng() -> random.Random:
    return random.Random(random_seed())


def random_word(rng) -> Word:
    value = rng.choice((0, 1, 8, MASK, rng.getrandbits(32), rng.getrandbits(8)))
    unknown = rng.choice((0, 1, 0xFF, 0xFF00, 1 << 31, MASK, rng.getrandbits(32) & rng.getrandbits(32)))
    return word_of(value, unknown)


def some_value(rng, word: Word) -> int:
    """Return a possible value of a partially known word."""
    value, unknown = parts(word)
    return value | unknown & rng.choice((0, MASK, rng.getrandbits(32)))


def test_known_bits_of_results_are_right(rng):
    """Known bits of results and decided branches are correct for any values of the unknown bits."""
    decided = 0
    for _ in range(4000):
        a, b = random_word(rng), random_word(rng)
        op, branch = rng.choice(list(ALU)), rng.choice(list(BRANCH))
        result, decision = compute(op, a, b), taken(branch, a, b)
        value, unknown = parts(result)
        assert not value & unknown
        decided += decision is not None and not (isinstance(a, int) and isinstance(b, int))
        for _ in range(6):
            x, y = some_value(rng, a), some_value(rng, b)
            exact = int(ALU[op](x, y)) & MASK
            assert not (exact ^ value) & ~unknown, (op.name, a, b, x, y)
            assert decision in (None, bool(BRANCH[branch](x, y))), (branch.name, a, b, x, y)
    assert decided > 100


def test_known_bits_are_preserved():
    low = word_of(0x100, 0xFF)
    assert parts(compute(MicroOp.ADD, low, 0x1000)) == (0x1100, 0xFF)
    assert parts(compute(MicroOp.ADD, low, 1))[1] == 0x3FF
    assert compute(MicroOp.AND, word_of(0, MASK), 0) == 0
    assert parts(compute(MicroOp.SHL, low, 4)) == (0x1000, 0xFF0)
    assert parts(compute(MicroOp.SAR, word_of(0, 1 << 31), 3)) == (0, 0xF0000000)
    assert taken(MicroOp.BLTU, low, 0x200) is True
    assert taken(MicroOp.BGE, low, 0x200) is False
    assert taken(MicroOp.BEQ, low, 0x200) is False
    assert taken(MicroOp.BLT, word_of(0, 1 << 31), 0) is None


TWO_PATHS = """
    fence matrix, fuse
    bltu %fuse_zeros, op0, few
    set load.dst, 4
    beq r0, r0, go
few:
    set load.dst, {few}
go:
    set load.word, fill=1
    issue load ; {mark}
    halt
"""


def test_both_paths_are_followed():
    assert proof(TWO_PATHS.format(few=8, mark=""), 5).paths == 2
    rejected(TWO_PATHS.format(few=0xFFFFF, mark="<<"), "bounds", 5)
    assert proof(TWO_PATHS.format(few=0xFFFFF, mark=""), 0).paths == 1  # no unsigned value is below 0


def test_paths_merge_at_a_fence():
    """Paths merge at a fence after each iteration, so their number does not grow."""
    source = """
    again:
        fence matrix, fuse, load, store
        beq %fuse_max, r0, skip
        issue fuse
    skip:
        add r1, r1, 1
        fence matrix, fuse, load, store
        blt r1, 100, r1
        halt
    """.replace("blt r1, 100, r1", "blt r1, op0, again")
    report = proof(source, 100)
    assert report.paths == 101
    assert report.commands["fuse"] == 100


def test_instructions_of_further_paths_are_limited(monkeypatch):
    """The limit on the number of instructions applies to all paths except the first."""
    source = (
        "fence fuse ;{mark}\nbeq %fuse_max, r0, other\nadd r1, 1\nother: loop 100, end\nadd r2, 1\nend: halt"
    )
    monkeypatch.setattr(explore, "MAX_PATH_INSTRUCTIONS", 90)
    assert proof(source.format(mark="")).paths == 2
    twice = "fence fuse\nbeq %fuse_zeros, r0, half\nadd r1, 2\nhalf: " + source.format(mark=" <<")
    rejected(twice, "statistics", text="more than 90 instructions")
    monkeypatch.setattr(explore, "MAX_PATH_INSTRUCTIONS", 1000)
    assert proof(twice).paths == 4


def test_unknown_bits_in_data_are_accepted():
    source = "fence fuse\nshr r1, %fuse_max, 8\nand r1, r1, 255\nshl r1, r1, 5\nset load.word, r1, 4\nissue load\nhalt"
    assert proof(source).commands["load"] == 1
    rejected(
        source.replace("shl r1, r1, 5", "shl r1, r1, 4").replace("issue load", "issue load ; <<"),
        "statistics",
    )
    assert proof("fence fuse\nset fuse.mult, %fuse_max\nset fuse.d_base, 3\nissue fuse\nhalt").paths == 1


# Initialized memory


def test_uninitialized_reads_are_rejected():
    fill = "set load.word, fill=1\nset load.len, {length}\nissue load\nfence load\n"
    use = "set store.dram, 0x1000\nset store.len, 8\nissue store"
    assert proof(f"{use}\nhalt")
    assert proof(f"{fill.format(length=8)}{use}\nhalt", require_written=True)
    error = rejected(f"{fill.format(length=7)}{use} ; <<\nhalt", "uninitialized", require_written=True)
    assert "sp 0x7" in error.reason
    rejected(
        "set fuse.d_base, 3\nissue fuse ; <<\nhalt", "uninitialized", text="acc 0x0", require_written=True
    )
    array = "set matrix.w_row, 4\nset matrix.k_rows, {rows}\n"
    assert proof(fill.format(length=16) + array.format(rows=4) + "issue matrix\nhalt", require_written=True)
    rejected(
        fill.format(length=12) + array.format(rows=4) + "issue matrix ; <<\nhalt",
        "uninitialized",
        require_written=True,
    )
    rejected(
        fill.format(length=16)
        + array.format(rows=4)
        + "set matrix.word, accumulate=1\nissue matrix ; <<\nhalt",
        "uninitialized",
        require_written=True,
    )


def test_memory_initialized_on_one_path_only():
    source = (
        "set store.dram, 0x1000\nfence fuse\nbeq %fuse_max, r0, skip\nset load.word, fill=1\nissue load\n"
    )
    source += "skip: fence load\nissue store ; <<\nhalt"
    assert proof(source).paths == 2
    rejected(source, "uninitialized", require_written=True)
