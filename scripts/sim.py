"""Simulation of a chip that serves images of handwritten digits while a search finds better programs.

The network is read from its ONNX file. Serving starts with naive programs: one program per operator, with all tensors
in DRAM. `compiler.online_tuning` then loads the programs of the static compiler, and later the programs that the search
finds on another simulator. The exit status is 1 if an output is wrong.

Example: .venv/bin/python -m scripts.sim --images 40
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from compiler.cli.exit_status import run_to_status
from compiler.cli.options import check_files
from compiler.frontends.model import read_model
from compiler.initial_schedule.initial import naive_schedule
from compiler.online_tuning.observers import ServingHistory, ServingProgress
from compiler.online_tuning.search_worker import SearchJob
from compiler.online_tuning.serve import Serving, open_machine, serve
from compiler.options import DEFAULT_DRAM, CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.runtime.compiled import CompiledNetwork
from compiler.serving.request import Request, RequestSource
from compiler.util.files import write_output, write_report
from compiler.util.progress import progress
from compiler.visualize.charts import draw_serving
from cosim.device import Device
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.errors import InputError
from scripts import sim_report
from scripts.networks.digits import HELD_OUT, MODEL, Digits, load_digits_split
from scripts.sim_accuracy import AccuracyCheck

BUILD = Path(__file__).parent.parent / "build"
TARGET, METHOD = "n16", "coordinate"
OPTIONS = CompileOptions(rounding="onnxruntime")
Say = Callable[[str], None]
#: Default number of images if waveforms are recorded, which take megabytes per image.
WAVES_IMAGES = 2
#: Maximum number of images before the first reload; at most a third of the images.
_BEFORE = 40


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sim", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", choices=("rtl", "golden"), default="rtl", help="default: %(default)s")
    parser.add_argument(
        "--images",
        type=int,
        help=f"number of images, 2..{HELD_OUT} (default: all; {WAVES_IMAGES} with --waves)",
    )
    parser.add_argument("--waves", metavar="FILE", type=Path, help="record every signal in an FST file")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - for standard output")
    parser.add_argument(
        "--picture", metavar="FILE.svg", type=Path, help="draw the cycles per image (default: build/sim.svg)"
    )
    return parser.parse_args()


def _open(serving: Serving, args: argparse.Namespace, say: Say) -> Device:
    if args.device == "golden":
        return open_machine(serving, "golden")
    start = time.monotonic()
    chip = open_machine(serving, waves=args.waves is not None)
    say(f"chip ready after {time.monotonic() - start:.1f} s")
    if args.waves is not None:
        assert isinstance(chip, RtlDevice)
        chip.start_waves(args.waves)
    return chip


def _check(args: argparse.Namespace) -> int:
    """Check the arguments before the build; return the number of images."""
    images = (WAVES_IMAGES if args.waves else HELD_OUT) if args.images is None else args.images
    if not 2 <= images <= HELD_OUT:
        raise InputError(f"--images must be in 2..{HELD_OUT}, not {images}")
    if args.device == "golden" and (args.waves or args.picture):
        option, why = ("--waves", "signals") if args.waves else ("--picture", "clock")
        raise InputError(f"{option} needs the RTL: the golden model has no {why}")
    if args.device == "rtl" and not args.waves and args.picture is None:
        args.picture = BUILD / "sim.svg"
        BUILD.mkdir(exist_ok=True)
    if args.waves:
        try:
            args.waves.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{args.waves} cannot be written: {error.strerror}") from error
    check_files(args, "waves", "picture")
    return images


def plan(images: int, *, adapt: bool) -> tuple[Serving, CompiledNetwork]:
    """Return the serving setup, and the network of the static compiler, which determines the expected outputs.

    Parameters
    ----------
    images : int
        Number of images to serve.
    adapt : bool
        True to start from naive programs and tune while serving.
    """
    graph, config = read_model(MODEL), load_target(TARGET)
    prepared = ModelCompiler(graph, config, OPTIONS)
    compiled = prepared.network()
    if not adapt:
        return Serving(compiled, DEFAULT_DRAM), compiled
    plain = prepared.network(naive_schedule(prepared.lowered(())))
    job = SearchJob(graph, config, OPTIONS, METHOD)
    return Serving(
        plain, DEFAULT_DRAM, job, trials_per_request=1, adapt_from=min(_BEFORE, images // 3)
    ), compiled


def requests_of(network: CompiledNetwork, digits: Digits) -> RequestSource:
    """Return the source of requests, one for each image."""
    (tensor,) = network.inputs
    return RequestSource(
        iter([Request({tensor.name: image.reshape(tensor.shape)}) for image in digits.images])
    )


def _run(args: argparse.Namespace) -> int:
    # Standard output receives the text results, or only the JSON document.
    out = sys.stderr if args.json == "-" else sys.stdout
    say = partial(print, file=out, flush=True)
    images = _check(args)
    _, held_out = load_digits_split()
    digits = Digits(held_out.images[:images], held_out.labels[:images])
    clocked = args.device == "rtl"
    with progress("compiling digits"):
        serving, compiled = plan(images, adapt=clocked and not args.waves)
    say(sim_report.environment(serving, compiled, args.device))
    check, history = AccuracyCheck(compiled, digits.labels), ServingHistory(clocked=clocked)
    with _open(serving, args, say) as device, progress("serving digits", images, "images") as task:
        watcher = ServingProgress(task, clocked=clocked, note=lambda: f"{check.accuracy:.1%} correct")
        status = serve(serving, device, requests_of(compiled, digits), [check, history, watcher])
    if status:
        return status
    say(sim_report.report(check, history, compiled.floor.macs))
    if args.picture:
        write_output(args.picture, draw_serving("digits", history.cycles, history.events).encode())
        say(f"picture  {args.picture}")
    if args.json:
        write_report(sim_report.document(args.device, check, history), args.json)
    return 0 if check.exact == check.images else 1


def main() -> int:
    """Serve all images and print the report; return the exit status."""
    args = _arguments()
    return run_to_status("sim", lambda: _run(args))


if __name__ == "__main__":
    sys.exit(main())
