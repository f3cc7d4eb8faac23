"""A compiled network on a device: its stages are placed in memory, run and measured; control flow on the host."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from compiler.cache.content_store import ContentStore
from compiler.cache.proofs import prove
from compiler.codegen.executable import StageExecutable
from compiler.codegen.split_programs import ProgramPart, batches, candidates
from compiler.ir.tensor import Tensor
from compiler.reference import evaluate
from compiler.reference.control import Trips, run_control
from compiler.runtime.stages import Body, Control, Stage, StagedNetwork
from compiler.validate import MacroCall
from cosim.device import Device
from cosim.driver import Driver
from cosim.semantics.command_checks import DramWindow
from hw.errors import InputError, shown
from hw.isa.macro_instruction import SLOT_BYTES

Arrays = Mapping[str, NDArray]
#: Runs stages; adds what they make to the values, by name.
Run = Callable[[Sequence[Stage], dict[str, NDArray]], None]


def value_of(tensor: Tensor, values: Arrays) -> NDArray:
    """Contents of a tensor: its own if it is a constant."""
    return values[tensor.name] if tensor.data is None else tensor.data


def run_control_flow(control: Control, values: Arrays, run: Run, trips: Trips) -> dict[str, NDArray]:
    """What a node of control flow makes of values, by name.

    Raises
    ------
    WorkError
        A loop does not end.
    """

    def runner(body: Body) -> Callable[[Sequence[NDArray]], list[NDArray]]:
        def go(inputs: Sequence[NDArray]) -> list[NDArray]:
            inside = dict(zip((tensor.name for tensor in body.inputs), inputs, strict=True))
            run(body.stages, inside)
            return [value_of(tensor, inside) for tensor in body.outputs]

        return go

    operands = [value_of(tensor, values) for tensor in control.operands]
    bodies = [runner(body) for body in control.bodies]
    made = run_control(control.name, control.op, control.attributes, operands, bodies, control.outputs, trips)
    return {tensor.name: array for tensor, array in zip(control.outputs, made, strict=True)}


_ALIGN = 64
_PAGE = 4096
#: For the command ring.
_RING_SLOTS = 256
#: Cycles after which progress is told.
_LOOK = 1_000_000


def dram_bytes(network: StagedNetwork, samples: int = 1) -> int:
    """DRAM that a session needs for as many samples at once."""
    total = _RING_SLOTS * SLOT_BYTES + 2 * _PAGE
    program = 0
    for stage in network.walk():
        if stage.code:
            io = sum(tensor.bytes + _ALIGN for tensor in (*stage.inputs, *stage.outputs))
            total += stage.code.memory + _ALIGN + samples * io
            program = max(program, *(len(each.image) for each in stage.code.all_programs))
    return -(-(total + program) // _PAGE) * _PAGE


READ, READ_WRITE = 1, 3


@dataclass
class PlacedStage:
    """A stage on the accelerator: where its memory is, for each sample its inputs and outputs; how often it ran.

    `taken` counts which candidate of its last program that was, as the machine says.
    """

    stage: Stage
    code: StageExecutable
    base: int
    samples: list[dict[str, int]] = field(default_factory=list)
    runs: int = 0
    taken: Counter[int] = field(default_factory=Counter)

    def operands(self, sample: int) -> list[int]:
        """Addresses, the first operands of its macro-instructions."""
        tensors = (*self.stage.inputs, *self.stage.outputs)
        return [self.base, *(self.samples[sample][tensor.name] for tensor in tensors)]

    def windows(self, samples: Sequence[int], most: int) -> list[DramWindow]:
        """The DRAM that the stage's programs may touch, at most `most` windows in the order of their addresses.

        Weights and inputs are read-only, the rest of the stage's memory and the outputs are writable. Where that takes
        more windows than the machine has, the last ones are joined.

        Parameters
        ----------
        samples : sequence of int
            Samples that run one right behind the other; of all from the first to the last of them the buffers are open.
        most : int
            Windows of the machine.
        """
        weights = self.base + self.code.image.size
        found = [(self.base, weights - 1, READ), (weights, self.base + self.code.memory - 1, READ_WRITE)]
        for sample in range(min(samples), max(samples) + 1):
            for tensors, permission in ((self.stage.inputs, READ), (self.stage.outputs, READ_WRITE)):
                spans = [(self.samples[sample][tensor.name], tensor.bytes) for tensor in tensors]
                if spans:
                    found.append((min(spans)[0], max(start + size for start, size in spans) - 1, permission))
        found = [window for window in found if window[0] <= window[1]]
        while len(found) > most:
            (first, _, a), (_, last, b) = found[-2:]
            found[-2:] = [(first, last, a | b)]
        return found

    def address(self, name: str, sample: int) -> int:
        """Where an input or output of a sample lies."""
        return self.operands(sample)[self.code.places[name]]


class Session:
    """A network on a machine: programs loaded, memory laid out.

    Parameters
    ----------
    device : Device
        RTL or golden model, with DRAM of at least `dram_bytes`.
    network : Network
        What to run. Every stream of macro-instructions is proved harmless before it is enqueued: that of the first
        sample, and that of all samples back to back, before a program is loaded.
    samples : int
        How many samples there is room for at once.
    proofs : Store or None
        Remembers what has been proved; None: everything is proved now.

    Raises
    ------
    ValidationError
        A program could do harm.

    Attributes
    ----------
    load_cycles : int
        What loading programs took so far.
    seconds : float
        Wall time from doorbells to interrupts so far.
    progress : callable
        Hears now and then how many cycles a long run has taken so far.
    look : callable or None
        Hears of each program that has run, as its stage and number; they run one by one then.

    Examples
    --------
    >>> with compiler.open_device(network, "rtl") as device:
    ...     session = compiler.Session(device, network)
    ...     outputs, cycles = session.measure({"image": image})
    """

    def __init__(
        self, device: Device, network: StagedNetwork, samples: int = 1, proofs: ContentStore | None = None
    ):
        self.device, self.network, self.proofs = device, network, proofs
        self.driver = Driver(device, _RING_SLOTS)
        self.load_cycles, self.seconds = 0, 0.0
        self.progress: Callable[[int], None] = lambda _cycles: None
        self.look: Callable[[PlacedStage, int], None] | None = None
        self._cycles, self._trips = 0, Trips()
        self._counts = [network.count(network.batch)] * samples
        self._opcodes: dict[int, int] = {}  # by identity of the part
        self.loaded = [self._place(stage, stage.code, samples) for stage in network.walk() if stage.code]
        self._proved: set[tuple[int, tuple[int, ...]]] = set()
        self._open: list[DramWindow] | None = None
        for place in self.loaded:
            self._prove(place, [0])
            self._prove(place, range(samples))
        self._places = {id(place.stage): place for place in self.loaded}
        parts = [part for each in self.loaded for part in each.code.parts]
        self.resident = len(batches(network.config, parts)) == 1
        if self.resident:
            self._bring(parts)
        # After reset the machine clears its counters, and a change of tag waits for that; so does this.
        self.driver.counters.read("cycles", 0)

    def __repr__(self) -> str:
        return f"<Session of {shown(self.network.name)} on {self.device!r}>"

    def run(self, inputs: Arrays, count: int | None = None) -> dict[str, NDArray]:
        """Outputs of one sample, or of a batch."""
        return self.measure(inputs, count)[0]

    def measure(self, inputs: Arrays, count: int | None = None) -> tuple[dict[str, NDArray], int]:
        """Outputs of one sample, and cycles from doorbells to interrupts; loading programs is not among them.

        Of a batch only the first `count` samples count (left out: all): outputs of others mean nothing if the network
        has programs for fewer.

        Raises
        ------
        InputError
            An input is missing, one too many, or not of the model's shape and type; more samples than a batch has.
        """
        values: dict[str, NDArray] = self.network.check(inputs)
        self._counts[0] = self.network.count(self.network.batch if count is None else count)
        before, self._trips = self._cycles, Trips()
        self._stages(self.network.stages, values)
        made = {tensor.name: value_of(tensor, values) for tensor in self.network.outputs}
        return made, self._cycles - before

    def held(self, name: str, sample: int = 0) -> NDArray:
        """An input or output of the one stage on the accelerator as it lies in DRAM: changes count from now on.

        Raises
        ------
        InputError
            There are several such stages, or the stage has no tensor of that name.
        """
        place = self._only()
        known = {tensor.name: tensor for tensor in (*place.stage.inputs, *place.stage.outputs)}
        if name not in known:
            raise InputError(f"the accelerator has no input or output {name!r}, only {', '.join(known)}")
        tensor, start = known[name], place.address(name, sample)
        raw = self.device.dram[start : start + tensor.bytes]
        return raw.view(np.dtype(tensor.dtype)).reshape(tensor.shape)

    def again(self, sample: int = 0) -> int:
        """Run the one stage on the accelerator on what lies in DRAM; returns cycles.

        Raises
        ------
        InputError
            There are several such stages.
        """
        return self._stage(self._only(), sample)

    def _only(self) -> PlacedStage:
        if len(self.loaded) != 1:
            raise InputError(f"{self.network.name} has {len(self.loaded)} stages on the accelerator, not one")
        return self.loaded[0]

    @property
    def taken(self) -> list[Counter[int]]:
        """For each of them how often each candidate of its last program was taken."""
        return [Counter(place.taken) for place in self.loaded]

    @property
    def runs(self) -> list[int]:
        """How often each stage on the accelerator has run, in the order of the network's `codes`."""
        return [place.runs for place in self.loaded]

    def _stages(self, stages: Sequence[Stage], values: dict[str, NDArray]) -> None:
        """Run stages, of the network or of a subgraph; what they make is added to the values."""
        for stage in stages:
            mine = {tensor.name: values[tensor.name] for tensor in stage.inputs}
            if stage.control is not None:
                values |= run_control_flow(stage.control, mine, self._stages, self._trips)
            elif stage.graph is not None:
                values |= evaluate(stage.graph, mine, rounding=self.network.rounding)  # type: ignore[arg-type]
            else:
                place = self._places[id(stage)]
                self._put(place, mine)
                self._cycles += self._stage(place)
                place.runs += 1
                values |= self._fetch(place)

    def steady(self, samples: Sequence[Arrays], counts: Sequence[int]) -> float | None:
        """Cycles a sample takes when they come one right behind the other; None if the host has to take part.

        Of each, if it is a batch, so many samples count.

        Raises
        ------
        ValidationError
            The programs could do harm where these samples lie.
        """
        if len(self.network.stages) != 1 or not self.network.stages[0].code or not self.resident:
            return None
        (place,) = self.loaded
        self._counts[: len(samples)] = [self.network.count(count) for count in counts]
        for number, sample in enumerate(samples):
            self._put(place, self.network.check(sample), number)
        numbers = range(len(samples))
        self._prove(place, numbers)
        self._open_windows(place, numbers)
        return self._go(place, place.code.parts, numbers) / len(samples)

    def _place(self, stage: Stage, code: StageExecutable, samples: int) -> PlacedStage:
        memory = self.driver.memory
        place = PlacedStage(stage, code, memory.take(max(code.memory, 1), _ALIGN, "the model's memory"))
        self.driver.put(code.image, place.base)
        for _ in range(samples):
            place.samples.append(
                {
                    tensor.name: memory.take(tensor.bytes, _ALIGN, tensor.name)
                    for tensor in (*stage.inputs, *stage.outputs)
                }
            )
        return place

    def _prove(self, place: PlacedStage, samples: Sequence[int]) -> None:
        """Refuse programs that could do harm to samples that follow one another without a pause, from rest on.

        The first sample comes once more behind the others: so the stream leaves everything as it finds it.
        """
        key = id(place), tuple(samples)
        if key in self._proved:
            return
        calls = [
            MacroCall(part.program, (*place.operands(sample), *self.network.any_count), instead=part.instead)
            for sample in (*samples, samples[0])
            for part in place.code.parts
        ]
        config = self.network.config
        prove(config, calls, place.windows(samples, config.windows), self.proofs)
        self._proved.add(key)

    def _open_windows(self, place: PlacedStage, samples: Sequence[int]) -> None:
        """Let programs touch what these samples need and nothing else; the machine is at rest."""
        most = self.network.config.windows
        windows = place.windows(samples, most)
        if windows == self._open:
            return
        for index in range(most):
            first, last, permissions = windows[index] if index < len(windows) else (0, -1, 0)
            self.driver.set_window(
                index, first, last + 1 - first, read=bool(permissions & 1), write=bool(permissions & 2)
            )
        self._open = windows

    def _put(self, place: PlacedStage, values: Arrays, sample: int = 0) -> None:
        for tensor in place.stage.inputs:
            self.driver.put(values[tensor.name], place.address(tensor.name, sample))

    def _fetch(self, place: PlacedStage, sample: int = 0) -> dict[str, NDArray]:
        return {
            tensor.name: self.driver.fetch(
                place.address(tensor.name, sample), tensor.shape, np.dtype(tensor.dtype)
            )
            for tensor in place.stage.outputs
        }

    def _stage(self, place: PlacedStage, sample: int = 0) -> int:
        parts, cycles = place.code.parts, 0
        self._prove(place, [sample])
        self._open_windows(place, [sample])
        for batch in [range(len(parts))] if self.resident else batches(self.network.config, parts):
            if not self.resident:
                self._bring(parts[batch.start : batch.stop])
            if self.look is None:
                cycles += self._go(place, parts[batch.start : batch.stop], [sample])
                continue
            for number in batch:
                cycles += self._go(place, parts[number : number + 1], [sample])
                self.look(place, number)
        return cycles

    def _bring(self, parts: Sequence[ProgramPart]) -> None:
        """Load programs in place of those that are there."""
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

    def _go(self, place: PlacedStage, parts: Sequence[ProgramPart], samples: Sequence[int]) -> int:
        driver, numbers = self.driver, []
        work = [(sample, part) for sample in samples for part in parts]
        for number, (sample, part) in enumerate(work, 1):
            operands = [*place.operands(sample), *self._counts[sample]]
            opcode, last = self._opcodes[id(part)], number == len(work)
            numbers.append(driver.enqueue(opcode, operands, tag=part.tag, irq=last))
        driver.set("IRQ_STATUS", driver.get("IRQ_STATUS"))
        start, began = self.device.cycle, time.perf_counter()
        driver.doorbell()
        while not self.device.wait_irq(_LOOK):
            self.progress(self.device.cycle - start)
        cycles = self.device.cycle - start
        self.seconds += time.perf_counter() - began
        driver.run()
        for (_, part), number in zip(work, numbers, strict=True):
            record = driver.completion(number)
            if record is not None and part is place.code.parts[-1]:
                place.taken[record.candidate] += 1
        return cycles
