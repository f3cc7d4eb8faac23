"""Measurement of a small network under arbitrary schedules on a simulated device."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from compiler.cost.roofline import bus_rate
from compiler.llm.data.held_out import MACHINES, CorpusMachine
from compiler.llm.data.trajectories import TrajectoryStep
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import Measurement
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import dram_bytes
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork
from compiler.tuning.measure.equivalence import GoldenModelReference
from compiler.tuning.measure.throughput import measure_network
from compiler.util.progress import building
from hw.errors import InputError
from hw.isa.counters import CAUSES

if TYPE_CHECKING:
    from cosim.rtl.rtl_device import RtlDevice

#: Maximum cycles of a schedule; slower schedules are discarded.
_MAX_CYCLES = 150_000
_DRAM_BYTES = 1 << 24


class Devices:
    """Simulated devices, opened on first use; `close` closes all of them."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._open: dict[str, RtlDevice] = {}

    def get(self, machine: CorpusMachine) -> "RtlDevice":
        """Return the device of a configuration, after setting its DRAM timing."""
        conditions = machine.conditions
        if machine.target not in self._open:
            from cosim.rtl.rtl_device import RtlDevice

            device = self._stack.enter_context(RtlDevice(conditions.config, _DRAM_BYTES, monitor=building))
            self._open[machine.target] = device
        device = self._open[machine.target]
        device.set_dram_timing(latency=conditions.dram.latency, bytes_per_cycle=conditions.rate)
        device.set_throttle(conditions.dram.throttle)
        return device

    def close(self) -> None:
        """Close all devices."""
        self._stack.close()


class MeasureHarness:
    """Compiler and device for measurements of one network on one hardware configuration.

    Parameters
    ----------
    devices : Devices
        Simulated devices to measure on.
    name : str
        Name of the configuration, a key of compiler.llm.data.held_out.MACHINES.
    point : CalibrationNetwork
        Network to measure.

    Attributes
    ----------
    prepared, first : ModelCompiler, CompiledNetwork
        Compiler of the network, and the network compiled with the static schedule.
    names : list of str
        Names of the layers.

    Raises
    ------
    InputError
        The network needs host operators or several programs on this configuration.
    """

    def __init__(self, devices: Devices, name: str, point: CalibrationNetwork):
        self.devices, self.machine = devices, MACHINES[name]
        conditions = self.machine.conditions
        self.prepared = ModelCompiler(point.graph(), conditions.config, self.machine.options)
        self.first = self.prepared.network()
        self.stages = self.prepared.lowered(self.first.schedule.fusions)
        whole = len(self.stages) == len(self.first.codes) == 1 and not self.first.host
        if not whole or dram_bytes(self.first) > _DRAM_BYTES:
            raise InputError(f"{point.family}: the network does not run on the accelerator as a single stage")
        self.names = [layer.name for layer in self.stages[0].layers]
        self._golden_io = GoldenModelReference(self.first).golden_io(0)

    def measure(self, network: CompiledNetwork) -> Measurement | None:
        """Measure a compiled network; return None if its outputs are wrong or the run takes too long."""
        if dram_bytes(network) > _DRAM_BYTES:
            return None
        conditions = self.machine.conditions
        rate = bus_rate(conditions.config, conditions.rate)
        device = self.devices.get(self.machine)
        found = measure_network(device, network, self._golden_io, rate, _MAX_CYCLES)
        return found if isinstance(found, Measurement) and found.valid else None

    def step(self, base: int, layer: int, changes: dict[str, Any], measured: Measurement) -> TrajectoryStep:
        """Convert a measurement to a trajectory step; the other arguments are fields of `TrajectoryStep`."""
        numbers = {self.names.index(entry.names[0]): entry for entry in measured.layers}
        cycles = {number: entry.cycles for number, entry in numbers.items()}
        where = {number: [entry.where[cause] for cause in CAUSES] for number, entry in numbers.items()}
        return TrajectoryStep(base, layer, changes, measured.cycles, cycles, where)
