"""Programs are loaded and opcodes rebound while macro-instructions keep the ring full."""

import random

import numpy as np
import pytest

from cosim.driver import Driver
from cosim.programs import Candidate
from cosim.rtl.rtl_device import RtlDevice
from hw.bus.register_map import ADDRESS
from hw.isa.assembler import assemble
from hw.isa.enums import Trap
from hw.isa.program import Program

RESULT_BYTES = 16
OPCODE = 1


def _version(value: int, padding: int = 0) -> Program:
    """Return a program that writes `value` twice to its result, some time apart, to reveal torn execution."""
    return assemble(
        f"""
        set load.word, fill=1 fill_value={value}
        set load.len, 8
        issue load, signal(seq:0)
        wait load:0
        set store.dram, op0
        set store.len, 8
        issue store, signal(seq:0)
        wait store:0
        loop 12, spent
        add r1, r1, 1
    spent:
        {"add r2, r2, 1" + chr(10) if padding else ""}
        set load.word, fill=1 fill_value={value}
        set load.dst, 64
        issue load, signal(seq:0)
        wait load:0
        set store.dram, op0, 8
        set store.src, 64
        issue store, signal(seq:0)
        wait store:0
        halt
    """,
        f"version {value}",
    )


class Stream:
    """A ring kept full of macro-instructions, each with its own result buffer; there are `room` buffers."""

    def __init__(self, driver: Driver, room: int):
        self.driver, self.room = driver, room
        self.base = driver.put(np.zeros(room * RESULT_BYTES, np.uint8))
        self.sent = 0

    def fill(self) -> None:
        """Enqueue macro-instructions until the ring is full."""
        done = self.driver.get("RING_TAIL")
        while self.sent - done < self.driver.ring_slots:
            assert self.sent < self.room, "more room for results is needed"
            self.driver.enqueue(OPCODE, [self.base + self.sent * RESULT_BYTES])
            self.sent += 1
        self.driver.doorbell()

    def waiting(self) -> int:
        """Return the number of macro-instructions that have not completed."""
        return self.driver.get("RING_HEAD") - self.driver.get("RING_TAIL")

    def results(self) -> np.ndarray:
        """Return the results of all macro-instructions, one row each."""
        return self.driver.fetch(self.base, (self.sent, RESULT_BYTES), np.uint8)


@pytest.mark.parametrize("seed", [1])
def test_thousand_rebinds_with_full_ring(rtl: RtlDevice, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    driver = Driver(rtl, ring_slots=64)
    spare = driver.programs.load(_version(200))
    current = driver.load(_version(1), opcode=OPCODE)
    stream = Stream(driver, 6000)
    rebinds, order = 0, [1]
    while rebinds < 1000:
        stream.fill()
        rtl.run_cycles(rng.randrange(1, 300))
        value = rebinds % 250 + 2
        if rebinds % 10 == 0:  # load new code into the unbound segment, once that segment is no longer in use
            while driver.programs.in_use([spare]):
                rtl.run_cycles(20)
                stream.fill()
            driver.programs.load(
                _version(value, padding=rng.randrange(2)), segment=spare, dma=bool(rng.randrange(2))
            )
            order.append(value)
        else:
            order.append(order[-2])
        driver.programs.bind(OPCODE, [Candidate(spare)])
        # This is checked after the binding, so the ring was not empty before, during and after it.
        assert stream.waiting() > 0, f"the machine had nothing to do at rebind {rebinds}"
        spare, current = current, spare
        rebinds += 1
    driver.run()
    results = stream.results()
    assert (results == results[:, :1]).all(), "a macro-instruction ran two versions"
    assert (results[:, 0] != 0).all(), "a macro-instruction was lost"
    assert driver.get("RING_TAIL") == stream.sent and driver.get("TRAP_COUNT") == 0
    # Every result is that of a bound version, in the order of the bindings.
    position = 0
    for value in results[:, 0]:
        while position < len(order) and order[position] != value:
            position += 1
        assert position < len(order), f"version {value} ran out of order"


def _cycles(rtl: RtlDevice, disturb: bool) -> int:
    """Return the cycles of a long macro-instruction; with `disturb`, another program is loaded and bound meanwhile."""
    rtl.reset()
    driver = Driver(rtl)
    program = assemble("loop 6000, end\nadd r1, r1, 1\nadd r2, r2, r1\nend: halt", "long")
    driver.load(program, opcode=OPCODE)
    spare = driver.programs.load(_version(3))
    rtl.run_cycles(9000 - rtl.cycle)
    number = driver.enqueue(OPCODE, doorbell=True)
    rtl.run_cycles(400)
    if disturb:
        driver.programs.load(_version(4), segment=spare)
        driver.programs.bind(2, [Candidate(spare)])
    driver.run()
    record = driver.completion(number)
    assert record is not None and record.trap == Trap.NONE
    return record.cycles


def test_register_load_does_not_slow_running_program(rtl: RtlDevice) -> None:
    assert _cycles(rtl, disturb=False) == _cycles(rtl, disturb=True)


def test_dma_load_slows_running_program_by_at_most_its_beats(rtl: RtlDevice) -> None:
    cycles = []
    image = Program("image", tuple(_version(9).words) * 8)
    for disturb in (False, True):
        rtl.reset()
        driver = Driver(rtl)
        driver.load(
            assemble(
                """
            set load.dram, op0
            set load.len, 4
            set load.y_count, 4096
            set load.dram_y, 4
            issue load
            fence load
            halt""",
                "reader",
            ),
            opcode=OPCODE,
        )
        buffer = driver.put(np.zeros(16384, np.uint8))
        source = driver.put(np.frombuffer(image.image, np.uint8))
        rtl.run_cycles(9000 - rtl.cycle)
        number = driver.enqueue(OPCODE, [buffer], doorbell=True)
        rtl.run_cycles(500)
        if disturb:
            rtl.write_regs(
                [
                    (ADDRESS[name], value)
                    for name, value in (
                        ("SEG_SELECT", 5),
                        ("SEG_BASE", 1024),
                        ("SEG_LENGTH", len(image.words)),
                        ("SEG_COMMAND", 1),
                        ("SEG_CRC", image.crc),
                        ("LOADER_SOURCE", source),
                        ("LOADER_COMMAND", 1),
                    )
                ]
            )
        driver.run()
        record = driver.completion(number)
        assert record is not None
        cycles.append(record.cycles)
        if disturb:
            assert driver.programs.segment_state(5).name == "VALID"
    beats = len(image.words) * 8 // rtl.config.n
    assert 0 <= cycles[1] - cycles[0] <= beats, cycles
