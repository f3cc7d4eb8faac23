"""`mla run` rejects hostile packages whose programs branch on their input's address and harm only some samples."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from compiler.api import compile
from compiler.codegen.split_programs import ProgramPart
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.package_writer import to_bytes
from compiler.runtime.session import Session, dram_bytes
from compiler.runtime.validation import validate_network
from compiler.serving.server import Server, serving_bytes
from compiler.validate import ValidationError
from cosim.golden import GoldenDevice
from cosim.semantics.alu import BRANCH
from cosim.status import TrapError
from hw.isa.assembler import assemble
from hw.isa.micro_instruction import LOOP_IMM, MicroOp, decode, encode
from hw.isa.program import Program
from scripts.networks.digits import MODEL

SAMPLES = 4
#: Code that is executed only if the input's address is at least `limit`; operand 0 is the address of the weights.
HARM = {
    "trap": "trap 7",
    "deadlock": "wait load:0",
    "race": "set load.word, fill=1\nissue load\nset store.dram, op2\nissue store",
    "weights": "set store.dram, op0\nset store.len, 16\nissue store\nfence store",
    "other sample": "set store.dram, op2, -4096\nset store.len, 16\nissue store\nfence store",
    "outside": "set store.dram, 64\nissue store\nfence store",
}


@pytest.fixture(scope="module")
def network() -> CompiledNetwork:
    return compile(MODEL)


@pytest.fixture(scope="module")
def addresses(network: CompiledNetwork) -> list[int]:
    """Return the addresses of the input of each sample in a session."""
    with GoldenDevice(network.config, dram_bytes(network, SAMPLES)) as device:
        (place,) = Session(device, network, SAMPLES).loaded
        return [place.operands(sample)[1] for sample in range(SAMPLES)]


@pytest.fixture
def samples(tmp_path: Path, network: CompiledNetwork) -> Path:
    """Return a file with an input for each sample."""
    (tensor,) = network.inputs
    path = tmp_path / "samples.npy"
    np.save(path, np.zeros((SAMPLES, *tensor.shape[1:]), tensor.dtype))
    return path


def changed(
    network: CompiledNetwork, change: Callable[[tuple[ProgramPart, ...]], tuple[ProgramPart, ...]]
) -> CompiledNetwork:
    """Return the network with changed programs in its only stage."""
    (stage,) = network.stages
    assert stage.code
    return replace(
        network, stages=(replace(stage, code=replace(stage.code, parts=change(stage.code.parts))),)
    )


def attack(network: CompiledNetwork, harm: str, limit: int) -> CompiledNetwork:
    """Return the network with an added first program that harms samples with inputs at addresses from `limit` on."""
    text = f"fence load, matrix, fuse, store\nset r1, {limit}\nbltu op1, r1, good\n{HARM[harm]}\ngood: halt"
    text = text.replace(
        f"set r1, {limit}", f"add r1, {limit >> 16}\nshl r1, r1, 16\nor r1, r1, {limit & 0xFFFF}"
    )
    part = ProgramPart(replace(assemble(text), name="harm"), ())
    return changed(network, lambda parts: (part, *parts))


def skipping(program: Program, limit: int) -> Program:
    """Return the program with code in front that halts if the address of the input is at least `limit`."""
    front = assemble(
        f"add r31, {limit >> 16}\nshl r31, r31, 16\nor r31, r31, {limit & 0xFFFF}\nbltu op1, r31, 5\nhalt\nhalt"
    ).words[:5]
    words = []
    for word in program.words:
        values = decode(word)
        op = values["opcode"]
        if op == MicroOp.LOOP:
            packed = LOOP_IMM.unpack(values["imm"] & 0xFFFFFFFF)
            values["imm"] = LOOP_IMM.pack(**packed | {"end": packed["end"] + len(front)})
        elif op in BRANCH or op in (MicroOp.BREAK, MicroOp.CALL):
            values["imm"] += len(front)
        words.append(
            encode(MicroOp(op), **{name: value for name, value in values.items() if name in "d a b imm"})
        )
    return Program(program.name, (*front, *words))


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("first", [1, 2, 3])
def test_harm_to_any_sample_is_rejected(
    network: CompiledNetwork, addresses: list[int], harm: str, first: int
) -> None:
    """A session validates all of its sample slots, including those that only later calls use."""
    bad = attack(network, harm, addresses[first])
    with GoldenDevice(network.config, dram_bytes(bad, SAMPLES)) as device:
        with pytest.raises(ValidationError):
            Session(device, bad, SAMPLES)
        Session(device, bad, first)  # with only these slots, the program is harmless


@pytest.mark.parametrize("harm", ["deadlock", "weights"])
def test_run_rejects_hostile_package(
    mla, tmp_path: Path, network: CompiledNetwork, addresses: list[int], harm: str, samples: Path
) -> None:
    bad = attack(network, harm, addresses[2])
    validate_network(bad, samples=1)  # validates the same addresses as `mla validate`
    file = tmp_path / "bad.mla"
    file.write_bytes(to_bytes(bad))
    result = mla("run", file, "--input", samples)
    assert result.status == 2 and result.out == ""
    errors = [line for line in result.err.splitlines() if "'harm'" in line]
    assert errors == result.err.splitlines()[-1:] and str(file) in errors[0]
    assert "Traceback" not in result.err


def test_run_rejects_cycles_below_the_floor(
    mla, tmp_path: Path, network: CompiledNetwork, addresses: list[int], samples: Path
) -> None:
    """A program that skips work passes validation but is rejected for taking fewer cycles than the lower bound."""
    bad = changed(
        network,
        lambda parts: tuple(replace(part, program=skipping(part.program, addresses[1])) for part in parts),
    )
    file = tmp_path / "fast.mla"
    file.write_bytes(to_bytes(bad))
    result = mla("run", file, "--input", samples)
    assert result.status == 2 and result.out == ""
    assert "skip work" in result.err and "Traceback" not in result.err


def test_windows_protect_memory_without_validation(
    network: CompiledNetwork, addresses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without validation the DRAM windows still protect weights, inputs and other samples."""
    monkeypatch.setattr("compiler.runtime.session.prove", lambda *_: None)
    (tensor,) = network.inputs
    for harm in ("weights", "other sample", "outside"):
        bad = attack(network, harm, addresses[2])
        with GoldenDevice(network.config, dram_bytes(bad, SAMPLES)) as device:
            session = Session(device, bad, SAMPLES)
            session.run({tensor.name: np.zeros(tensor.shape, tensor.dtype)})
            before = device.dram[addresses[0] :].copy()
            (place,) = session.loaded
            weights = device.dram[place.base : place.base + place.code.image.size].copy()
            with pytest.raises(TrapError, match="DRAM_WINDOW"):
                session.rerun(2)
            assert (device.dram[place.base : place.base + place.code.image.size] == weights).all()
            assert (device.dram[addresses[0] : addresses[2]] == before[: addresses[2] - addresses[0]]).all()


@pytest.mark.parametrize("windows", [1, 2, 3, 4, 8])
def test_windows_cover_only_tensors_of_the_samples(windows: int, network: CompiledNetwork) -> None:
    config = replace(network.config, windows=windows)
    with GoldenDevice(network.config, dram_bytes(network, SAMPLES)) as device:
        (place,) = Session(device, network, SAMPLES).loaded
    for numbers in ([0], [3], range(SAMPLES)):
        found = place.windows(numbers, config.windows)
        assert 1 <= len(found) <= windows
        assert found == sorted(found) and all(a[1] < b[0] for a, b in pairwise(found))
        weights = place.base, place.base + place.code.image.size - 1, 1
        assert windows == 1 or found[0] == weights
        first, last = found[0][0], found[-1][1]
        assert first == place.base and last < device.dram.size
        for sample in numbers:
            for tensor, how in [(t, 1) for t in place.stage.inputs] + [(t, 2) for t in place.stage.outputs]:
                start = place.samples[sample][tensor.name]
                assert any(a <= start and start + tensor.bytes - 1 <= b and p & how for a, b, p in found)


def test_serving_validates_all_pairs_of_slots(network: CompiledNetwork) -> None:
    """Serving validates every pair of consecutive slots, and detects a race that occurs only in slot 1 after slot 2."""
    with GoldenDevice(network.config, serving_bytes(network)) as device:
        server = Server(device, network)
        buffers, version = server.versions.buffers, server.current
        one, two = (buffers.operands(version, 0, slot)[1] for slot in (1, 2))

    def extra(name: str, address: int, text: str) -> ProgramPart:
        source = f"add r1, {address >> 16}\nshl r1, r1, 16\nor r1, r1, {address & 0xFFFF}\nbne op1, r1, end\n"
        return ProgramPart(replace(assemble(f"{source}{text}\nend: halt"), name=name), ())

    before = extra("before", one, "set load.word, fill=1\nset load.dst, 262128\nissue load")
    behind = extra("behind", two, "set store.dram, op2\nset store.src, 262128\nissue store")
    bad = changed(network, lambda parts: (before, *parts, behind))
    with (
        GoldenDevice(network.config, serving_bytes(bad)) as device,
        pytest.raises(ValidationError, match="race: load writes sp"),
    ):
        Server(device, bad)
