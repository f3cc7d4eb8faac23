"""Programs stay within cycle limits on n16; simulated cycles are exact, so a slower design fails."""

from collections.abc import Iterator

import numpy as np
import pytest

from compiler.kernel_library.conv import Conv, conv_operands, conv_tiles, depthwise_operands, depthwise_tiles
from compiler.kernel_library.gemm import gemm_operands, gemm_tiles
from compiler.kernel_library.run import OPCODES, resident_program
from cosim.driver import Driver
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.isa.assembler import assemble

TEST_OPCODE = 20


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with RtlDevice(load_target("n16"), 1 << 26) as device:
        yield Driver(device)


def _cycles(driver: Driver, opcode: int, operands: list[int]) -> int:
    """Return the cycles from dispatch to the last retirement."""
    number = driver.enqueue(opcode, operands)
    driver.run()
    record = driver.completion(number)
    assert record is not None
    return record.cycles


def _buffers(driver: Driver, *sizes: int) -> list[int]:
    return [driver.put(np.zeros(size, np.uint8)) for size in sizes]


@pytest.mark.parametrize(
    ("shape", "ceiling"),
    [
        ((64, 64, 64), 1_900),
        ((128, 128, 128), 9_100),
        ((256, 256, 256), 66_900),
        ((512, 512, 512), 527_000),
        ((1, 4096, 4096), 1_056_500),
    ],
)
def test_gemm(driver: Driver, shape: tuple[int, int, int], ceiling: int) -> None:
    m, n, k = shape
    mark = driver.memory.mark()
    driver.load(resident_program("gemm_i8"), opcode=OPCODES["gemm_i8"])
    a, b, c, p = _buffers(driver, m * k, k * n, m * n, 9 * n)
    operands = gemm_operands(
        driver.config, gemm_tiles(driver.config, m, n, k), a=a, b=b, c=c, p=p, m=m, n=n, k=k
    )
    cycles = _cycles(driver, OPCODES["gemm_i8"], operands)
    driver.memory.release(mark)
    print(f"GEMM {m}x{n}x{k}: {cycles} cycles, {m * n * k / cycles / 256:.1%} of the array")
    assert cycles <= ceiling


def test_conv_56x56x64(driver: Driver) -> None:
    conv = Conv(56, 56, 64, 64, (3, 3), pads=(1, 1, 1, 1))
    mark = driver.memory.mark()
    driver.load(resident_program("conv2d_i8"), opcode=OPCODES["conv2d_i8"])
    x, w, y, p = _buffers(driver, 56 * 56 * 64, 9 * 64 * 64, 56 * 56 * 64, 9 * 64)
    operands = conv_operands(driver.config, conv, conv_tiles(driver.config, conv), x=x, w=w, y=y, p=p)
    cycles = _cycles(driver, OPCODES["conv2d_i8"], operands)
    driver.memory.release(mark)
    print(f"3x3 convolution: {cycles} cycles, {conv.macs / cycles / 256:.1%} of the array")
    assert cycles <= 454_000


def test_depthwise_56x56x128_from_and_to_dram(driver: Driver) -> None:
    conv = Conv(56, 56, 128, 128, (3, 3), pads=(1, 1, 1, 1))
    mark = driver.memory.mark()
    driver.load(resident_program("depthwise_i8"), opcode=OPCODES["depthwise_i8"])
    x, w, y, p = _buffers(driver, 56 * 56 * 128, 9 * 128, 56 * 56 * 128, 9 * 128)
    tiles = depthwise_tiles(driver.config, conv)
    operands = depthwise_operands(driver.config, conv, tiles, x=x, w=w, y=y, p=p)
    cycles = _cycles(driver, OPCODES["depthwise_i8"], operands)
    driver.memory.release(mark)
    macs = 56 * 56 * 128 * 9
    print(f"depthwise from and to DRAM: {macs / cycles:.1f} MACs a cycle")
    assert macs / cycles >= 60


#: Program for eight blocks of 16 channels of a 56 x 56 depthwise layer in the scratchpad, in seven stripes of 8 rows.
DEPTHWISE_IN_SP = """
    set matrix.a_u, 896
    set matrix.a_v, 16
    set matrix.w_base, 131072
    set matrix.w_row, 16
    set matrix.x_count, 58
    set matrix.v0, -1
    set matrix.u_lim, 56
    set matrix.v_lim, 56
    set matrix.acc_x, 1
    set matrix.acc_y, 56
    set matrix.dw_out_w, 56
    set fuse.src, default
    set fuse.stage, d_dst=sp
    set fuse.clip_lo, -128
    set fuse.clip_hi, 127
    set fuse.a_v, 1
    set fuse.x_count, 448
    set fuse.d_x, 16
    add r2, 2
    loop 8, blocks_end
    set matrix.word, dw=1 taps=3 groups=3
    set matrix.u0, 0
    set matrix.dw_lead, 60
    set matrix.dw_len, 522
    add r3, 65536
    call stripe
    set matrix.word, dw=1 taps=3 groups=3 keep=1
    set matrix.dw_lead, 2
    set matrix.dw_len, 464
    add r4, 9
    loop 6, stripes_end
    set matrix.u0, r4
    call stripe
    add r4, r4, 8
stripes_end:
    add r5, r5, 1
blocks_end:
    wait fuse:0
    wait fuse:0
    halt
stripe:
    and r6, r1, 1
    mul r6, r6, 512
    set matrix.acc_base, r6
    set fuse.a_base, r6
    set fuse.d_base, r3
    add r3, r3, 7168
    blt r1, r2, free
    wait fuse:0
free:
    issue matrix, signal(fuse:0)
    issue fuse, wait(matrix:0), signal(seq:0)
    add r1, r1, 1
    ret
"""


def test_depthwise_within_the_scratchpad(driver: Driver) -> None:
    driver.load(assemble(DEPTHWISE_IN_SP, "depthwise in SP"), opcode=TEST_OPCODE)
    cycles = _cycles(driver, TEST_OPCODE, [])
    macs = 8 * 56 * 56 * 16 * 9
    print(f"depthwise within SP: {macs / cycles:.1f} MACs a cycle")
    assert macs / cycles >= 118


@pytest.mark.parametrize("unit", ["load", "store"])
@pytest.mark.parametrize("line", [65536, 16], ids=["contiguous", "lines of 16 bytes"])
def test_dma_uses_full_bus_bandwidth(driver: Driver, unit: str, line: int) -> None:
    text = f"""
        set {unit}.dram, op0
        set {unit}.len, {line}
        set {unit}.y_count, {65536 // line}
        set {unit}.dram_y, {line}
        set {unit}.{"dst" if unit == "load" else "src"}_y, {line}
        loop 16, end
        issue {unit}
        add r1, r1, 1
    end:
        fence {unit}
        halt
    """
    driver.load(assemble(text, unit), opcode=TEST_OPCODE)
    (buffer,) = _buffers(driver, 65536)
    cycles = _cycles(driver, TEST_OPCODE, [buffer])
    beats = 16 * 65536 // 16
    print(f"{unit}: {beats / cycles:.2%} of the bus")
    assert beats / cycles >= 0.99
