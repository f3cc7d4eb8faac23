"""Execution of a compiled network on a device: placement of stages in DRAM, runs, and control flow on the host."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from compiler.cache.content_store import ContentStore
from compiler.codegen.executable import StageExecutable
from compiler.codegen.split_programs import ProgramPart, batches, candidates
from compiler.ir.tensor import Tensor
from compiler.reference import evaluate
from compiler.reference.control import Trips, run_control
from compiler.runtime.stages import Body, Control, Stage, StagedNetwork
from compiler.runtime.validation import prove
from compiler.util import checks
from compiler.validate import MacroCall
from cosim.device import Device
from cosim.driver import Driver
from cosim.semantics.command_checks import DramWindow
from hw.errors import InputError, shown
from hw.isa.macro_instruction import SLOT_BYTES

Arrays = Mapping[str, NDArray]
#: Function that runs stages and adds their outputs to the values by name.
Run = Callable[[Sequence[Stage], dict[str, NDArray]], None]


def value_of(tensor: Tensor, values: Arrays) -> NDArray:
    """Return the contents of a tensor: its data if it is a constant, otherwise the value stored under its name."""
    return values[tensor.name] if tensor.data is None else tensor.data


def run_control_flow(control: Control, values: Arrays, run: Run, trips: Trips) -> dict[str, NDArray]:
    """Execute a control-flow node on the host and return its outputs by name.

    Raises
    ------
    WorkError
        A loop does not end.
    """

    def runner(body: Body) -> Callable[[Sequence[NDArray]], list[NDArray]]:
        def execute(inputs: Sequence[NDArray]) -> list[NDArray]:
            inside = dict(zip((tensor.name for tensor in body.inputs), inputs, strict=True))
            run(body.stages, inside)
            return [value_of(tensor, inside) for tensor in body.outputs]

        return execute

    operands = [value_of(tensor, values) for tensor in control.operands]
    bodies = [runner(body) for body in control.bodies]
    made = run_control(control.name, control.op, control.attributes, operands, bodies, control.outputs, trips)
    return {tensor.name: array for tensor, array in zip(control.outputs, made, strict=True)}


_ALIGN = 64
_PAGE = 4096
#: Number of slots of the command ring.
_RING_SLOTS = 256
#: Cycles between progress reports of a long run.
_PROGRESS_CYCLES = 1_000_000


def dram_bytes(network: StagedNetwork, samples: int = 1) -> int:
    """Return the bytes of DRAM that a session needs to hold `samples` samples at the same time."""
    total = _RING_SLOTS * SLOT_BYTES + 2 * _PAGE
    program = 0
    for stage in network.walk():
        if stage.code:
            io = sum(tensor.bytes + _ALIGN for tensor in (*stage.inputs, *stage.outputs))
            total += stage.code.memory + _ALIGN + samples * io
            program = max(program, *(len(each.image) for each in stage.code.all_programs))
    return -(-(total + program) // _PAGE) * _PAGE


#: Permissions of DRAM windows.
READ, READ_WRITE = 1, 3


@dataclass
class PlacedStage:
    """Stage on the accelerator with its addresses in DRAM and execution counts.

    Attributes
    ----------
    base : int
        Address of the stage's memory.
    samples : list of dict
        Addresses of inputs and outputs by tensor name, for each sample.
    runs : int
        Number of runs so far.
    taken : Counter
        Number of times each candidate of the last program was selected, from the completion records.
    """

    stage: Stage
    code: StageExecutable
    base: int
    samples: list[dict[str, int]] = field(default_factory=list)
    runs: int = 0
    taken: Counter[int] = field(default_factory=Counter)

    def operands(self, sample: int) -> list[int]:
        """Return the addresses that are the first operands of the stage's macro-instructions."""
        tensors = (*self.stage.inputs, *self.stage.outputs)
        return [self.base, *(self.samples[sample][tensor.name] for tensor in tensors)]

    def windows(self, samples: Sequence[int], count: int) -> list[DramWindow]:
        """Return the DRAM windows that the stage's programs may access, in address order.

        Weights and inputs are read-only, the rest of the stage's memory and the outputs are writable. If this
        requires more than `count` windows, the last ones are merged.

        Parameters
        ----------
        samples : sequence of int
            Samples that run back to back; the buffers of all samples from the first to the last are accessible.
        count : int
            Number of windows that the hardware has.
        """
        weights = self.base + self.code.constants
        found = [(self.base, weights - 1, READ), (weights, self.base + self.code.memory - 1, READ_WRITE)]
        for sample in range(min(samples), max(samples) + 1):
            for tensors, permission in ((self.stage.inputs, READ), (self.stage.outputs, READ_WRITE)):
                spans = [(self.samples[sample][tensor.name], tensor.bytes) for tensor in tensors]
                if spans:
                    found.append((min(spans)[0], max(start + size for start, size in spans) - 1, permission))
        found = [window for window in found if window[0] <= window[1]]
        while len(found) > count:
            (first, _, a), (_, last, b) = found[-2:]
            found[-2:] = [(first, last, a | b)]
        return found

    def address(self, name: str, sample: int) -> int:
        """Return the address of an input or output of a sample."""
        return self.operands(sample)[self.code.operand_numbers[name]]


class Session:
    """Network that is ready to run on a device, with memory laid out and programs loaded.

    If the network has states, each run starts from the states that the previous one computed; `reset` restores the
    initial states.

    Parameters
    ----------
    device : Device
        RTL or golden model, with DRAM of at least `dram_bytes`.
    network : StagedNetwork
        Network to run. Every stream of macro-instructions is proved safe before it is enqueued. The streams for the
        first sample, and for all samples back to back, are proved before any program is loaded.
    samples : int
        Number of samples held in DRAM at the same time.
    proofs : ContentStore or None
        Cache of proofs; None to prove every stream again.
    unused : int
        Bytes of DRAM that are left unused before the first stage, in addition to `dram_bytes`.

    Raises
    ------
    ValidationError
        A program is not safe.

    Attributes
    ----------
    load_cycles : int
        Cycles spent on loading programs so far.
    stalled_cycles : int
        Cycles from doorbells to interrupts so far in which the clock of the chip was stalled.
    seconds : float
        Wall time from doorbells to interrupts so far.
    states : dict
        States of the next run: arrays by name, which may be stored and assigned again, for example to run several
        streams in turn.
    progress : callable
        Called periodically during a long run with the number of cycles so far.
    before_program : callable
        Called before each program with its stage and index if `on_program` is set.
    on_program : callable or None
        Called after each program with its stage and index; if set, programs are enqueued one by one.

    Examples
    --------
    >>> with compiler.open_device(network, "rtl") as device:
    ...     session = compiler.Session(device, network)
    ...     outputs, cycles = session.measure({"image": image})
    """

    def __init__(
        self,
        device: Device,
        network: StagedNetwork,
        samples: int = 1,
        proofs: ContentStore | None = None,
        unused: int = 0,
    ):
        self.device, self.network, self.proofs = device, network, proofs
        self.driver = Driver(device, _RING_SLOTS)
        if unused:
            self.driver.memory.alloc(unused, _ALIGN, "unused memory")
        self.load_cycles, self.stalled_cycles, self.seconds = 0, 0, 0.0
        self.states: dict[str, NDArray] = network.initial
        self.progress: Callable[[int], None] = lambda _cycles: None
        self.before_program: Callable[[PlacedStage, int], None] = lambda _stage, _number: None
        self.on_program: Callable[[PlacedStage, int], None] | None = None
        self._cycles, self._trips = 0, Trips()
        self._counts = [network.count(network.batch)] * samples
        self._opcodes: dict[int, int] = {}  # by id() of the program part
        self.loaded = [
            self._place_stage(stage, stage.code, samples) for stage in network.walk() if stage.code
        ]
        self._proved: set[tuple] = set()
        self._open: list[DramWindow] | None = None
        for placed in self.loaded:
            self._prove(placed, [0])
            self._prove(placed, range(samples))
        self._placed_stages = {id(placed.code): placed for placed in self.loaded}
        parts = [part for each in self.loaded for part in each.code.parts]
        self.resident = len(batches(network.config, parts)) == 1
        if self.resident:
            self._load_programs(parts)
        # After reset the chip clears its counters, and a change of tag waits for that; reading one waits too.
        self.driver.counters.read("cycles", 0)

    def __repr__(self) -> str:
        return f"<Session of {shown(self.network.name)} on {self.device!r}>"

    def reset(self) -> None:
        """Restore the initial states, so that the next run is the first sample of a new sequence."""
        self.states = self.network.initial

    def run(self, inputs: Arrays, count: int | None = None) -> dict[str, NDArray]:
        """Return the outputs of one sample, or of a batch."""
        return self.measure(inputs, count)[0]

    def measure(self, inputs: Arrays, count: int | None = None) -> tuple[dict[str, NDArray], int]:
        """Run one sample or batch; return the outputs, and the cycles from doorbells to interrupts.

        The cycles exclude program loads. Only the first `count` samples of a batch are valid (default: all). The
        outputs of other samples are undefined if the network has programs for smaller batches.

        Raises
        ------
        InputError
            An input is missing, unknown, or has another shape or type than the model's, or `count` exceeds the batch.
        """
        network = self.network.for_inputs(checks.arrays("input", inputs))
        values: dict[str, NDArray] = network.check(inputs) | network.check_states(self.states)
        self._counts[0] = network.count(network.batch if count is None else count)
        before, self._trips = self._cycles, Trips()
        self._stages(network.stages, values)
        made = {tensor.name: value_of(tensor, values) for tensor in network.outputs}
        self.states = network.next_states(values)
        return made, self._cycles - before

    def tensor_view(self, name: str, sample: int = 0) -> NDArray:
        """Return an input or output of the only stage on the accelerator as a writable view of DRAM.

        Raises
        ------
        InputError
            There are several stages on the accelerator, or the stage has no tensor of that name.
        """
        placed = self._only_stage()
        known = {tensor.name: tensor for tensor in (*placed.stage.inputs, *placed.stage.outputs)}
        if name not in known:
            raise InputError(f"the accelerator has no input or output {name!r}, only {', '.join(known)}")
        tensor, start = known[name], placed.address(name, sample)
        raw = self.device.dram[start : start + tensor.bytes]
        return raw.view(np.dtype(tensor.dtype)).reshape(tensor.shape)

    def rerun(self, sample: int = 0) -> int:
        """Run the only accelerator stage with the inputs that are in DRAM; return its cycles.

        Raises
        ------
        InputError
            There are several stages on the accelerator.
        """
        return self._stage(self._only_stage(), sample)

    def _only_stage(self) -> PlacedStage:
        if len(self.loaded) != 1:
            raise InputError(f"{self.network.name} has {len(self.loaded)} stages on the accelerator, not one")
        return self.loaded[0]

    @property
    def taken(self) -> list[Counter[int]]:
        """For each stage, in the order of `runs`: how often each candidate of the last program was selected."""
        return [Counter(placed.taken) for placed in self.loaded]

    @property
    def runs(self) -> list[int]:
        """Number of runs of each stage on the accelerator, in the order of the network's `codes`."""
        return [placed.runs for placed in self.loaded]

    def _stages(self, stages: Sequence[Stage], values: dict[str, NDArray]) -> None:
        """Run the stages of the network or of a subgraph, adding their outputs to the values."""
        for stage in stages:
            inputs = {tensor.name: values[tensor.name] for tensor in stage.inputs}
            if stage.control is not None:
                values |= run_control_flow(stage.control, inputs, self._stages, self._trips)
            elif stage.graph is not None:
                values |= evaluate(stage.graph, inputs, rounding=self.network.rounding)  # type: ignore[arg-type]
            else:
                placed = self._placed_stages[id(stage.code)]
                self._write_inputs(placed, inputs)
                self._cycles += self._stage(placed)
                placed.runs += 1
                values |= self._read_outputs(placed, stage.outputs)

    def throughput_cycles(self, samples: Sequence[Arrays], counts: Sequence[int]) -> float | None:
        """Return the cycles per sample of a back-to-back run.

        The result is None if stages run on the host, if programs are reloaded, or if the network has states: the host
        passes them on after each sample.

        If the samples are batches, `counts` contains the number of valid samples in each batch.

        Raises
        ------
        ValidationError
            The programs are not safe at the addresses of these samples.
        """
        stages = self.network.stages
        if len(stages) != 1 or not stages[0].code or not self.resident or self.network.states:
            return None
        (placed,) = self.loaded
        networks = [self.network.for_inputs(checks.arrays("input", sample)) for sample in samples]
        each = zip(networks, counts, strict=True)
        self._counts[: len(samples)] = [network.count(count) for network, count in each]
        for number, (network, sample) in enumerate(zip(networks, samples, strict=True)):
            self._write_inputs(placed, network.check(sample), number)
        numbers = range(len(samples))
        self._prove(placed, numbers)
        self._open_windows(placed, numbers)
        return self._run_parts(placed, placed.code.parts, numbers) / len(samples)

    def _place_stage(self, stage: Stage, code: StageExecutable, samples: int) -> PlacedStage:
        memory = self.driver.memory
        placed = PlacedStage(stage, code, memory.alloc(max(code.memory, 1), _ALIGN, "the model's memory"))
        self.driver.put(code.image, placed.base)
        for _ in range(samples):
            placed.samples.append(
                {
                    tensor.name: memory.alloc(tensor.bytes, _ALIGN, tensor.name)
                    for tensor in (*stage.inputs, *stage.outputs)
                }
            )
        return placed

    def _prove(self, placed: PlacedStage, samples: Sequence[int]) -> None:
        """Prove the safety of samples that run back to back, starting from an idle device.

        The first sample is repeated after the last, to prove that the stream restores the initial state.
        """
        counts = [self.network.operands_in_proofs(self._counts[sample]) for sample in samples]
        key = id(placed), tuple(samples), tuple(counts)
        if key in self._proved:
            return
        calls = [
            MacroCall(part.program, (*placed.operands(sample), *count), instead=part.instead)
            for sample, count in (*zip(samples, counts, strict=True), (samples[0], counts[0]))
            for part in placed.code.parts
        ]
        config = self.network.config
        prove(config, calls, placed.windows(samples, config.windows), self.proofs)
        self._proved.add(key)

    def _open_windows(self, placed: PlacedStage, samples: Sequence[int]) -> None:
        """Restrict DRAM accesses to the buffers of these samples; the device must be idle."""
        count = self.network.config.windows
        windows = placed.windows(samples, count)
        if windows == self._open:
            return
        for index in range(count):
            first, last, permissions = windows[index] if index < len(windows) else (0, -1, 0)
            self.driver.set_window(
                index, first, last + 1 - first, read=bool(permissions & 1), write=bool(permissions & 2)
            )
        self._open = windows

    def _write_inputs(self, placed: PlacedStage, values: Arrays, sample: int = 0) -> None:
        for tensor in placed.stage.inputs:
            self.driver.put(values[tensor.name], placed.address(tensor.name, sample))

    def _read_outputs(
        self, placed: PlacedStage, outputs: Sequence[Tensor], sample: int = 0
    ) -> dict[str, NDArray]:
        return {
            tensor.name: self.driver.fetch(
                placed.address(tensor.name, sample), tensor.shape, np.dtype(tensor.dtype)
            )
            for tensor in outputs
        }

    def _stage(self, placed: PlacedStage, sample: int = 0) -> int:
        parts, cycles = placed.code.parts, 0
        self._prove(placed, [sample])
        self._open_windows(placed, [sample])
        for batch in [range(len(parts))] if self.resident else batches(self.network.config, parts):
            if not self.resident:
                self._load_programs(parts[batch.start : batch.stop])
            if self.on_program is None:
                cycles += self._run_parts(placed, parts[batch.start : batch.stop], [sample])
                continue
            for number in batch:
                self.before_program(placed, number)
                cycles += self._run_parts(placed, parts[number : number + 1], [sample])
                self.on_program(placed, number)
        return cycles

    def _load_programs(self, parts: Sequence[ProgramPart]) -> None:
        """Replace the loaded programs."""
        if all(id(part) in self._opcodes for part in parts):
            return
        start, store = self.device.cycle, self.driver.programs
        for segment in list(store.programs):
            store.unload(segment)
        self._opcodes = {}
        for opcode, part in enumerate(parts):
            store.bind(opcode, candidates(part, [store.load(program, dma=True) for program in part.programs]))
            self._opcodes[id(part)] = opcode
        self.load_cycles += self.device.cycle - start

    def _run_parts(self, placed: PlacedStage, parts: Sequence[ProgramPart], samples: Sequence[int]) -> int:
        driver, numbers = self.driver, []
        work = [(sample, part) for sample in samples for part in parts]
        for number, (sample, part) in enumerate(work, 1):
            operands = [*placed.operands(sample), *self._counts[sample]]
            opcode, last = self._opcodes[id(part)], number == len(work)
            numbers.append(driver.enqueue(opcode, operands, tag=part.tag, irq=last))
        driver.set("IRQ_STATUS", driver.get("IRQ_STATUS"))
        start, stalled, began = self.device.cycle, self.device.stalled_cycles, time.perf_counter()
        driver.doorbell()
        while not self.device.wait_irq(_PROGRESS_CYCLES):
            self.progress(self.device.cycle - start)
        cycles = self.device.cycle - start
        self.stalled_cycles += self.device.stalled_cycles - stalled
        self.seconds += time.perf_counter() - began
        driver.run()
        for (_, part), number in zip(work, numbers, strict=True):
            record = driver.completion(number)
            if record is not None and part is placed.code.parts[-1]:
                placed.taken[record.candidate] += 1
        return cycles
