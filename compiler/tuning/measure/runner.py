"""One simulated machine on which schedules of a model are tried."""

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from compiler.cost.roofline import bus_rate
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, Measurement, Rejected, Result
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import dram_bytes
from compiler.schedule.schedule import Schedule
from compiler.tuning.measure.equivalence import EquivalenceChecker, GoldenModelReference
from compiler.tuning.measure.throughput import measure_network, measure_stream, stream_bytes
from compiler.util.progress import building
from cosim.device import SimulatorDiedError
from hw.errors import InputError

if TYPE_CHECKING:
    from cosim.rtl.rtl_device import RtlDevice

#: DRAM of a machine that candidates run on, as often as the first program needs it: others may keep more of it there.
_ROOM = 4
_PAGE = 4096
#: Simulators that may die of one candidate.
_ATTEMPTS = 2


@dataclass(frozen=True, eq=False)
class MeasureSubject:
    """What is measured: all that another process needs to know.

    Parameters
    ----------
    prepared : Prepared
        The model, to be compiled under one schedule after another.
    first : Network
        What the static compiler makes of it.
    conditions : Conditions
        The machine and its memory.
    seed : int
        Of the inputs.
    stream : bool
        Requests back to back are measured, not one by itself.
    """

    prepared: ModelCompiler
    first: CompiledNetwork
    conditions: HardwareProfile
    seed: int
    stream: bool = False

    def required_dram(self, network: CompiledNetwork) -> int:
        """DRAM for measuring a network."""
        return stream_bytes(network) if self.stream else dram_bytes(network)


@dataclass(frozen=True)
class MeasureOrder:
    """A measurement to make.

    Parameters
    ----------
    number : int
        Of the golden that is asked: another one for each measurement.
    schedule : Schedule
        What to measure.
    limit : int or None
        A program that has not ended after so many cycles is given up.
    """

    number: int
    schedule: Schedule
    limit: int | None


class MeasureRunner:
    """Compiles schedules, proves them harmless, runs them on the RTL, compares their outputs: one at a time.

    The machine is opened for the first candidate that is run. Another process may be sent a bench: it has a machine
    of its own there.

    Parameters
    ----------
    subject : Subject
        What is measured.
    """

    def __init__(self, subject: MeasureSubject):
        self.subject = subject
        self._reference = GoldenModelReference(subject.first, subject.seed)
        self._same = EquivalenceChecker(subject.prepared, subject.seed)
        self._bytes = -(-_ROOM * subject.required_dram(subject.first) // _PAGE) * _PAGE
        self._device: RtlDevice | None = None
        self._turn = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return MeasureRunner, (self.subject,)

    def measure(self, order: MeasureOrder) -> Result:
        """What comes of a schedule.

        Raises
        ------
        WorkError
            Simulators die, or a disk is full.
        """
        with self._turn:
            network = self._compile(order.schedule)
            if isinstance(network, Rejected):
                return network
            result = self._tried(network, order)
            if order.schedule.programs and isinstance(result, Measurement) and result.exact:
                difference = self._same.first_difference(network, order.number)
                return Rejected("same", difference) if difference else result
            return result

    def close(self) -> None:
        """Close the machine; may be called twice."""
        with self._turn:
            self._close()

    def _compile(self, schedule: Schedule) -> CompiledNetwork | Rejected:
        try:
            network = self.subject.prepared.network(schedule)
        except InputError as error:
            return Rejected("compile", str(error))
        if (needs := self.subject.required_dram(network)) > self._bytes:
            return Rejected("compile", f"it needs {needs} bytes of DRAM, not {self._bytes}")
        return network

    def _tried(self, network: CompiledNetwork, order: MeasureOrder) -> Result:
        for left in reversed(range(_ATTEMPTS)):
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
        golden = self._reference.golden_io(order.number)
        rate = bus_rate(conditions.config, conditions.rate)
        measure = measure_stream if self.subject.stream else measure_network
        return measure(self._device, network, golden, rate, order.limit)

    def _open(self) -> "RtlDevice":
        from cosim.rtl.rtl_device import RtlDevice

        conditions = self.subject.conditions
        return RtlDevice(
            conditions.config,
            self._bytes,
            latency=conditions.dram.latency,
            bytes_per_cycle=conditions.rate,
            monitor=building,
        )

    def _close(self) -> None:
        if self._device is not None:
            self._device.close()
            self._device = None
