"""Measurement of one schedule at a time on one simulated machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from compiler.cost.roofline import bus_rate
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, Measurement, Rejected, Result
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import dram_bytes
from compiler.schedule.schedule import Schedule
from compiler.tuning.measure.equivalence import EquivalenceChecker
from compiler.tuning.measure.golden_inputs import GoldenModelReference
from compiler.tuning.measure.throughput import STREAM_INPUTS, measure_network, measure_stream, stream_bytes
from compiler.util.progress import building
from cosim.device import SimulatorDiedError
from hw.errors import InputError

if TYPE_CHECKING:
    from cosim.rtl.rtl_device import RtlDevice

#: DRAM size of the simulated machine as a multiple of the size that the first network needs, since candidates may keep
#: more tensors in DRAM.
_DRAM_FACTOR = 4
_PAGE_BYTES = 4096
#: Maximum number of simulator crashes per candidate.
_MAX_ATTEMPTS = 2


@dataclass(frozen=True, eq=False)
class MeasureSubject:
    """Model and conditions to measure: everything that a worker process needs.

    Parameters
    ----------
    prepared : ModelCompiler
        Compiler of the model, which compiles it under any schedule.
    first : CompiledNetwork
        Network under the static compiler's schedule.
    conditions : HardwareProfile
        Machine configuration and DRAM timing.
    seed : int
        Seed of the random inputs.
    stream : bool
        True to measure back-to-back requests instead of single requests.
    """

    prepared: ModelCompiler
    first: CompiledNetwork
    conditions: HardwareProfile
    seed: int
    stream: bool = False

    def required_dram(self, network: CompiledNetwork) -> int:
        """Return the number of DRAM bytes needed to measure a network."""
        return stream_bytes(network) if self.stream else dram_bytes(network)


@dataclass(frozen=True)
class MeasureOrder:
    """Request for one measurement.

    Parameters
    ----------
    number : int
        Index of the reference inputs, different for each measurement.
    schedule : Schedule
        Schedule to measure.
    limit : int or None
        Number of cycles after which the schedule is rejected; None: no limit.
    refused : mapping of str to str
        Reasons for which programs were refused, by the digest of their form (`Rejected.form`).
    """

    number: int
    schedule: Schedule
    limit: int | None
    refused: Mapping[str, str] = field(default_factory=dict)


class MeasureRunner:
    """Runner that compiles one schedule at a time, proves it safe, runs it on the RTL and checks its outputs.

    The simulator is started when the first schedule runs. An unpickled runner starts a separate simulator in the
    process that unpickles it.

    Parameters
    ----------
    subject : MeasureSubject
        Model and conditions to measure.
    """

    def __init__(self, subject: MeasureSubject):
        self.subject = subject
        self._reference = GoldenModelReference(subject.first, subject.seed)
        self._equivalence = EquivalenceChecker(subject.prepared, subject.seed)
        self._bytes = -(-_DRAM_FACTOR * subject.required_dram(subject.first) // _PAGE_BYTES) * _PAGE_BYTES
        self._device: RtlDevice | None = None
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return MeasureRunner, (self.subject,)

    def measure(self, order: MeasureOrder) -> Result:
        """Return the measurement of a schedule, or the reason for its rejection.

        Raises
        ------
        WorkError
            The simulator crashes repeatedly, or a disk is full.
        """
        with self._lock:
            network = self._compile(order.schedule)
            if isinstance(network, Rejected):
                return network
            result = self._run_with_retries(network, order)
            if order.schedule.programs and isinstance(result, Measurement) and result.exact:
                verdict = self._equivalence.check(network, order.number, order.refused)
                if verdict.difference is not None:
                    return Rejected("same", verdict.difference, verdict.form)
                return replace(result, test_inputs=verdict.inputs)
            return result

    def close(self) -> None:
        """Close the simulator; this method may be called repeatedly."""
        with self._lock:
            self._close()

    def _compile(self, schedule: Schedule) -> CompiledNetwork | Rejected:
        try:
            network = self.subject.prepared.network(schedule)
        except InputError as error:
            return Rejected("compile", str(error))
        if (needs := self.subject.required_dram(network)) > self._bytes:
            return Rejected("compile", f"it needs {needs} bytes of DRAM; the limit is {self._bytes}")
        return network

    def _run_with_retries(self, network: CompiledNetwork, order: MeasureOrder) -> Result:
        for left in reversed(range(_MAX_ATTEMPTS)):
            try:
                return self._run(network, order)
            except SimulatorDiedError:
                self._close()
                if not left:
                    raise
        raise AssertionError

    def _run(self, network: CompiledNetwork, order: MeasureOrder) -> Result:
        conditions = self.subject.conditions
        if self._device is None:
            self._device = self._open()
        rate = bus_rate(conditions.config, conditions.rate)
        if not self.subject.stream:
            golden = self._reference.golden_io(order.number)
            return measure_network(self._device, network, golden, rate, order.limit)
        # Successive measurements share inputs, so that the golden model computes only one more for each.
        numbers = range(order.number, order.number + STREAM_INPUTS)
        goldens = [self._reference.golden_io(number) for number in numbers]
        return measure_stream(self._device, network, goldens, rate, order.limit)

    def _open(self) -> "RtlDevice":
        from cosim.rtl.rtl_device import RtlDevice

        conditions = self.subject.conditions
        return RtlDevice(
            conditions.config,
            self._bytes,
            latency=conditions.dram.latency,
            bytes_per_cycle=conditions.rate,
            throttle=conditions.dram.throttle,
            monitor=building,
        )

    def _close(self) -> None:
        if self._device is not None:
            self._device.close()
            self._device = None
