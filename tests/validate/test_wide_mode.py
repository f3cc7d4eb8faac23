"""The validator accepts and rejects MATRIX commands in wide and sparse mode as docs/machine.md requires."""

from dataclasses import replace

import pytest

from compiler.validate import MacroCall, ValidationError, validate
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.assembler import assemble
from hw.isa.disassembler import disassemble
from tests.validate.validator_dsl import CONFIG, LIMIT, WINDOWS, proof, rejected

N = CONFIG.n
TILE = f"set matrix.w_row, {N}\nset matrix.w_base, {0x400}\n"


def matrix(word: str = "wide=1", **fields: int) -> str:
    """Return a program with one MATRIX command, which is marked as the line of the expected error."""
    lines = [f"set matrix.word, {word}", *(f"set matrix.{name}, {value}" for name, value in fields.items())]
    return TILE + "\n".join(lines) + "\nissue matrix ; <<\nhalt"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"a_base": 2 * N, "a_v": 2 * N, "a_u": 8 * N, "a_ic": 4 * N, "a_oc": 0, "x_count": 3, "y_count": 2},
        {"a_base": 64 * N, "a_v": -2 * N, "x_count": 5, "a_zp": -7, "k_rows": N - 1},
        {"a_base": CONFIG.sp_bytes - 2 * N},
        {"a_v": 2 * N, "v_lim": 2, "v0": -1, "x_count": 4},
    ],
)
def test_accepted(fields: dict[str, int]):
    modes = ("wide=1", "sparse=1")
    for word in (mode + more for mode in modes for more in ("", " accumulate=1", " shift8=1 a_unsigned=1")):
        proof(matrix(word, **(fields if "a_unsigned" not in word else fields | {"a_zp": 200})))


@pytest.mark.parametrize("mode", ["wide=1", "sparse=1"])
@pytest.mark.parametrize("word", ["w_unsigned=1", "w_transpose=1", "dw=1"])
def test_modes_that_exclude_each_other(word: str, mode: str):
    rejected(matrix(f"{mode} {word}"), "command", text="contradict")
    proof(matrix(word, dw_len=3))
    rejected(matrix("wide=1 sparse=1"), "command", text="contradict")


@pytest.mark.parametrize("mode", ["wide=1", "sparse=1"])
def test_zero_point_of_weights(mode: str):
    rejected(matrix(mode, w_zp=1), "command", text="contradict")
    proof(matrix("accumulate=0", w_zp=1))


@pytest.mark.parametrize("name", ["a_base", "a_u", "a_v", "a_ic", "a_oc"])
@pytest.mark.parametrize("value", [1, N, 3 * N])
@pytest.mark.parametrize("mode", ["wide=1", "sparse=1"])
def test_alignment(name: str, value: int, mode: str):
    rejected(matrix(mode, **{name: value}), "command", text="contradict")
    proof(matrix("accumulate=0", **{name: value}))
    proof(matrix(mode, **{name: 2 * value * N}))


def test_bounds():
    """A row of activations has 2 * N bytes, and a tile N rows of N bytes."""
    rejected(matrix(a_base=CONFIG.sp_bytes - 2 * N, a_v=2 * N, x_count=2), "bounds")
    rejected(matrix(w_base=CONFIG.sp_bytes - N * N + N), "bounds")
    proof(matrix(w_base=CONFIG.sp_bytes - N * N))


def test_bounds_of_sparse_tiles():
    """A sparse tile has N/4 more rows, which follow its K weight rows."""
    rejected(matrix("sparse=1", a_base=CONFIG.sp_bytes - 2 * N, a_v=2 * N, x_count=2), "bounds")
    rows = N + N // 4
    proof(matrix("sparse=1", w_base=CONFIG.sp_bytes - rows * N))
    rejected(matrix("sparse=1", w_base=CONFIG.sp_bytes - rows * N + N), "bounds")
    proof(matrix("sparse=1", w_base=CONFIG.sp_bytes - rows * N + N, k_rows=N - 1))
    rejected(matrix("sparse=1 scaled=1", w_base=CONFIG.sp_bytes - rows * N), "bounds")
    proof(matrix("sparse=1 scaled=1", w_base=CONFIG.sp_bytes - (rows + 1) * N))


@pytest.mark.parametrize(("offset", "races"), [(N - 1, True), (N, True), (2 * N - 1, True), (2 * N, False)])
@pytest.mark.parametrize("mode", ["wide=1", "sparse=1"])
def test_both_halves_are_read(offset: int, races: bool, mode: str):
    """A LOAD that does not wait races with a command that reads the bytes in wide or sparse mode."""
    source = (
        TILE
        + f"set matrix.word, {mode}\nissue matrix\n"
        + f"set load.dram, 0x1000\nset load.dst, {offset}\nset load.len, 1\nissue load{' ; <<' if races else ''}\nhalt"
    )
    if races:
        rejected(source, "race")
    else:
        proof(source)


def test_configuration_without_wide_mode():
    config = replace(CONFIG, wide=0, sparse=0)
    program = assemble(matrix())
    with pytest.raises(ValidationError, match=r"MlaConfig\.wide is 0"):
        validate(config, [MacroCall(program, ())], WINDOWS, limit=LIMIT)
    validate(config, [MacroCall(assemble(matrix("accumulate=1")), ())], WINDOWS, limit=LIMIT)
    config = replace(CONFIG, sparse=0)
    with pytest.raises(ValidationError, match=r"the sparse mode.*MlaConfig\.sparse is 0"):
        validate(config, [MacroCall(assemble(matrix("sparse=1")), ())], WINDOWS, limit=LIMIT)
    assert MlaConfig().wide == MlaConfig().sparse == 1
    with pytest.raises(InputError, match="sparse = 1 needs wide = 1"):
        replace(CONFIG, wide=0)


def test_scaled_sums():
    """The row of factors is part of the bounds; depthwise commands and transposed tiles cannot be scaled."""
    for word in ("scaled=1", "wide=1 scaled=1", "scaled=1 w_unsigned=1 accumulate=1"):
        proof(matrix(word))
        proof(matrix(word, w_base=CONFIG.sp_bytes - (N + 1) * N))
        rejected(matrix(word, w_base=CONFIG.sp_bytes - N * N), "bounds")
        proof(matrix(word, w_base=CONFIG.sp_bytes - N * N, k_rows=N - 1))
        rejected(matrix(f"{word} w_transpose=1"), "command", text="contradict")
        rejected(matrix(f"{word} dw=1", dw_len=3), "command", text="contradict")
    config = replace(CONFIG, wide=0, sparse=0)
    with pytest.raises(ValidationError, match=r"scaled sums.*MlaConfig\.wide is 0"):
        validate(config, [MacroCall(assemble(matrix("scaled=1")), ())], WINDOWS, limit=LIMIT)


def test_factors_are_read():
    """A LOAD of the row after the weights races with a scaled command, and only with a scaled one."""
    for scaled in (0, 1):
        source = (
            TILE
            + f"set matrix.word, scaled={scaled}\nset matrix.x_count, 2\nissue matrix\n"
            + f"set load.dram, 0x1000\nset load.dst, {0x400 + N * N + N - 1}\nset load.len, 1\n"
            + f"issue load{' ; <<' if scaled else ''}\nhalt"
        )
        if scaled:
            rejected(source, "race")
        else:
            proof(source)


def test_assembler():
    for mode in ("wide=1", "sparse=1"):
        program = assemble(matrix(f"{mode} a_unsigned=1"))
        assert f"set matrix.word, a_unsigned=1 {mode}" in disassemble(program)
