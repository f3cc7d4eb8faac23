"""Tests of counters: exact stall causes, closed-form values, sums over tags, and reads without side effects."""

import numpy as np
import pytest

from compiler.kernel_library.conv import Conv, conv_operands, conv_tiles
from compiler.kernel_library.gemm import gemm_operands, gemm_tiles
from compiler.kernel_library.run import OPCODES, resident_program
from cosim.device import Device
from cosim.driver import Driver
from cosim.rtl.rtl_device import RtlDevice
from hw.bus.register_map import ADDRESS
from hw.config import load_target
from hw.isa.assembler import assemble
from hw.isa.counters import CAUSES
from hw.isa.macro_instruction import OPERAND_WORD, RECORD_WORDS
from hw.isa.micro_instruction import MAX_OPERANDS

GEMMS = ((8, 8, 8), (1, 40, 24), (33, 5, 17), (16, 12, 64), (50, 9, 7), (7, 31, 13))
CONVS = (
    Conv(6, 6, 4, 8, (3, 3), pads=(1, 1, 1, 1)),
    Conv(9, 5, 3, 5, (2, 3), (2, 1)),
    Conv(5, 7, 6, 4, (1, 1)),
    Conv(8, 8, 2, 3, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2)),
)


def _driver(device: Device) -> Driver:
    driver = Driver(device)
    for name in ("gemm_i8", "conv2d_i8"):
        driver.load(resident_program(name), opcode=OPCODES[name])
    return driver


def _bytes(driver: Driver, size: int) -> int:
    return driver.put(np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8))


def _gemm(driver: Driver, m: int, n: int, k: int, tag: int) -> dict[str, int]:
    """Enqueue a GEMM and return its expected counters."""
    config, tiles = driver.config, gemm_tiles(driver.config, m, n, k)
    blocks, kblocks = -(-n // config.n), -(-k // config.n)
    operands = gemm_operands(
        config,
        tiles,
        a=_bytes(driver, m * k),
        b=_bytes(driver, blocks * config.n * k),
        c=_bytes(driver, m * n),
        p=_bytes(driver, 9 * config.n * blocks),
        m=m,
        n=n,
        k=k,
    )
    driver.enqueue(OPCODES["gemm_i8"], operands, tag=tag)
    row_tiles = -(-m // tiles.mt)
    a_loads = 1 if tiles.kt == k else -(-blocks // tiles.nt)
    return {
        "macs_useful": m * n * k,
        "macs_issued": m * blocks * kblocks * config.n**2,
        "matrix_rows": m * blocks * kblocks,
        "acc_writes": m * blocks * kblocks,
        "matrix_tiles": row_tiles * blocks * kblocks,
        "store_bytes": m * n,
        "load_bytes": m * k * a_loads + row_tiles * blocks * config.n * (k + 9),
        "fuse_results": m * blocks,
        "fuse_points": m * blocks,
        "fuse_scaled": m * blocks,
        "fuse_tables": 0,
        "macros": 1,
        "traps": 0,
    }


def _conv(driver: Driver, conv: Conv, tag: int) -> dict[str, int]:
    """Enqueue a convolution and return its expected counters."""
    config, tiles = driver.config, conv_tiles(driver.config, conv)
    blocks, icb, taps = -(-conv.out_c // config.n), -(-conv.in_c // config.n), conv.kernel[0] * conv.kernel[1]
    operands = conv_operands(
        config,
        conv,
        tiles,
        x=_bytes(driver, conv.in_h * conv.in_w * conv.in_c),
        w=_bytes(driver, blocks * config.n * taps * conv.in_c),
        p=_bytes(driver, 9 * config.n * blocks),
        y=_bytes(driver, conv.out_h * conv.out_w * conv.out_c),
    )
    driver.enqueue(OPCODES["conv2d_i8"], operands, tag=tag)
    pixels = conv.out_h * conv.out_w
    inside = sum(
        0 <= y * conv.stride[0] - conv.pads[0] + i * conv.dilation[0] < conv.in_h
        and 0 <= x * conv.stride[1] - conv.pads[1] + j * conv.dilation[1] < conv.in_w
        for y in range(conv.out_h)
        for x in range(conv.out_w)
        for i in range(conv.kernel[0])
        for j in range(conv.kernel[1])
    )
    return {
        "macs_useful": inside * conv.in_c * conv.out_c,
        "matrix_rows": pixels * taps * icb * blocks,
        "macs_issued": pixels * taps * icb * blocks * config.n**2,
        "store_bytes": pixels * conv.out_c,
        "fuse_results": pixels * blocks,
        "macros": 1,
    }


def test_closed_forms_of_ten_programs_by_tag(device: Device) -> None:
    driver = _driver(device)
    expected = [_gemm(driver, *shape, tag) for tag, shape in enumerate(GEMMS)]
    expected += [_conv(driver, conv, len(GEMMS) + i) for i, conv in enumerate(CONVS)]
    driver.run()
    for tag, values in enumerate(expected):
        assert {name: driver.counters.read(name, tag) for name in values} == values, f"tag {tag}"
    # The totals over all tags, including unused ones, equal the sums of the closed forms.
    totals = driver.counters.totals(architectural=True)
    for name in expected[-1]:
        assert totals[name] == sum(values[name] for values in expected), name


def test_micro_instruction_counts(device: Device) -> None:
    driver = _driver(device)
    driver.load(
        assemble(
            "loop 10, end\nadd r1, r1, 1\nadd r2, r2, r1\nend: set load.len, 3\nclear load\ntag 2\nfence load\nhalt"
        ),
        opcode=20,
    )
    driver.enqueue(20, tag=1)
    driver.run()
    names = ("micro_scalar", "micro_config", "micro_control", "micro_sync", "micro_issue")
    totals = driver.counters.totals(architectural=True)
    assert [totals[name] for name in names] == [20, 2, 3, 1, 0]
    record = driver.completion(0)
    assert record is not None and record.micros == 26


@pytest.mark.parametrize("latency", [10, 100])
def test_causes_sum_to_the_cycles(rtl: RtlDevice, latency: int) -> None:
    rtl.set_dram_timing(latency)
    driver = _driver(rtl)
    for tag, shape in enumerate(GEMMS):
        _gemm(driver, *shape, tag)
        driver.run()
        causes = driver.counters.causes(tag)
        assert sum(causes.values()) == driver.counters.read("cycles", tag) > 0
        assert causes["useful"] == driver.counters.read("matrix_rows", tag)


def test_totals_match_clock_and_bus(rtl: RtlDevice) -> None:
    """Totals over all tags equal the elapsed cycles and the beats counted by the memory model."""
    driver = _driver(rtl)
    tags = driver.config.tags
    for tag, shape in enumerate(GEMMS):
        _gemm(driver, *shape, tag)
    for index, conv in enumerate(CONVS):
        _conv(driver, conv, tags - 1 - index)
    macros = len(GEMMS) + len(CONVS)
    before, beats_before = driver.counters.totals(), rtl.dram_traffic()
    driver.set("CONTROL", 1)  # every cycle counts from here; both writes to CONTROL have the same delay
    start = rtl.cycle
    driver.run()
    driver.set("CONTROL", 3)  # the machine is idle again; cycles are not counted
    elapsed = rtl.cycle - start
    after, beats_after = driver.counters.totals(), rtl.dram_traffic()
    counted = {name: after[name] - before[name] for name in after}
    beats = {name: beats_after[name] - beats_before[name] for name in beats_after}
    assert counted["cycles"] == elapsed
    assert sum(counted[f"cause_{cause}"] for cause in CAUSES) == elapsed
    for unit in ("matrix", "fuse", "load", "store"):
        states = (counted[f"{unit}_{state}"] for state in ("busy", "stall_empty", "stall_semaphore"))
        assert sum(states) == elapsed, unit
    row_words = driver.config.n // 4
    slot_beats = (OPERAND_WORD + MAX_OPERANDS) // row_words
    assert counted["load_beats"] == beats["read_beats"] - macros * slot_beats
    assert counted["store_beats"] == beats["write_beats"] - macros * RECORD_WORDS // row_words
    assert counted["macros"] == macros


def test_reading_counters_does_not_change_timing(rtl: RtlDevice) -> None:
    cycles = []
    for reads in (0, 40):
        rtl.reset()
        driver = _driver(rtl)
        rtl.run_cycles(8192 - rtl.cycle)
        _gemm(driver, 33, 20, 65, 1)
        driver.doorbell()
        for index in range(reads):
            rtl.write_regs([(ADDRESS["COUNTER_SELECT"], 1 << 16 | index)], delay_cycles=7)
            rtl.read_reg(ADDRESS["COUNTER_LO"])
        driver.run()
        record = driver.completion(0)
        assert record is not None
        cycles.append(record.cycles)
    assert cycles[0] == cycles[1]


#: Program that starts five rows of MATRIX under tag 3 after `fill` cycles, when the sequencer already uses tag 1.
TAGS_AHEAD = """
    set matrix.x_count, 5
    set matrix.a_v, %n
    set matrix.w_row, %n
    set matrix.acc_x, 1
    set load.word, fill=1
    set load.len, %n
    set load.y_count, op0
    set load.dst, 8192
    set load.dst_y, %n
    tag 2
    tag 3
    issue load, signal(matrix:0)
    issue matrix, wait(load:0)
    tag 1
    halt
"""


def test_rows_are_counted_under_the_tag_of_their_command(rtl: RtlDevice) -> None:
    """Rows are counted under their command's tag, whenever MATRIX starts during the previous tag's flush."""
    driver = Driver(rtl)
    driver.load(assemble(TAGS_AHEAD, "tags.s"), opcode=20)
    before = {tag: driver.counters.of_tag(tag)["matrix_rows"] for tag in range(4)}
    fills = range(4, 804, 8)
    for fill in fills:
        driver.enqueue(20, [fill], tag=3)
        driver.run()
    rows = {tag: driver.counters.of_tag(tag)["matrix_rows"] - before[tag] for tag in range(4)}
    assert rows == {0: 0, 1: 0, 2: 0, 3: 5 * len(fills)}


def test_counters_are_read_after_a_reset_with_a_throttled_clock() -> None:
    """The machine clears its counters before it answers; cycles in which its clock is stalled do not count."""
    with RtlDevice(load_target("n16"), 1 << 12, throttle=0.5) as device:
        assert device.read_reg(ADDRESS["COUNTER_LO"]) == 0
