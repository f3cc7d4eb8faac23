"""Drive the chip from your own cocotb testbench, with cocotbext-axi models of DRAM and host.

    python examples/cocotb_testbench.py     (the first run builds a model of the chip, which takes minutes)

`copies` is the testbench. `Bus` implements the calls of the device interface that the project's driver needs, so that
the testbench loads programs and enqueues macro-instructions with the driver instead of writing registers itself. The
script requires the optional dependencies `test` of this project.
"""

import mmap
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.task import bridge, resume
from cocotb.triggers import ClockCycles, First, RisingEdge
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam

from cosim.device import Device
from cosim.driver import Driver
from cosim.rtl.pin_runner import run_bench
from cosim.rtl.verilog_cache import chip_verilog
from hw.config import load_target
from hw.isa.assembler import assemble

CONFIG, DRAM_BYTES, LENGTH = load_target("n4"), 1 << 20, 32
COPY = """
    set   load.dram, op0
    set   load.len, op2
    issue load, signal(store:0)
    set   store.dram, op1
    set   store.len, op2
    issue store, wait(load:0)
    halt
"""


class Bus:
    """Methods of `cosim.device.Device` that `Driver` uses, implemented on the ports of the chip.

    The driver is blocking code, so it runs in a thread (`bridge`) and calls the coroutines of this class from
    that thread (`resume`).
    """

    config = CONFIG

    def __init__(self, dut: Any):
        memory = mmap.mmap(-1, DRAM_BYTES)
        self.dut, self.dram = dut, np.frombuffer(memory, np.uint8)
        self.ram = AxiRam(AxiBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, mem=memory)
        self.host = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.rst)

    @resume
    async def access_regs(self, accesses: Iterable[tuple[int, int | None]]) -> list[int]:
        """Write each register that has a value, read each register whose value is None, and return the values read."""
        values = []
        for address, value in accesses:
            if value is None:
                values.append(int.from_bytes((await self.host.read(address, 4)).data, "little"))
            else:
                await self.host.write(address, (value & 0xFFFFFFFF).to_bytes(4, "little"))
        return values

    def read_reg(self, address: int) -> int:
        """Return the value of a register."""
        return self.access_regs([(address, None)])[0]

    def write_reg(self, address: int, value: int) -> None:
        """Write a value to a register."""
        self.access_regs([(address, value)])

    def write_regs(self, writes: Iterable[tuple[int, int]]) -> None:
        """Write several registers, given as pairs of address and value."""
        self.access_regs(writes)

    @resume
    async def run_cycles(self, cycles: int) -> None:
        """Advance the clock by a number of cycles."""
        await ClockCycles(self.dut.clk, cycles)

    @resume
    async def wait_irq(self, timeout_cycles: int) -> bool:
        """Wait for the interrupt, at most the given number of cycles, and return whether it is raised."""
        if not self.dut.irq.value:
            await First(RisingEdge(self.dut.irq), ClockCycles(self.dut.clk, timeout_cycles))
        return bool(self.dut.irq.value)


@cocotb.test()
async def copies(dut: Any) -> None:
    """Reset the chip, run one program, and check that it copied the bytes in DRAM."""
    bus = Bus(dut)
    dut.rst.value = 1
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    await ClockCycles(dut.clk, 4)
    dut.rst.value = 0

    def host() -> None:
        driver = Driver(cast(Device, bus))
        data = np.arange(LENGTH, dtype=np.uint8)
        source, target = driver.put(data), driver.put(np.zeros_like(data))
        driver.load(assemble(COPY, "copy"), opcode=1)
        driver.enqueue(1, (source, target, LENGTH))
        driver.run()
        assert np.array_equal(driver.fetch(target, [LENGTH], np.uint8), data)

    await bridge(host)()


def main() -> None:
    """Generate the Verilog of the chip, build a model of it, and run the testbench."""
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(Path(__file__).parent))  # where the simulator finds this module
        run_bench(
            Path(folder),
            verilog=chip_verilog(CONFIG, fast=False),
            top="mla_chip",
            module="cocotb_testbench",
            case="copies",
            optimize=False,
        )
    print("copies: passed")


if __name__ == "__main__":
    main()
