"""A compiled network on a live machine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.api import Network
from compiler.codegen.programs import batches
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
    program = max(len(program.image) for program in network.code.programs)
    total = _RING_SLOTS * SLOT_BYTES + network.code.memory + samples * io + program + 2 * _PAGE
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
        What loading programs took so far.
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
        self.batches = batches(network.config, network.code.programs)
        self.load_cycles = 0
        self._resident: range | None = None
        self._bring(self.batches[0])

    def _bring(self, batch: range) -> None:
        """Load the programs of a batch in place of those that are there."""
        if batch == self._resident:
            return
        start, store = self.device.cycle, self.driver.programs
        for segment in list(store.programs):
            store.unload(segment)
        for opcode, number in enumerate(batch):
            segment = store.load(self.network.code.programs[number], dma=True)
            store.bind(opcode, [Candidate(segment)])
        self._resident = batch
        self.load_cycles += self.device.cycle - start

    def put(self, inputs: Mapping[str, NDArray], sample: int = 0) -> None:
        """Bring the inputs of a sample into DRAM."""
        for array, address in zip(self.network.check(inputs), self.samples[sample].inputs, strict=True):
            self.driver.put(array, address)

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

    def cycles_of(self, samples: Sequence[int]) -> int:
        """Run samples that are in DRAM, one right behind the other, from doorbell to interrupt; cycles it took.

        Programs that are too many for the instruction store are brought in between; that is not among the cycles.
        """
        if len(self.batches) == 1:
            return self._go(samples, self.batches[0])
        return sum(self._alone(sample, batch) for sample in samples for batch in self.batches)

    def _alone(self, sample: int, batch: range) -> int:
        self._bring(batch)
        return self._go([sample], batch)

    def _go(self, samples: Sequence[int], batch: range) -> int:
        driver = self.driver
        work = [(sample, opcode) for sample in samples for opcode in range(len(batch))]
        for number, (sample, opcode) in enumerate(work, 1):
            place = self.samples[sample]
            operands = [self.base, *place.inputs, *place.outputs]
            driver.enqueue(opcode, operands, irq=number == len(work))
        driver.set("IRQ_STATUS", driver.get("IRQ_STATUS"))
        start = self.device.cycle
        driver.doorbell()
        self.device.wait_irq(_TIMEOUT)
        cycles = self.device.cycle - start
        driver.run()
        return cycles
