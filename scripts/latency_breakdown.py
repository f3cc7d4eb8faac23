"""Cycles of the smallest macro-instruction by step, from the doorbell to the interrupt.

`python -m scripts.latency_breakdown` runs a product of 1x1x1 matrices on the RTL of n16 (latency 100), and prints the
table of docs/machine.md.
"""

import sys
from collections.abc import Iterator
from unittest.mock import patch

import numpy as np

from compiler.api import compile
from compiler.bench.single_layer import gemm_case
from compiler.options import DEFAULT_DRAM
from compiler.runtime.device import open_rtl
from compiler.runtime.session import Session
from cosim.rtl.abi import Recording
from hw.config import load_target
from hw.isa.enums import Unit

_CASE, _TARGET = "1x1x1", "n16"
_RETIRED, _ENTERED, _HALTED = len(Unit), 2 * len(Unit), 2 * len(Unit) + 1


def main() -> int:
    """Measure the case and print the table."""
    config = load_target(_TARGET)
    work = gemm_case(_CASE).prepare(np.random.default_rng(0))
    network = compile(work.model, config)
    rings: list[int] = []
    with open_rtl(
        network,
        1,
        DEFAULT_DRAM.latency,
        config.beat_bytes,
        lambda text: print(text, file=sys.stderr),
        probe=True,
    ) as device:
        session = Session(device, network)
        ring = session.driver.doorbell

        def doorbell() -> None:
            rings.append(device.cycle)
            ring()

        with patch.object(session.driver, "doorbell", doorbell):
            device.start_probe()
            _, cycles = session.measure(work.inputs)
            recording = device.stop_probe()
    print("| step | cycles | from | to |\n| --- | --: | --: | --: |")
    before = 0
    for step, at in [*steps(recording, rings[0]), ("completion record and its answer, interrupt", cycles)]:
        print(f"| {step} | {at - before} | {before} | {at} |")
        before = at
    return 0


def steps(recording: Recording, doorbell: int) -> Iterator[tuple[str, int]]:
    """Yield the steps on the critical path, each with its last cycle, counted from the doorbell."""

    def cycle(bit: int, number: int = 0) -> int:
        events = recording.events
        found = events["cycle"][(events["pulses"] >> bit & 1) == 1]
        return int(found[number]) - doorbell

    yield "doorbell, request and data of the ring slot, dispatch", cycle(_ENTERED)
    yield "first instructions, check and start of the LOAD of the weights", cycle(Unit.LOAD)
    yield "check and start of the LOAD of the input", cycle(Unit.LOAD, 1)
    yield "request, memory latency, write to the scratchpad, start of MATRIX", cycle(Unit.MATRIX)
    yield "weights, row through the array, sum, start of FUSE", cycle(Unit.FUSE)
    yield "point, pipeline, write to the scratchpad, start of STORE", cycle(Unit.STORE)
    yield "request, read of the scratchpad, write and its answer", cycle(_RETIRED + Unit.STORE)


if __name__ == "__main__":
    sys.exit(main())
