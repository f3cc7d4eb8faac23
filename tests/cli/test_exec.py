"""`mla exec` validates and runs programs, sets and dumps DRAM, and names invalid input in its messages."""

import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from compiler.cli.exec import hexdump
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from cosim.status import TrapReport
from hw.config import load_target
from hw.errors import InputError
from hw.isa.assembler import assemble

COPY = """\
.name copy
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
CALL = ("--operands", "0,0x2000", "--window", "0:16:r", "--window", "0x2000:16:w", "--target", "n4")
GOLDEN = (*CALL, "--device", "golden")


@pytest.fixture
def source(tmp_path):
    """Write an assembly program that copies data and that the validator accepts; return its path."""
    path = tmp_path / "copy.s"
    path.write_text(COPY.format(wait=", wait(load:0)"))
    return path


@pytest.fixture
def array(tmp_path):
    """Write a 16-byte array whose contents reveal the byte order; return the path of the file."""
    path = tmp_path / "x.npy"
    np.save(path, np.arange(0x41, 0x49, dtype=np.int16))
    return path


BYTES = bytes(value for number in range(0x41, 0x49) for value in (number, 0))


def test_same_dumps_on_both_devices(mla, source, array):
    found = {}
    for device in ("rtl", "golden"):
        result = mla(
            "exec",
            source,
            *CALL,
            "--device",
            device,
            "--put",
            f"0={array}",
            "--dump",
            "0x2000:16",
            "--dump",
            "8200:2",
            "--json",
            "-",
        )
        assert result.status == 0, result.err
        found[device] = json.loads(result.out)
        assert found[device]["schema_version"] == 1 and found[device]["trap"] is None
        assert found[device]["dumps"] == {"0x2000": BYTES.hex(), "8200": BYTES[8:10].hex()}
    assert found["golden"]["cycles"] is None
    # The minimum is two transfers: 100 cycles of latency to the first beat, and 10 to the write response.
    assert 110 < found["rtl"]["cycles"] < 1000


def test_cycles_depend_on_dram_latency(mla, source, tmp_path):
    cycles = []
    for latency in (100, 300):
        out = tmp_path / "out.json"
        result = mla("exec", source, *CALL, "--dram-latency", latency, "--json", out)
        assert (
            result.status == 0
            and result.out.startswith("copy on n4 (rtl): ")
            and result.out.endswith(" cycles\n")
        )
        cycles.append(json.loads(out.read_text())["cycles"])
    # The latency occurs twice: once for the command, once for the data.
    assert cycles[1] - cycles[0] == 2 * 200


def test_text_and_big_endian_arrays(mla, source, array):
    np.save(array, np.arange(0x41, 0x49, dtype=">i2"))
    result = mla("exec", source, *GOLDEN, "--put", f"0x0={array}", "--dump", "0x2000:16")
    assert (result.status, result.err) == (0, "")
    assert result.out == (
        "copy on n4 (golden): completed\n0x2000, 16 bytes:\n"
        "00002000  41 00 42 00 43 00 44 00  45 00 46 00 47 00 48 00  |A.B.C.D.E.F.G.H.|\n"
    )


def test_program_files(mla, source, tmp_path, array):
    image = tmp_path / "copy.mlap"
    assert mla("asm", source, "-o", image).status == 0
    result = mla("exec", image, *GOLDEN, "--put", f"0={array}", "--dump", "0x2000:16", "--json", "-")
    assert json.loads(result.out)["dumps"] == {"0x2000": BYTES.hex()}


def test_hexdump_format():
    rng = np.random.default_rng(1)
    noise = rng.integers(0, 256, 40, np.uint8).tobytes()
    for data in (b"", b"x", noise, bytes(64) + noise, noise + bytes(64), bytes(160), noise[:16] * 3):
        made = list(hexdump(0, data))
        lines = []  # format of `hexdump -C` of util-linux
        for start in range(0, len(data), 16):
            row = data[start : start + 16]
            left, right = (" ".join(f"{byte:02x}" for byte in half) for half in (row[:8], row[8:]))
            text = "".join(chr(byte) if 32 <= byte <= 126 else "." for byte in row)
            lines.append(f"{start:08x}  {left:<23}  {right:<23}  |{text}|")
        assert [line for line in made if line != "*"] == [line for line in lines if line in made]
        assert made[:1] == lines[:1] and made[-1:] == lines[-1:]
        repeated = [one[10:] == other[10:] for one, other in pairwise(lines[:-1])]
        assert ("*" in made) == any(repeated)


def test_rejected_program_names_line(mla, source):
    source.write_text(COPY.format(wait=""))
    result = mla("exec", source, *GOLDEN)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith(f"mla exec: rejected: {source}:8: `issue store`: race: ")
    assert result.err.count("\n") == 1
    result = mla("exec", source, *GOLDEN, "--json", "-")
    document = json.loads(result.out)
    assert (result.status, document["cycles"], document["dumps"]) == (1, None, {})
    assert document["refusal"]["kind"] == "race"
    assert [document[key] for key in ("program", "target", "device")] == ["copy", "n4", "golden"]
    source.write_text(COPY.format(wait=", wait(load:0)"))
    result = mla("exec", source, "--operands", "0,0x2000", "--window", "0:16:r", "--target", "n4")
    assert result.status == 1 and f"{source}:8: `issue store, wait(load:0)`: window: " in result.err


@pytest.mark.parametrize("device", ["golden", "rtl"])
def test_traps_are_decoded(mla, source, monkeypatch, device):
    monkeypatch.setattr(
        "compiler.validate.validate", lambda *_arguments: None
    )  # no trap is possible in validated programs
    arguments = ("exec", source, "--operands", "0,0x2000", "--window", "0:16:r", "--target", "n4")
    result = mla(*arguments, "--device", device, "--dump", "0:1")
    assert result.status == 1
    assert "trap: DRAM_WINDOW: line 8: `issue store, wait(load:0)`, address or value 0x2000\n" in result.out
    assert result.out.endswith("|.|\n")
    document = json.loads(mla(*arguments, "--device", device, "--json", "-").out)
    assert document["trap"] == {
        "cause": "DRAM_WINDOW",
        "instruction": "issue store, wait(load:0)",
        "index": 5,
        "line": 8,
        "address": 0x2000,
    }


def test_traps_outside_the_program(mla, source, monkeypatch):
    report = TrapReport(cause=20, pc=3, segment=0xFF, tag=0, macro=0, address=7)
    monkeypatch.setattr("compiler.cli.exec._execute", lambda *_arguments: (5, report))
    result = mla("exec", source, *GOLDEN)
    assert (result.status, "trap: WIS_IN_USE: address or value 0x7\n" in result.out) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--operands", "1,x"], "--operands: must hold integers, not 'x'"),
        (["--window", "5"], "must be START:LENGTH or START:LENGTH:r, w or rw, not '5'"),
        (["--window", "0x4000000:1"], "--window 0x4000000:1 is outside DRAM, which is 0..0x3ffffff"),
        (["--window", "0x3ffffff:2:r"], "--window 0x3ffffff:2 is outside DRAM"),
        (["--window", "0:1"] * 5, "there may be at most 4 windows, not 5"),
        (["--put", "5"], "must be ADDR=FILE.npy, not '5'"),
        (["--put", "y=x.npy"], "--put: must hold integers, not 'y'"),
        (["--put", "0=absent.npy"], "absent.npy: cannot be read"),
        (["--put=-1={array}"], "is outside DRAM"),
        (["--put", "0x3fffff1={array}"], "{array} is outside DRAM"),
        (["--put", "0={array}", "--put", "0xf={array}"], "overlaps --put 0x0={array}, 0x0..0xf"),
        (["--put", "0={long}"], "{long}: dtype must be one of int8, uint8, int16,"),
        (["--put", "0={empty}"], "{empty}: must hold at least one element"),
        (["--put", "0={two}"], "{two}: must be a .npy file with one array, not an .npz file"),
        (["--put", "0={text}"], "{text}: must be a .npy or .npz file"),
        (["--dump", "0x10"], "must be ADDR:LENGTH, not '0x10'"),
        (["--dump", "0:0"], "must be a range within 0..0xffffffff, not '0:0'"),
        (["--dump", "0:0x4000001"], "--dump 0:67108865 is outside DRAM"),
        (["--dump", "0:1", "--dump", "0:2"], "--dump 0: the address is given twice"),
        (["--target", "n5"], "target must be one of"),
        (["--device", "fpga"], "invalid choice: 'fpga'"),
        (["--json", "{array}", "--put", "0={array}"], "{array} is an input"),
    ],
)
def test_bad_input(complains, source, array, tmp_path, arguments, text):
    files = {"array": array, **{name: tmp_path / f"{name}.npy" for name in ("long", "empty", "two", "text")}}
    np.save(files["long"], np.arange(2))
    np.save(files["empty"], np.zeros((0, 3), np.int8))
    with files["two"].open("wb") as file:
        np.savez(file, a=np.zeros(1, np.int8), b=np.zeros(1, np.int8))
    files["text"].write_text("1 2 3")
    command = [argument.format_map(files) for argument in arguments]
    complains(2, text.format_map(files), "exec", source, *command)


def test_bad_programs(complains, tmp_path):
    path = tmp_path / "bad.s"
    complains(2, f"{path} cannot be read", "exec", path)
    path.write_text("halt\nfrobnicate\n")
    complains(2, f"{path}:2: 'frobnicate' is not an instruction", "exec", path)


def test_ring_address():
    """Programs may use the DRAM from address 0 up to the ring."""
    config = load_target("n4")
    program = assemble(COPY.format(wait=", wait(load:0)"), "copy")
    with GoldenDevice(config, 1 << 16) as device:
        driver = Driver(device, 1, 0xF000)
        assert driver.memory.alloc(16) == 0
        device.dram[:16] = range(16)
        driver.load(program, opcode=0)
        driver.enqueue(0, [0, 0xEFF0])
        driver.run()
        assert device.dram[0xEFF0:0xF000].tolist() == list(range(16))
        with pytest.raises(InputError, match=r"DRAM of 61440 bytes is too small"):
            driver.memory.alloc(0xF000)
        for ring in (1, -256, 0x10000):
            with pytest.raises(InputError, match=r"ring must be a multiple of 256 in 0\.\.0xff00"):
                Driver(device, 1, ring)


def test_readme_example(mla, tmp_path, monkeypatch):
    from hw.config import TARGETS

    text = (TARGETS.parents[1] / "README.md").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fill.s").write_text(text.split("in its first operand:\n\n```\n")[1].split("```")[0])
    command, *lines = text.split("```\n$ mla exec ")[1].split("```")[0].splitlines()
    result = mla("exec", *command.split(), "--device", "golden")
    assert result.status == 0, result.err
    assert result.out.splitlines()[1:] == lines[1:]


def test_json_on_standard_output_of_a_process(source, array):
    """Standard output contains nothing but the JSON document."""
    command = [sys.executable, "-m", "compiler.cli.main", "exec", source, *GOLDEN, "--json", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert json.loads(done.stdout)["device"] == "golden" and done.stderr == b""
