"""A compiled network on a live machine."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.api import Network
from cosim.device import Device
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from cosim.programs import Candidate
from hw.isa.macro import SLOT_BYTES

_ALIGN = 64
_PAGE = 4096
#: For the command ring.
_RING_SLOTS = 256
_TIMEOUT = 1 << 30


def dram_bytes(network: Network, samples: int = 1) -> int:
    """DRAM that a session needs for as many samples at once."""
    tensors = network.graph.tensors
    io = sum(tensors[name].bytes + _ALIGN for name in (*network.graph.inputs, *network.graph.outputs))
    total = _RING_SLOTS * SLOT_BYTES + network.code.memory + samples * io + 2 * _PAGE
    return -(-total // _PAGE) * _PAGE


def open_device(
    network: Network,
    kind: str,
    samples: int,
    latency: int,
    bytes_per_cycle: float,
    say: Callable[[str], None],
) -> Device:
    """A machine for a network: the RTL ("rtl") or the golden model ("golden"), with room for as many samples."""
    size = dram_bytes(network, samples)
    if kind == "golden":
        return GoldenDevice(network.config, size)
    from cosim.rtl.rtl_device import RtlDevice

    say("opening the machine (the first time its simulator is built: minutes)")
    return RtlDevice(network.config, size, latency=latency, bytes_per_cycle=bytes_per_cycle)


@dataclass(frozen=True)
class Sample:
    """Where the inputs and outputs of a sample lie."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Session:
    """A network on a machine: programs loaded, memory laid out.

    Parameters
    ----------
    device : Device
        RTL or golden model, with DRAM of at least `dram_bytes`.
    network : Network
        What to run.
    samples : int
        How many samples there is room for at once.

    Attributes
    ----------
    load_cycles : int
        What loading the programs took.
    """

    def __init__(self, device: Device, network: Network, samples: int = 1):
        self.device, self.network = device, network
        self.driver = Driver(device, _RING_SLOTS)
        memory, graph = self.driver.memory, network.graph
        self.base = memory.take(max(network.code.memory, 1), _ALIGN, "the model's memory")
        self.driver.put(network.code.image, self.base)
        self.samples = [
            Sample(*(
                tuple(memory.take(graph.tensors[name].bytes, _ALIGN, name) for name in names)
                for names in (graph.inputs, graph.outputs)
            ))
            for _ in range(samples)
        ]  # fmt: skip
        start = device.cycle
        for opcode, program in enumerate(network.code.programs):
            segment = self.driver.programs.load(program, dma=True)
            self.driver.programs.bind(opcode, [Candidate(segment)])
        self.load_cycles = device.cycle - start

    def put(self, inputs: Mapping[str, NDArray], sample: int = 0) -> None:
        """Bring the inputs of a sample into DRAM."""
        for array, address in zip(self.network.check(inputs), self.samples[sample].inputs, strict=True):
            self.driver.put(array, address)

    def enqueue(self, sample: int = 0) -> None:
        """Put a sample's macro-instructions into the ring."""
        place = self.samples[sample]
        operands = [self.base, *place.inputs, *place.outputs]
        last = len(self.network.code.programs) - 1
        for opcode in range(last + 1):
            self.driver.enqueue(opcode, operands, irq=opcode == last)

    def outputs(self, sample: int = 0) -> dict[str, NDArray]:
        """A sample's results."""
        graph = self.network.graph
        return {
            name: self.driver.fetch(address, graph.tensors[name].shape, np.dtype(graph.tensors[name].dtype))
            for name, address in zip(graph.outputs, self.samples[sample].outputs, strict=True)
        }

    def run(self, inputs: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """Outputs of one sample."""
        self.put(inputs)
        self.cycles_of([0])
        return self.outputs()

    def cycles_of(self, samples: Iterable[int]) -> int:
        """Run samples that are in DRAM, one right behind the other; cycles from the doorbell to the last interrupt."""
        driver = self.driver
        for sample in samples:
            self.enqueue(sample)
        driver.set("IRQ_STATUS", driver.get("IRQ_STATUS"))
        start = self.device.cycle
        driver.doorbell()
        self.device.wait_irq(_TIMEOUT)
        cycles = self.device.cycle - start
        driver.run()
        return cycles
