"""The digits on a machine: on the library, then reprogrammed live."""

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from compiler.kernels.library import Library
from compiler.kernels.resident import resident_program
from cosim.device import Device
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from scripts import sim_report
from scripts.networks.digits import MODEL, Digits, load_digits_split
from scripts.sim_check import LayerCheck, check_layers
from scripts.sim_fused import FusedNetwork, bind_from
from scripts.sim_library import LibraryNetwork, Macro
from scripts.sim_network import SHAPES, Network
from scripts.sim_phase import Meter, Phase
from scripts.sim_stream import Done, Stream

Say = Callable[[str], None]
#: Predictions of a line.
_LINE = 30


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    images: int
    accuracy: float
    checks: list[LayerCheck]
    phases: list[Phase]
    digests: list[str]
    load_cycles: int | None

    @property
    def unchanged(self) -> bool:
        """Whether the fused program gave the library's outputs."""
        return len(set(self.digests)) == 1

    @property
    def passed(self) -> bool:
        """Whether every layer and every output is what it must be."""
        return self.unchanged and all(check.passed for check in self.checks)


class Digit:
    """One run; `run_digits` is its only use."""

    def __init__(self, device: Device, images: int, say: Say):
        self.say, self.images = say, images
        self.clocked = not isinstance(device, GoldenDevice)
        self.driver = Driver(device)
        self.library = Library(self.driver)
        _, held_out = load_digits_split()
        self.digits = Digits(held_out.images[:images], held_out.labels[:images])
        self.plain = LibraryNetwork(self.library, Network(MODEL), images)
        self.plain.put_images(self.digits.images)
        self.fused = FusedNetwork(self.plain)
        self.stream = Stream(self.driver)
        self.meter = Meter(self.driver, self.clocked)

    def scores(self) -> np.ndarray:
        """The network's output for all images."""
        return self.plain.fetch("scores", self.images)

    def flow(
        self, images: Iterable[int], macros: Callable[[int], list[Macro]], each: Callable[[Done], None]
    ) -> None:
        """Send images through the machine; `each` gets those that come out, others on their way included."""
        waiting = iter(images)
        image = next(waiting, None)
        while image is not None or self.stream.flights:
            while image is not None and self.stream.room(len(made := macros(image))):
                self.stream.submit(image, made)
                image = next(waiting, None)
            for done in self.stream.results():
                each(done)

    def plain_phase(self) -> Phase:
        """All images on the library."""
        start, since, done = time.monotonic(), self.meter.start(), []

        def each(result: Done) -> None:
            done.append(result)
            count = result.image + 1
            if count == 1:
                label, digit = self.digits.labels[0], int(self.scores()[0].argmax())
                cycles = f", {result.cycles:,} cycles" if self.clocked else ""
                self.say(
                    f"first image: it is a {digit} (label {label}){cycles}, {time.monotonic() - start:.1f} s"
                )
            if count % _LINE == 0 or count == self.images:
                first = (count - 1) // _LINE * _LINE
                predicted = self.scores()[first:count].argmax(axis=1)
                self.say(sim_report.predictions(first, predicted, self.digits.labels[first:count]))

        self.flow(range(self.images), self.plain.macros, each)
        phase = self.meter.phase("library", done, since)
        if phase.cycles is not None:
            rate = phase.cycles / (time.monotonic() - start) / 1000
            self.say(f"{phase.cycles:,} cycles simulated at {rate:.0f} kHz")
        return phase

    def check(self) -> list[LayerCheck]:
        """Each layer against onnxruntime, if that is installed."""
        tensors = {name: self.plain.fetch(name, self.images) for name in SHAPES}
        image = self.digits.images.reshape(self.images, 8, 8, 1)
        try:
            checks = check_layers(MODEL, tensors | {"image": image})
        except ImportError:
            self.say("onnxruntime is not installed: the layers are not checked")
            return []
        self.say(sim_report.layer_table(checks))
        return checks

    def live_phase(self) -> tuple[Phase, int | None]:
        """Images on the library, the fused program loaded and bound meanwhile, then all images on that."""
        device, plain_segment = self.driver.device, self.library.segment("conv2d_i8")
        image = 0
        while self.stream.room(len(SHAPES)):
            self.stream.submit(image, self.plain.macros(image))
            image = (image + 1) % self.images
        start = device.cycle or 0
        segment = self.driver.load(resident_program("digits_fused"), dma=True)
        loaded = (device.cycle or 0) - start if self.clocked else None
        switch = self.stream.next_number
        bind_from(self.driver, segment, plain_segment, switch)
        cost = "" if loaded is None else f" in {loaded:,} cycles"
        self.say(
            f"loaded `digits_fused`{cost} and rebound the opcode of the first layer, while "
            f"{self.stream.flights} images were on their way through the library's programs"
        )
        done: list[Done] = []

        def each(result: Done) -> None:
            if result.number < switch:
                return
            if not done:
                self.meter.start()
            done.append(result)

        self.flow(range(self.images), lambda image: [self.fused.macro(image, self.stream.next_number)], each)
        first, *rest = done
        return self.meter.phase("fused", rest, first.retired[-1]), loaded


def run_digits(device: Device, images: int, say: Say) -> Outcome:
    """Classify images on a machine, reprogram it live, and classify them again."""
    run = Digit(device, images, say)
    plain = run.plain_phase()
    before = run.scores()
    right = int(np.count_nonzero(before.argmax(axis=1) == run.digits.labels))
    say(f"accuracy {right / images:.2%}: {right} of {images} images")
    checks = run.check()
    if plain.layers:
        say(sim_report.layer_cycles(plain))
    run.driver.put(np.zeros_like(before), run.plain.address("scores", 0))
    fused, load_cycles = run.live_phase()
    digests = [hashlib.sha256(scores.tobytes()).hexdigest() for scores in (before, run.scores())]
    unchanged = digests[0] == digests[1]
    say(sim_report.comparison([plain, fused]))
    if plain.per_image and fused.per_image:
        say(f"{plain.per_image / fused.per_image:.2f} times as fast")
    verdict = "every output unchanged" if unchanged else "OUTPUTS CHANGED"
    say(f"{verdict}: SHA-256 {digests[0][:16]} before, {digests[1][:16]} after")
    return Outcome(images, right / images, checks, [plain, fused], digests, load_cycles)
