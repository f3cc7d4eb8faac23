"""Classifies handwritten digits on the simulated chip, then reprograms the chip while images keep flowing.

The network comes from its ONNX file. It runs first as a program in which each operator goes from DRAM to DRAM, as a
simple compiler would do it; then the program with the compiler's own schedule is loaded and bound to the same opcode.
Every output must stay the same. Exit status 1 if a layer or an output is not what it must be.

Example: .venv/bin/python -m scripts.sim --images 40
"""

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from compiler.cli.claims import claim
from compiler.cli.outcome import run_to_status
from compiler.cli.output import report
from cosim.device import Device
from cosim.golden import GoldenDevice
from hw.config import load_target
from hw.errors import InputError
from scripts import sim_report
from scripts.networks.digits import HELD_OUT, MODEL
from scripts.sim_programs import Programs, compile_digits
from scripts.sim_run import Outcome, run_digits

DRAM_BYTES = 1 << 23
LATENCY = 100
Say = Callable[[str], None]
#: Waves grow by megabytes an image.
WAVES_IMAGES = 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sim", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", choices=("rtl", "golden"), default="rtl", help="default: %(default)s")
    parser.add_argument(
        "--images", type=int, help=f"how many, 2..{HELD_OUT} (default: all; {WAVES_IMAGES} with waves)"
    )
    parser.add_argument("--waves", metavar="FILE", type=Path, help="record every signal to an FST file")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - for standard output")
    return parser.parse_args()


@contextmanager
def _ticking(what: str, say: Say) -> Iterator[None]:
    """Say every ten seconds that something still goes on."""
    done, start = threading.Event(), time.monotonic()

    def tick() -> None:
        with suppress(BrokenPipeError):  # whoever reads has gone; the main thread will notice
            while not done.wait(10):
                say(f"  {what}: {time.monotonic() - start:.0f} s")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _open(device: str, waves: Path | None, say: Say) -> Device:
    config = load_target("n16")
    if device == "golden":
        return GoldenDevice(config, DRAM_BYTES)
    from cosim.rtl.build import Variant
    from cosim.rtl.rtl_device import RtlDevice

    start = time.monotonic()
    say("building the chip's simulator, unless it is in the cache")
    with _ticking("still building", say):
        chip = RtlDevice(config, DRAM_BYTES, latency=LATENCY, variant=Variant(waves=waves is not None))
    say(f"chip ready after {time.monotonic() - start:.1f} s")
    if waves is not None:
        chip.start_waves(waves)
    return chip


def _document(outcome: Outcome, programs: Programs, device: str) -> dict[str, Any]:
    phases = [
        {
            "name": phase.name,
            "images": phase.images,
            "cycles": phase.cycles,
            "cycles_per_image": phase.per_image,
            "where": phase.where,
            "layer_cycles": phase.layers[: len(variant.network.infos)],
            "layers": [list(info.nodes) for info in variant.network.infos],
        }
        for variant, phase in zip((programs.plain, programs.fused), outcome.phases, strict=True)
    ]
    layers = [vars(check) | {"passed": check.passed} for check in outcome.checks]
    return {
        "device": device,
        "target": "n16",
        "images": outcome.images,
        "accuracy": outcome.accuracy,
        "layers": layers,
        "phases": phases,
        "outputs_sha256": outcome.digests,
        "unchanged": outcome.unchanged,
        "wrong_images": outcome.wrong,
        "load_cycles": outcome.load_cycles,
    }


def _check(args: argparse.Namespace) -> int:
    """Refuse bad input before anything is built; how many images it is to be."""
    images = (WAVES_IMAGES if args.waves else HELD_OUT) if args.images is None else args.images
    if not 2 <= images <= HELD_OUT:
        raise InputError(f"--images must be in 2..{HELD_OUT}, not {images}")
    if args.waves and args.device == "golden":
        raise InputError("--waves needs the RTL: the golden model has no signals")
    if args.waves:
        try:
            args.waves.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{args.waves} cannot be written: {error.strerror}") from error
    claim(args, "waves")
    return images


def _run(args: argparse.Namespace) -> int:
    # Standard output carries the results for people, or the JSON document alone.
    say = partial(print, file=sys.stderr if args.json == "-" else sys.stdout, flush=True)
    images = _check(args)
    programs = compile_digits(MODEL)
    say(sim_report.environment(load_target("n16"), programs, args.device, LATENCY))
    with _open(args.device, args.waves, say) as device:
        outcome = run_digits(device, programs, images, say)
    if args.json:
        report(_document(outcome, programs, args.device), "", args.json)
    return 0 if outcome.passed else 1


def main() -> int:
    """Run; returns the exit status."""
    args = _arguments()
    return run_to_status("sim", lambda: _run(args))


if __name__ == "__main__":
    sys.exit(main())
