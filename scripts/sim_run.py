"""The digits on a machine: under a plain program, then reprogrammed live."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from compiler.validate import Call, validate
from cosim.device import Device
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from cosim.programs import Candidate
from scripts import sim_report
from scripts.networks.digits import MODEL, Digits, load_digits_split
from scripts.sim_check import LayerCheck, check_layers
from scripts.sim_memory import ImageMemory
from scripts.sim_phase import Meter, Phase
from scripts.sim_programs import Programs
from scripts.sim_stream import Done, Stream

Say = Callable[[str], None]
_OPCODE = 0
#: Predictions of a line.
_LINE = 30


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Parameters
    ----------
    images : int
        How many.
    accuracy : float
        Share of them that were classified rightly.
    checks : list of LayerCheck
        Layers against onnxruntime.
    phases : list of Phase
        Under the plain program and under the compiler's.
    digests : list of str
        SHA-256 of all scores after each phase.
    wrong : int
        Images that came out with other scores than before since the program was replaced.
    load_cycles : int or None
        What loading the compiler's program took.
    """

    images: int
    accuracy: float
    checks: list[LayerCheck]
    phases: list[Phase]
    digests: list[str]
    wrong: int
    load_cycles: int | None

    @property
    def unchanged(self) -> bool:
        """Whether the compiler's program gave the plain one's outputs, image by image."""
        return len(set(self.digests)) == 1 and not self.wrong

    @property
    def passed(self) -> bool:
        """Whether every layer and every output is what it must be."""
        return self.unchanged and all(check.passed for check in self.checks)


class _Run:
    """One run; `run_digits` is its only use."""

    def __init__(self, device: Device, programs: Programs, images: int, say: Say):
        self.programs, self.images, self.say = programs, images, say
        self.clocked = not isinstance(device, GoldenDevice)
        self.driver = Driver(device)
        _, held_out = load_digits_split()
        self.digits = Digits(held_out.images[:images], held_out.labels[:images])
        self.memory = ImageMemory(self.driver, programs, self.digits.images)
        self._validate()
        self.driver.load(programs.plain.program, opcode=_OPCODE, dma=True)
        self.stream = Stream(self.driver, self.memory)
        self.meter = Meter(self.driver, self.clocked, len(programs.plain.network.infos))

    def _validate(self) -> None:
        """Refuse programs that could do harm, whichever follows which without a pause."""
        plain, fused = self.programs.plain, self.programs.fused
        order = [plain.program, plain.program, fused.program, fused.program, plain.program]
        calls = [
            Call(program, tuple(self.memory.operands(number % self.images)))
            for number, program in enumerate(order)
        ]
        validate(self.driver.config, calls, [self.memory.window])

    def plain_phase(self) -> Phase:
        """All images under the plain program."""
        start, since, done = time.monotonic(), self.meter.start(), []

        def each(result: Done) -> None:
            done.append(result)
            count = result.image + 1
            if count == 1:
                label, digit = self.digits.labels[0], int(self.memory.scores()[0].argmax())
                cycles = f", {result.cycles:,} cycles" if self.clocked else ""
                self.say(
                    f"first image: it is a {digit} (label {label}){cycles}, {time.monotonic() - start:.1f} s"
                )
            if count % _LINE == 0 or count == self.images:
                first = (count - 1) // _LINE * _LINE
                predicted = self.memory.scores()[first:count].argmax(axis=1)
                self.say(sim_report.predictions(first, predicted, self.digits.labels[first:count]))

        self.stream.flow(_OPCODE, range(self.images), each)
        phase = self.meter.phase(self.programs.plain.name, done, since)
        if phase.cycles is not None:
            rate = phase.cycles / (time.monotonic() - start) / 1000
            self.say(f"{phase.cycles:,} cycles simulated at {rate:.0f} kHz")
        return phase

    def check(self) -> list[LayerCheck]:
        """Each layer against onnxruntime, if that is installed."""
        graph = self.programs.graph
        tensors = {name: self.memory.fetch(name) for name in (*graph.inputs, *graph.outputs)}
        try:
            checks = check_layers(MODEL, tensors)
        except ImportError:
            self.say("onnxruntime is not installed: the layers are not checked")
            return []
        self.say(sim_report.layer_table(checks))
        return checks

    def live_phase(self, expected: np.ndarray) -> tuple[Phase, int, int | None]:
        """Images under the plain program, the other one loaded and bound meanwhile, then all images under that.

        Returns the phase, how many images came out wrong, and what loading took.
        """
        image = 0
        while self.stream.room:
            self.stream.submit(_OPCODE, image)
            image = (image + 1) % self.images
        segment, loaded = self._load()
        done: list[Done] = []
        old = wrong = 0

        def each(result: Done) -> None:
            nonlocal old, wrong
            wrong += not np.array_equal(self.memory.scores()[result.image], expected[result.image])
            if result.segment != segment:
                old += 1
                return
            if not done:
                self.meter.start()
            done.append(result)

        self.stream.flow(_OPCODE, range(self.images), each)
        self.say(
            f"all {old + len(done)} images came out, {old} of them still of the plain program, {wrong} wrong"
        )
        first, *rest = done
        return self.meter.phase(self.programs.fused.name, rest, first.retired), wrong, loaded

    def _load(self) -> tuple[int, int | None]:
        """Load the compiler's program while images are on their way, and bind the opcode to it."""
        device, program = self.driver.device, self.programs.fused.program
        start = device.cycle or 0
        segment = self.driver.load(program, dma=True)
        loaded = (device.cycle or 0) - start if self.clocked else None
        self.driver.programs.bind(_OPCODE, [Candidate(segment)])
        cost = "" if loaded is None else f" in {loaded:,} cycles"
        self.say(
            f"loaded the compiler's program of {len(program.words)} instructions{cost} and bound the opcode to it, "
            f"while {self.stream.flights} images were on their way"
        )
        return segment, loaded


def run_digits(device: Device, programs: Programs, images: int, say: Say) -> Outcome:
    """Classify images on a machine, reprogram it live, and classify them again."""
    run = _Run(device, programs, images, say)
    plain = run.plain_phase()
    before = run.memory.scores()
    right = int(np.count_nonzero(before.argmax(axis=1) == run.digits.labels))
    say(f"accuracy {right / images:.2%}: {right} of {images} images")
    checks = run.check()
    run.memory.clear_scores()
    fused, wrong, load_cycles = run.live_phase(before)
    digests = [hashlib.sha256(scores.tobytes()).hexdigest() for scores in (before, run.memory.scores())]
    say(sim_report.comparison([plain, fused], programs.macs))
    if plain.layers:
        say(sim_report.layer_cycles([plain, fused], programs))
    if plain.per_image and fused.per_image:
        say(f"{plain.per_image / fused.per_image:.2f} times as fast")
    outcome = Outcome(images, right / images, checks, [plain, fused], digests, wrong, load_cycles)
    verdict = "every output unchanged" if outcome.unchanged else "OUTPUTS CHANGED"
    say(f"{verdict}: SHA-256 {digests[0][:16]} before, {digests[1][:16]} after")
    return outcome
