"""`mla asm` and `mla disasm` preserve programs in a round trip and reject invalid programs."""

import os

import pytest

from hw.isa.program import Program

SOURCE = """
.name demo
.signature operands 1
    add r1, r0, op0, 4
    halt
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "demo.s"
    path.write_text(SOURCE)
    return path


def test_round_trip(mla, source, tmp_path):
    first, text, second = tmp_path / "a", tmp_path / "b.s", tmp_path / "c"
    assert mla("asm", source, "-o", first) == (0, "", "")
    listing = mla("disasm", first)
    assert (listing.status, listing.err) == (0, "")
    text.write_text(listing.out)
    assert mla("asm", text, "-o", second).status == 0
    assert second.read_bytes() == first.read_bytes()
    assert Program.from_bytes(first.read_bytes()).name == "demo"


def test_error_names_the_line(complains, source, tmp_path):
    source.write_text("halt\nfrobnicate r1\n")
    complains(2, f"{source}:2: 'frobnicate' is not an instruction", "asm", source, "-o", tmp_path / "out")
    assert list(tmp_path.iterdir()) == [source]


def test_unreadable_sources(complains, source, tmp_path):
    complains(2, "absent.s cannot be read: No such file", "asm", "absent.s", "-o", tmp_path / "out")
    source.write_bytes(b"halt ; \xff")
    complains(2, "must be UTF-8 text: invalid start byte at byte 7", "asm", source, "-o", tmp_path / "out")


@pytest.mark.parametrize("text", ["", "; nothing\n\n", ".name demo\n.equ SIZE, 4\nstart:\n"])
def test_empty_program(complains, source, tmp_path, text):
    source.write_text(text)
    message = f"{source}: a program must have at least one instruction, not none"
    complains(2, message, "asm", source, "-o", tmp_path / "out")
    assert list(tmp_path.iterdir()) == [source]


def test_program_too_long_for_target(mla, complains, source, tmp_path):
    source.write_text("halt\n" * 8193)
    out = tmp_path / "out"
    message = f"{source}: a program for 'n16' must be at most 8192 words long, not 8193"
    complains(2, message, "asm", source, "-o", out, "--target", "n16")
    complains(2, "target must be one of", "asm", source, "-o", out, "--target", "n5")
    assert not out.exists()
    assert mla("asm", source, "-o", out).status == 0
    source.write_text("halt\n" * 8192)
    assert mla("asm", source, "-o", out, "--target", "n16") == (0, "", "")


def test_signature_too_long(complains, source, tmp_path):
    lines = "".join(f".signature {'x' * 1000}\n" for _ in range(70))
    source.write_text(f"{lines}halt\n")
    text = f"{source}: name and signature must be at most 65534 bytes together, not 70073"
    complains(2, text, "asm", source, "-o", tmp_path / "out")
    assert list(tmp_path.iterdir()) == [source]


def test_undecodable_file_name(mla, source, tmp_path):
    odd = tmp_path / os.fsdecode(b"\xff.s")
    odd.write_text("halt\n")
    assert mla("asm", odd, "-o", tmp_path / "out") == (0, "", "")
    assert Program.from_bytes((tmp_path / "out").read_bytes()).name == "\N{REPLACEMENT CHARACTER}"


def test_unwritable_output(complains, source, tmp_path):
    complains(2, "cannot be written: No such file", "asm", source, "-o", tmp_path / "absent" / "out")
    complains(2, "cannot be written: it is a folder", "asm", source, "-o", tmp_path)


def test_damaged_programs(mla, complains, source, tmp_path):
    path = tmp_path / "program"
    assert mla("asm", source, "-o", path).status == 0
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:-1])
    complains(2, f"program: micro-program file must be {len(data)} bytes long", "disasm", path)
    data[-9] ^= 1
    path.write_bytes(data)
    complains(2, "its CRC does not match", "disasm", path)
    complains(2, "must begin with MLAP", "disasm", source)
    complains(2, "cannot be read", "disasm", tmp_path / "absent")
