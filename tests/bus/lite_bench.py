"""The cocotb testbench of the AXI4-Lite slave, with cocotbext-axi as the master and a dictionary as the registers."""

import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiLiteBus, AxiLiteMaster
from cocotbext.axi.constants import AxiResp

from tests.bus.lite_top import REGISTERS

ACCESSES = 3000


def _stalls(rng: random.Random, chance: float):
    while True:
        yield rng.random() < chance


async def _slow(dut, rng: random.Random) -> None:
    """Make the registers ready at random."""
    while True:
        dut.write_ready.value, dut.read_ready.value = int(rng.random() < 0.6), int(rng.random() < 0.6)
        await RisingEdge(dut.clk)


async def _start(dut, rng: random.Random) -> AxiLiteMaster:
    """Start the clock, reset the slave, and return a master that stalls each channel."""
    cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
    master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.rst)
    dut.rst.value = 1
    dut.write_ready.value = dut.read_ready.value = 0
    for _ in range(4):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    for channels in (master.write_if, master.read_if):
        for name in ("aw_channel", "w_channel", "b_channel", "ar_channel", "r_channel"):
            if hasattr(channels, name):
                getattr(channels, name).set_pause_generator(_stalls(rng, rng.choice([0.0, 0.3, 0.7])))
    cocotb.start_soon(_slow(dut, rng))
    return master


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def accesses(dut) -> None:
    """Writes and reads of known and unknown registers, whole and partial, sequential and concurrent, are correct."""
    seed = 5
    print("seed", seed)
    rng = random.Random(seed)
    master = await _start(dut, rng)
    registers: dict[int, int] = {}
    for index in range(REGISTERS):
        registers[index] = rng.getrandbits(32)
        assert (await master.write(4 * index, registers[index].to_bytes(4, "little"))).resp == AxiResp.OKAY
    for _ in range(ACCESSES):
        written, looked = rng.sample(range(REGISTERS + 8), 2)
        length = rng.choice([4, 4, 4, 2, 1])
        value = rng.getrandbits(8 * length)
        write = cocotb.start_soon(master.write(4 * written, value.to_bytes(length, "little")))
        read = cocotb.start_soon(master.read(4 * looked, 4))
        refused = length < 4 or written >= REGISTERS
        assert (await write).resp == (AxiResp.SLVERR if refused else AxiResp.OKAY), (written, length)
        if not refused:
            registers[written] = value
        result = await read
        assert result.resp == (AxiResp.OKAY if looked < REGISTERS else AxiResp.SLVERR), looked
        if looked < REGISTERS:
            assert int.from_bytes(result.data, "little") == registers[looked], looked
