"""Write a micro-program, prove it safe, load it, and measure its cycles.

    python examples/micro_program.py [golden|rtl]

The program copies bytes from one DRAM address to another. `cosim.driver.Driver` implements the host side for any
device.
"""

import sys

import numpy as np

from compiler.validate import MacroCall, validate
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.isa.assembler import assemble

LENGTH = 64
CONFIG = load_target("n4")

# Copies op2 bytes from DRAM address op0 to DRAM address op1, through the scratchpad.
# STORE waits until LOAD has signalled: units run concurrently and only semaphores order them.
COPY = """
    set   load.dram, op0
    set   load.len, op2
    issue load, signal(store:0)
    set   store.dram, op1
    set   store.len, op2
    issue store, wait(load:0)
    halt
"""


def main(kind: str = "golden") -> None:
    """Run the program once and compare the copied bytes with the source."""
    program = assemble(COPY, "copy")
    print(f"{program.name}: {len(program.words)} words")

    with GoldenDevice(CONFIG) if kind == "golden" else RtlDevice(CONFIG) as device:
        driver = Driver(device)
        data = np.arange(LENGTH, dtype=np.int8)
        source = driver.put(data)
        target = driver.put(np.zeros_like(data))
        operands = (source, target, LENGTH)

        # The validator proves that the call accesses only its windows: (first byte, last byte, 1 read + 2 write).
        windows = [(source, source + LENGTH - 1, 1), (target, target + LENGTH - 1, 2)]
        print(validate(CONFIG, [MacroCall(program, operands)], windows))

        driver.load(program, opcode=1)
        number = driver.enqueue(1, operands)
        driver.run()
        print("equal:", np.array_equal(driver.fetch(target, [LENGTH]), data))
        record = driver.completion(number)
        if kind == "rtl" and record is not None:
            print(f"{record.cycles:,} cycles")


if __name__ == "__main__":
    main(*sys.argv[1:])
