"""`mla validate` accepts programs as text and as binaries, or rejects them with the line of the error."""

import json
from dataclasses import asdict, replace

import pytest

from compiler.runtime.package_writer import to_bytes
from hw.isa.program import Program
from tests.lowering.test_partition import compiled

SOURCE = """\
.name demo
; copies 16 bytes
    set load.dram, op0
    set load.len, 16
    issue load, signal(store:0)
    set store.dram, op1
    set store.len, 16
    issue store{wait}
    fence store
    halt
"""
SAFE, RACY = SOURCE.format(wait=", wait(load:0)"), SOURCE.format(wait="")
ARGUMENTS = (
    "--operands",
    "0x1000,0x2000",
    "--window",
    "0x1000:4096:r",
    "--window",
    "0x2000:16:w",
    "--target",
    "n4",
)


@pytest.fixture
def program(tmp_path, mla):
    """Return a function that writes a program and returns its text file and its binary file."""

    def write(text, name="demo"):
        source, image = tmp_path / f"{name}.s", tmp_path / f"{name}.mlap"
        source.write_text(text)
        assert mla("asm", source, "-o", image).status == 0
        return source, image

    return write


def test_safe_program(mla, program, tmp_path):
    source, image = program(SAFE)
    for path in (source, image):
        result = mla("validate", path, *ARGUMENTS)
        assert (result.status, result.err) == (0, "")
        assert result.out.startswith("safe: 1 call, 8 instructions, 1 path\n")
        assert "dram: read 0x1000..0x100f, write 0x2000..0x200f" in result.out
    document = json.loads(mla("validate", image, *ARGUMENTS, "--json", "-").out)
    assert (document["schema_version"], document["valid"], document["commands"]["store"]) == (1, True, 1)
    report = tmp_path / "report.json"
    assert mla("validate", image, *ARGUMENTS, "--json", report).status == 0
    assert json.loads(report.read_text()) == document


def test_rejected_program_names_line(mla, program):
    source, image = program(RACY)
    result = mla("validate", source, *ARGUMENTS)
    assert (result.status, result.err) == (1, "")
    assert result.out.startswith(
        f"rejected: {source}:8: `issue store`: race: store reads sp 0x0..0xf without waiting for"
    )
    result = mla("validate", image, *ARGUMENTS)
    assert result.status == 1
    assert result.out.startswith(
        f"rejected: {image}: instruction 5 (line 7 of its disassembly), `issue store`: race: "
    )
    assert mla("disasm", image).out.splitlines()[7 - 1].split(";")[0].strip() == "issue store"
    document = json.loads(mla("validate", image, *ARGUMENTS, "--json", "-").out)
    assert (document["valid"], document["refusal"]["kind"], document["refusal"]["instruction"]) == (
        False,
        "race",
        5,
    )


def test_options_change_the_result(mla, program):
    source, _ = program(SAFE)
    result = mla("validate", source, *ARGUMENTS, "--require-written", "--calls", "3")
    assert result.out.startswith("safe: 3 calls, 24 instructions")
    assert ": endless: " in mla("validate", source, *ARGUMENTS, "--limit", "7").out
    assert ":3: `set load.dram, op0`: operand: " in mla("validate", source).out
    assert ": window: " in mla("validate", source, "--operands=-1,0").out
    caller, _ = program("callp 0, 0\nhalt\n", "caller")
    pinned, _ = program("issue store\nret\n", "pinned")
    result = mla("validate", caller, "--pinned", pinned)
    assert (result.status, result.out.split(" `")[0]) == (1, f"rejected: {pinned}:1:")
    assert mla("validate", caller, "--pinned", pinned, "--window", "0:1:w").status == 0
    written = mla("validate", caller, "--pinned", pinned, "--window", "0:1:w", "--require-written")
    assert ": uninitialized: store reads sp 0x0" in written.out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--operands", "1,x"], "--operands: must hold integers, not 'x'"),
        (["--window", "5"], "must be START:LENGTH or START:LENGTH:r, w or rw, not '5'"),
        (["--window", "0:16:x"], "r, w or rw, not '0:16:x'"),
        (["--window", "0:0"], "must be a range within 0..0xffffffff, not '0:0'"),
        (["--window", "1:4294967296"], "must be a range within 0..0xffffffff"),
        (["--limit", "0"], "must be an integer of at least 1, not '0'"),
        (["--calls", "0"], "must be an integer in 1..65536, not '0'"),
        (["--target", "n5"], "target must be one of"),
        (["--window", "0:1"] * 5, "there may be at most 4 windows, not 5"),
        (["--pinned", "absent.s"], "absent.s cannot be read"),
        (["--json", "absent/out"], "absent/out cannot be written"),
    ],
)
def test_usage_errors(complains, program, arguments, text):
    complains(2, text, "validate", program(SAFE)[0], *arguments)


def test_invalid_files(complains, tmp_path):
    path = tmp_path / "bad.s"
    path.write_text("halt\nfrobnicate\n")
    complains(2, f"{path}:2: 'frobnicate' is not an instruction", "validate", path)
    path.write_bytes(b"halt ; \xff")
    complains(2, "must be UTF-8 text: invalid start byte at byte 7", "validate", path)
    path = path.rename(tmp_path / "bad.mlap")
    complains(2, f"{path}: not a micro-program file (it must begin with MLAP)", "validate", path)


def test_compiled_network(mla, complains, tmp_path):
    path = tmp_path / "mixed.mla"
    network = compiled(3)[1]
    path.write_bytes(to_bytes(network))
    result = mla("validate", path)
    assert (result.status, result.err) == (0, "")
    stages = [index for index, stage in enumerate(network.stages) if stage.code]
    assert result.out.startswith(f"stage {stages[0]}: safe: ")
    document = json.loads(mla("validate", path, "--json", "-").out)
    assert [stage["stage"] for stage in document["stages"]] == stages
    assert all(stage["commands"]["store"] > 0 for stage in document["stages"])
    complains(
        2, "is a compiled network, which has its own operands, windows", "validate", path, "--operands", "1"
    )
    own, other = tmp_path / "own.toml", "n4" if network.config.n != 4 else "n8"
    own.write_text("".join(f"{name} = {value}\n" for name, value in asdict(network.config).items()))
    assert mla("validate", path, "--target", own) == result
    complains(
        2,
        f"{path} was compiled for another configuration than --target {other}",
        "validate",
        path,
        "--target",
        other,
    )
    complains(2, "target must be one of", "validate", path, "--target", "n5")
    path.write_bytes(b"PK")
    complains(2, "mixed.mla", "validate", path)


@pytest.mark.parametrize("word", [0, (1 << 64) - 1])
def test_invalid_instruction_words(mla, program, word):
    """A binary with arbitrary words is rejected with a one-line message."""
    image = program("    halt\n")[1]
    found = Program.from_bytes(image.read_bytes())
    image.write_bytes(replace(found, words=(word, *found.words)).to_bytes())
    result = mla("validate", image, "--target", "n4")
    assert (result.status, result.err) == (1, "")
    assert result.out.startswith(
        f"rejected: {image}: instruction 0 (line 2 of its disassembly), `.word {word:#018x}`"
    )
