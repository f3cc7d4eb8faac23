"""The static validator rejects or accepts handwritten programs as expected, with the correct line."""

import pickle
from pathlib import Path

import pytest

from compiler.validate import KINDS, MacroCall, ValidationError, validate
from hw.errors import InputError
from hw.isa.assembler import assemble
from hw.isa.micro_instruction import LOOP_IMM, MicroOp, encode
from hw.isa.program import Program
from tests.validate.validator_dsl import CONFIG, WINDOWS, proof, rejected

REJECTED = {
    "operand": ("operand", "add r1, op1, 3 ; <<\nhalt"),
    "selector": ("operand", "add r1, sel140, 3 ; <<\nhalt"),
    "word": ("illegal", ".word 0 ; <<"),
    "field": ("illegal", f".word {encode(MicroOp.SET, d=3 << 7 | 100):#x} ; <<"),
    "unit": ("illegal", f".word {encode(MicroOp.CLEAR, d=9):#x} ; <<"),
    "end": ("pc", "add r1, 1\nloop r1, 0, past\nadd r2, 1\npast: add r3, 3\nadd r3, 1"),
    "jump": ("pc", "beq r0, r0, 77"),
    "callp": ("segment", "callp 3, 0 ; <<\nhalt"),
    "callp number": ("illegal", "callp 100, 0 ; <<\nhalt"),
    "loops": ("loop", "\n".join(f"loop 1, 40 ;{' <<' * (k == CONFIG.loop_depth)}" for k in range(9))),
    "empty loop": (
        "loop",
        f"add r1, 1\n.word {encode(MicroOp.LOOP, imm=LOOP_IMM.pack(end=2, count=3)):#x} ; <<",
    ),
    "break": ("loop", "loop 2, end\ncall sub\nend: halt\nsub: break end ; <<"),
    "calls": ("call", "again: call again ; <<"),
    "ret": ("call", "ret ; <<"),
    "trap": ("trap", "beq op0, r0, good\ntrap 7 ; <<\ngood: halt"),
    "endless": ("endless", "again: beq r0, r0, again ; <<"),
    "too long": ("endless", "loop 10000, end\nadd r1, r1, 1 ; <<\nend: halt"),
    "watchdog": (
        "endless",
        "set load.word, fill=1\nset load.y_count, 60000\nset load.z_count, 60000\nissue load ; <<\nhalt",
    ),
    "address": ("statistics", "fence fuse\nset load.dst, %fuse_max\nissue load ; <<\nhalt"),
    "mode": ("statistics", "fence fuse\nand r1, %fuse_max, 1\nset load.word, r1\nissue load ; <<\nhalt"),
    "trips": ("statistics", "fence matrix\nloop %matrix_zeros, 0, end ; <<\nadd r1, 1\nend: halt"),
    "cycle": ("statistics", "add r1, %cycle ; <<\nhalt"),
    "ways": (
        "statistics",
        "again: fence fuse\nadd r2, r2, 1\nbeq %fuse_max, r0, other ; <<\nadd r1, r1, 1\n"
        "other: shl r1, r1, 1\nblt r2, op0, again\nhalt",
    ),
    "count": ("command", "set load.y_count, 0\nissue load ; <<\nhalt"),
    "keep": ("command", "set matrix.word, dw=1 keep=1\nset matrix.x_count, 8\nissue matrix ; <<\nhalt"),
    "kept width": (
        "command",
        "set matrix.word, dw=1\nset matrix.x_count, 8\nset matrix.dw_len, 9\nissue matrix\n"
        "set matrix.word, dw=1 keep=1\nset matrix.x_count, 7\nissue matrix ; <<\nhalt",
    ),
    "kept pixels": (
        "command",
        "set matrix.word, dw=1\nset matrix.x_count, 8\nset matrix.dw_len, 1\nissue matrix\n"
        "set matrix.word, dw=1 keep=1\nissue matrix ; <<\nhalt",
    ),
    "scratchpad": ("bounds", "set load.dram, 0x1000\nset load.dst, 0xFFFFF\nissue load ; <<\nhalt"),
    "accumulator": ("bounds", "set matrix.acc_base, 0xFFFF\nissue matrix ; <<\nhalt"),
    "slots": (
        "bounds",
        "set load.dram, 0x1000\nset load.word, space=param\nset load.dst, 0x8000\nset load.len, 4\n"
        "issue load ; <<\nhalt",
    ),
    "window": ("window", "issue load ; <<\nhalt"),
    "read only": ("window", "set store.dram, 0x9000\nissue store ; <<\nhalt"),
    "two windows": ("window", "set load.dram, 0x8FFF\nset load.len, 2\nissue load ; <<\nhalt"),
    "wait": ("deadlock", "wait fuse:1 ; <<\nhalt"),
    "fence": ("deadlock", "issue fuse, wait(load:2)\nfence fuse ; <<\nhalt"),
    "queue": ("deadlock", "loop 9, end\nissue fuse, wait(fuse:0) ; <<\nend: halt"),
    "halt": ("deadlock", "issue fuse, wait(load:2) ; <<\nhalt"),
    "circle": (
        "deadlock",
        "issue fuse, wait(matrix:0), signal(matrix:0)\nset matrix.acc_base, 9\n"
        "issue matrix, wait(fuse:0), signal(fuse:0) ; <<\nhalt",
    ),
    "room": ("deadlock", "set fuse.d_base, 7\nloop 64, end\nissue fuse, signal(seq:0) ; <<\nend: halt"),
    "left": ("semaphore", "issue fuse, signal(store:3) ; <<\nhalt"),
    "read too soon": (
        "race",
        "set load.dram, 0x1000\nset load.len, 9\nissue load\nset store.dram, 0x2000\nset store.src, 8\n"
        "issue store ; <<\nhalt",
    ),
    "overwritten": (
        "race",
        "set store.dram, 0x2000\nissue store\nset load.word, fill=1\nissue load ; <<\nhalt",
    ),
    "through DRAM": (
        "race",
        "set store.dram, 0x2000\nissue store\nset load.dram, 0x2000\nset load.dst, 99\nissue load ; <<\nhalt",
    ),
    "accumulator rows": ("race", "issue matrix\nset fuse.d_base, 7\nissue fuse ; <<\nhalt"),
    "parameters": (
        "race",
        "set load.word, space=param fill=1\nset load.len, 4\nset load.dst, 0x40\nissue load\n"
        "set fuse.src, requant=slot\nset fuse.p_base, 1\nset fuse.d_base, 7\nissue fuse ; <<\nhalt",
    ),
    "tables": (
        "race",
        "set load.word, space=table fill=1\nset load.len, 4\nset load.dst, 508\nissue load\n"
        "set fuse.stage, table=1\nset fuse.d_base, 7\nissue fuse ; <<\nhalt",
    ),
    "same unit": ("race", "set fuse.d_base, 7\nissue fuse\nset fuse.a_base, 7\nissue fuse ; <<\nhalt"),
    "statistic": ("race", "issue fuse\nfence load, matrix, store\nadd r1, %fuse_max ; <<\nhalt"),
    "points": (
        "race",
        "set fuse.x_count, 8\nset fuse.a_v, 1\nset fuse.d_base, 1\nset fuse.d_x, 1\nissue fuse ; <<\nhalt",
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_program_is_rejected_at_its_line(name):
    kind, source = REJECTED[name]
    if "<<" not in source:  # no line exists after the last instruction
        with pytest.raises(ValidationError) as caught:
            proof(source, 30)
        assert (caught.value.kind, caught.value.line) == (kind, None)
        return
    rejected(source, kind, 30)


def test_every_kind_of_error_occurs():
    elsewhere = {"size", "uninitialized"}
    assert {kind for kind, _ in REJECTED.values()} == set(KINDS) - elsewhere


def test_every_kind_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "validator.md").read_text()
    assert [f"| `{kind}` | {meaning} |" for kind, meaning in KINDS.items()] == page.splitlines()[
        -len(KINDS) :
    ]


def test_arguments_of_calls():
    def kind(call: MacroCall, **options) -> str:
        with pytest.raises(ValidationError) as caught:
            validate(CONFIG, [MacroCall(assemble("halt")), call], WINDOWS, **options)
        assert caught.value.call == 1
        return caught.value.kind

    halt = assemble("halt")
    assert kind(MacroCall(Program("none", ()))) == "size"
    assert kind(MacroCall(assemble("halt\n" * (CONFIG.wis_words + 1)))) == "size"
    assert kind(MacroCall(assemble("halt\n" * CONFIG.wis_words)), pinned=[halt]) == "size"
    assert kind(MacroCall(Program("wide", (encode(MicroOp.HALT) | 1 << 64,)))) == "illegal"
    assert kind(MacroCall(halt, (0,) * 49)) == "operand"
    assert kind(MacroCall(halt, (1 << 32,))) == "operand"
    assert kind(MacroCall(halt, (-(1 << 31) - 1,))) == "operand"
    assert kind(MacroCall(halt, (), CONFIG.tags)) == "operand"
    for limit, windows, pinned in ((0, [], []), (1, [(0, 1, 3)] * 5, []), (1, [], [halt] * CONFIG.segments)):
        with pytest.raises(InputError) as caught:
            validate(CONFIG, [MacroCall(halt)], windows, pinned=pinned, limit=limit)
        assert not isinstance(caught.value, ValidationError)


def test_location_of_pinned_code_and_of_words_without_lines():
    pinned = [assemble("ret"), assemble("add r1, 1\nissue load\nret", "shared")]
    call = MacroCall(Program("caller", assemble("callp 1, 0\nhalt").words))
    with pytest.raises(ValidationError) as caught:
        validate(CONFIG, [call], WINDOWS, pinned=pinned)
    error = caught.value
    assert (error.program, error.instruction, error.line) == ("shared", 1, 2)
    assert str(error).startswith(
        "call 0, program 'shared', instruction 1 (line 2): window: load: read of DRAM 0x0.."
    )
    assert error.to_json()["kind"] == "window"
    assert pickle.loads(pickle.dumps(error)).to_json() == error.to_json()  # searches use several processes
    with pytest.raises(ValidationError) as caught:
        validate(CONFIG, [MacroCall(Program("bare", assemble("add r1, 1\ntrap 2").words))], WINDOWS)
    assert (caught.value.instruction, caught.value.line) == (1, None)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "set store.dram, 0x9000\nset store.len, 8\nissue store\nhalt",
            "write to DRAM 0x9000..0x9007 is outside every writable window",
        ),
        (
            "set load.dram, 0x20\nset load.len, 4\nissue load\nhalt",
            "read of DRAM 0x20..0x23 is outside every readable window",
        ),
    ],
)
def test_window_errors_name_the_range(source: str, text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        validate(CONFIG, [MacroCall(assemble(source))], [(0x9000, 0x9FFF, 1)])
    assert caught.value.kind == "window" and caught.value.reason.endswith(text)
