"""`mla serve`: serves inference requests, with optional online tuning."""

import argparse
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING

from compiler.cli.compile import REFERENCE, add_compile, add_dispatch, has_share
from compiler.cli.exit_status import with_warnings
from compiler.cli.options import (
    add_db,
    add_json,
    add_memory,
    add_renamed,
    add_seed,
    add_target,
    check_files,
    dram_of,
    integer,
    positive,
    used_database,
)
from compiler.cli.search import (
    add_endpoint,
    add_method,
    add_targets,
    check_method,
    generator_of,
    targets_of,
    writable_database,
)
from compiler.util.files import PACKAGE_SUFFIX, write_output, write_report
from compiler.util.tables import counted
from hw.errors import shown

if TYPE_CHECKING:
    from compiler.online_tuning.observers import ServingHistory
    from compiler.online_tuning.search_worker import SearchJob
    from compiler.online_tuning.serve import Audits, Change, Serving
    from compiler.options import CompileOptions
    from compiler.runtime.compiled import CompiledNetwork
    from compiler.serving.power import PowerGovernor, PowerLimits

SUMMARY = "run a model on a stream of inputs, with optional online tuning"
EXAMPLE = "mla serve network.tflite --input images.npy --adapt"
MAX_IN_FLIGHT = 64
MAX_TRIALS_PER_REQUEST = 1000
MAX_DRAM_VALUE = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        type=Path,
        help=f"a .tflite or .onnx file, a .mla file from mla compile, {REFERENCE}",
    )
    parser.add_argument(
        "--input",
        metavar="FILE",
        type=Path,
        help=".npy, or .npz with one array per input; the first axis indexes samples; - reads standard input, which "
        "may also contain JSON lines (default: random samples)",
    )
    parser.add_argument(
        "--requests",
        metavar="N",
        type=integer(1),
        help="number of requests; a file is repeated as needed (default: all samples of the input)",
    )
    parser.add_argument(
        "--adapt", action="store_true", help="search for faster programs while serving, and swap them in"
    )
    add_method(parser)
    add_targets(parser)
    add_renamed(
        parser,
        "--trials-per-request",
        former_name="--pace",
        metavar="T",
        type=integer(0, MAX_TRIALS_PER_REQUEST),
        help="try exactly T candidates per request, so that runs are reproducible (default: as many as time allows)",
    )
    parser.add_argument(
        "--adapt-from",
        metavar="K",
        type=integer(0),
        help="first request at which programs may be swapped (default: 0)",
    )
    parser.add_argument(
        "--schedule",
        metavar="FILE.json",
        type=Path,
        help="initial schedule (default: the heuristic schedule)",
    )
    add_renamed(
        parser,
        "--max-in-flight",
        former_name="--flights",
        metavar="F",
        type=integer(1, MAX_IN_FLIGHT),
        default=4,
        help="maximum number of requests in flight (default: 4)",
    )
    parser.add_argument(
        "--device", choices=("rtl", "golden"), default="rtl", help="device to run on (default: %(default)s)"
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="write the results as JSON lines to FILE (default: standard output)",
    )
    parser.add_argument(
        "--profile", metavar="FILE.json", type=Path, help="write the cycles of each layer by cause"
    )
    parser.add_argument(
        "--picture", metavar="FILE.svg", type=Path, help="draw the cycles per request and the tuning events"
    )
    parser.add_argument(
        "--conditions-at",
        metavar="K:latency=CYCLES,bytes=RATE,throttle=SHARE",
        type=_change,
        action="append",
        default=[],
        help="for tests: change the timing of the simulated DRAM and clock at request K (repeatable)",
    )
    _add_power(parser)
    add_endpoint(parser)
    add_db(parser)
    add_compile(parser)
    add_dispatch(parser)
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


#: Clock in MHz for simulated time and power.
_CLOCK_MHZ = 100.0


def _add_power(parser: argparse.ArgumentParser) -> None:
    """Add the options of power management and of simulated time."""
    parser.add_argument(
        "--power-cap",
        metavar="MW",
        type=positive,
        help="choose the power state and the start of each request so that the mean power of every window of 1 ms is "
        "at most MW; the fastest power state has the frequency of --clock (default: 100)",
    )
    parser.add_argument(
        "--deadline",
        metavar="MS",
        type=positive,
        help="choose the power state that takes the least energy of those in which a request is complete MS "
        "milliseconds after it arrived",
    )
    arrivals = parser.add_mutually_exclusive_group()
    arrivals.add_argument(
        "--interval",
        metavar="MS",
        type=positive,
        help="a request arrives every MS milliseconds of simulated time at --clock (default: --deadline; without it, "
        "when the previous request is complete)",
    )
    arrivals.add_argument(
        "--arrivals",
        metavar="FILE",
        type=Path,
        help="times of arrival in milliseconds of simulated time at --clock, in ascending order, separated by spaces "
        "or newlines; one request per time unless --requests is given",
    )


def _power_limits(args: argparse.Namespace) -> "PowerLimits | None":
    """Return the limits of power and time, if any are given."""
    from compiler.serving.power import PowerLimits

    if args.power_cap is None and args.deadline is None:
        return None
    return PowerLimits(args.clock or _CLOCK_MHZ, args.power_cap, args.deadline)


def _arrivals(args: argparse.Namespace) -> "Iterator[float] | None":
    """Return the times of arrival in milliseconds; None if there are none.

    Raises
    ------
    InputError
        The file cannot be read, or has not one time for each request, in ascending order.
    """
    from compiler.util.files import read_input
    from hw.errors import InputError

    if args.arrivals is None:
        interval = args.deadline if args.interval is None else args.interval
        return None if interval is None else (interval * number for number in count())
    words = read_input(args.arrivals).decode(errors="replace").split()
    times = []
    for number, word in enumerate(words, 1):
        try:
            time = float(word)
        except ValueError:
            time = math.nan
        if not 0 <= time < math.inf or (times and time < times[-1]):
            raise InputError(
                f"{args.arrivals}: time {number} must be a number of milliseconds, not less than the one before, not "
                f"{shown(word)}"
            )
        times.append(time)
    if len(times) < (args.requests or 1):
        raise InputError(
            f"{args.arrivals}: has {counted(len(times), 'time')} for {args.requests or 1} requests"
        )
    args.requests = args.requests or len(times)
    return iter(times)


def run(args: argparse.Namespace) -> int:
    """Serve all requests."""
    from compiler.cli.request_stream import requests_of
    from compiler.cli.run import named
    from compiler.online_tuning.observers import JsonLines, ServingHistory, ServingObserver, ServingProgress
    from compiler.online_tuning.serve import governed, open_machine, serve
    from compiler.util.progress import log, progress

    check_files(args, "out", "profile", "picture")
    check_options(args)
    check_method(args)
    arrivals = _arrivals(args)
    serving = serving_of(args, timed=arrivals is not None)
    network = serving.network
    requests = requests_of(args, network)
    if arrivals is not None:
        requests = requests.at(arrivals)
    clocked = args.device == "rtl"
    listeners: list[ServingObserver] = [history := ServingHistory(clocked=clocked)]
    governor = governed(serving)
    if clocked:
        log("opening the simulated chip")
    with named(args.model), _lines(args) as stream, open_machine(serving, args.device) as device:
        listeners.append(JsonLines(stream, clocked=clocked))
        try:
            if not args.out:  # lines on standard output already show the progress
                return serve(serving, device, requests, listeners, governor)
            with progress(f"serving {args.model.name}", args.requests, "requests") as task:
                listeners.append(ServingProgress(task, clocked=clocked))
                return serve(serving, device, requests, listeners, governor)
        finally:
            _end(args, network, history, governor)


def serving_of(args: argparse.Namespace, *, timed: bool = False) -> "Serving":
    """Return the settings of a serving run, with all networks; `timed` is True if requests arrive at given times."""
    from compiler.cache.content_store import ContentStore
    from compiler.online_tuning.serve import Serving

    network, job = _network(args)
    return Serving(
        network,
        dram_of(args),
        job,
        args.max_in_flight,
        args.trials_per_request,
        args.adapt_from or 0,
        tuple(args.conditions_at),
        args.profile,
        None if args.no_cache else ContentStore(),
        _reusing(args),
        _power_limits(args),
        args.clock or _CLOCK_MHZ if timed else None,
        _audits(args),
        _guarded(args) if job else None,
    )


def _end(
    args: argparse.Namespace,
    network: "CompiledNetwork",
    history: "ServingHistory",
    governor: "PowerGovernor | None",
) -> None:
    """Print the summary, and write the picture and the report if requested."""
    from compiler.cli.run import head
    from compiler.visualize.charts import draw_serving

    if history.cycles:  # without results, an error follows
        parts = [history.summary(adapted=args.adapt)] + ([governor.summary()] if governor else [])
        print(f"mla serve: {'; '.join(parts)}", file=sys.stderr)
    if args.picture:
        picture = draw_serving(network.name, history.cycles, history.events)
        write_output(args.picture, picture.encode())
    if args.json:
        rate = args.dram_bytes_per_cycle or network.config.beat_bytes
        targets = args.target_latency, args.target_energy, args.target_throughput
        met = None if targets == (None, None, None) else history.target_met
        document = head(args, args.device, rate) | history.document() | {"target_met": met}
        document["power"] = governor and governor.document()
        write_report(with_warnings(document), args.json)


@contextmanager
def _lines(args: argparse.Namespace) -> "Iterator[IO[str]]":
    """Open the file of `--out`, or standard output, for the JSON lines."""
    if args.out:
        with args.out.open("w") as file:
            yield file
    else:
        yield sys.stdout


def check_options(args: argparse.Namespace) -> None:
    """Raise InputError for conflicting options, before anything is compiled."""
    from hw.errors import InputError

    given = {
        "--batch": args.batch not in (None, 1),
        "--batches": args.batches,
        "--skip": args.skip is not None,
    }
    for option, there in given.items():
        if there and args.reuse:
            raise InputError(f"{option} cannot be combined with --reuse")
    power = next((name for name in ("power_cap", "deadline") if vars(args)[name] is not None), None)
    if power:
        power = f"--{power.replace('_', '-')}"
        for option, there in {**given, "--adapt": args.adapt, "--reuse": args.reuse}.items():
            if there:
                raise InputError(f"{option} cannot be combined with {power}")
        if args.conditions_at:
            raise InputError(f"--conditions-at cannot be combined with {power}")
    share = has_share(args)
    if share:
        for option, there in {**given, "--adapt": args.adapt, "--reuse": args.reuse}.items():
            if there:
                raise InputError(f"{option} cannot be combined with an --accuracy-budget in percent")
    timed = next((f"--{name}" for name in ("interval", "arrivals") if vars(args)[name] is not None), None)
    if share and (power or timed):
        raise InputError(f"{power or timed} cannot be combined with an --accuracy-budget in percent")
    if args.batches and args.schedule:
        raise InputError("--schedule cannot be combined with --batches: it is for one batch size")
    for name, value in args.size:
        if args.adapt and not isinstance(value, int):
            raise InputError(f"--size: several lengths of {name!r} cannot be combined with --adapt")
    if args.device == "golden" and (args.adapt or args.conditions_at or power or timed):
        option = power or timed or ("--adapt" if args.adapt else "--conditions-at")
        raise InputError(f"{option} needs --device rtl: the golden model has no clock")
    if args.adapt and args.model.suffix.lower() == PACKAGE_SUFFIX:
        raise InputError(f"{args.model} is already compiled: --adapt needs the model itself")
    own = [name for name in vars(args) if name.startswith(("endpoint", "target_"))]
    for name in ("trials_per_request", "adapt_from", "schedule", "method", "generator", "clock", *own):
        if vars(args)[name] is not None and not args.adapt and not (name == "clock" and (power or timed)):
            others = ", --power-cap, --deadline, --interval or --arrivals" if name == "clock" else ""
            raise InputError(f"--{name.replace('_', '-')} requires --adapt{others}")
    if args.picture and args.device == "golden":
        raise InputError("--picture needs --device rtl: the golden model has no clock")
    if args.json == "-" and not args.out:
        raise InputError("--json - needs --out FILE: the JSON lines go to standard output")


def _reusing(args: argparse.Namespace) -> "CompiledNetwork | None":
    """Return the network that reuses results, if `--reuse` is given."""
    from compiler.cli.run import network_of

    return network_of(args) if args.reuse else None


def _audits(args: argparse.Namespace) -> "Audits | None":
    """Return the cascade and the settings of its audits, if `--accuracy-budget` is a share of requests."""
    from compiler.cli.run import network_of
    from compiler.online_tuning.serve import Audits

    return Audits(network_of(args), args.seed, used_database(args)) if has_share(args) else None


def exactly(args: argparse.Namespace) -> argparse.Namespace:
    """Return the options with which the exact network of a cascade is compiled."""
    from compiler.cli.compile import model_source

    if args.model.suffix.lower() == PACKAGE_SUFFIX:
        return args  # the options are rejected
    floating = model_source(args).floating
    return argparse.Namespace(
        **vars(args) | {"accuracy_budget": None, "calibrate": args.calibrate if floating else None}
    )


def _network(args: argparse.Namespace) -> "tuple[CompiledNetwork, SearchJob | None]":
    """Return the initial network, and the search job if `--adapt` is given."""
    from compiler.cli.compile import compile_model, read_schedule, source_of
    from compiler.cli.run import network_of
    from compiler.online_tuning.search_worker import SearchJob
    from compiler.tuning.constraints import Objective
    from compiler.util.progress import log
    from hw.config import load_target

    args = argparse.Namespace(**vars(args) | {"reuse": False})
    args = exactly(args) if has_share(args) else args
    if not args.adapt:
        return network_of(args), None
    targets = targets_of(args, Objective.THROUGHPUT)
    generator = generator_of(args, log)
    source, options = source_of(args)
    job = SearchJob(
        source.graph,
        load_target(args.target),
        replace(options, batches=()),  # the batch size to tune is chosen while serving
        args.method,
        seed=args.seed,
        db=writable_database(args),
        endpoint=generator.endpoint if generator else None,
        generators=tuple(args.generator or ()),
        targets=targets,
    )
    schedule = read_schedule(args.schedule) if args.schedule else None
    if args.batches:  # the search finds the best known schedules of each size
        args = argparse.Namespace(**vars(args) | {"no_db": True, "db": None})
    return compile_model(args, schedule, job.graph), job


def _guarded(args: argparse.Namespace) -> "CompileOptions | None":
    """Return the options of the network whose programs have guards; None if there is none."""
    from compiler.cli.compile import source_of

    if not (args.batches or args.reuse or args.skip is not None):
        return None
    _, options = source_of(args)
    return options


def _change(text: str) -> "Change":
    """Parse an argument, `K:latency=CYCLES,bytes=RATE,throttle=SHARE`, in which fields may be omitted."""
    from compiler.online_tuning.serve import Change
    from cosim.checks import MAX_THROTTLE

    at, _, rest = text.partition(":")
    pairs = [each.partition("=") for each in rest.split(",")]
    values = {name: value for name, _, value in pairs}
    try:
        if len(values) != len(pairs) or not values.keys() <= {"latency", "bytes", "throttle"}:
            raise ValueError
        change = Change(
            int(at),
            int(values.get("latency", 100)),
            float(values["bytes"]) if "bytes" in values else None,
            float(values.get("throttle", 0)),
        )
    except ValueError:
        change = None
    if (
        change is None
        or change.at < 0
        or not 1 <= change.latency <= MAX_DRAM_VALUE
        or not 0.01 <= (1 if change.rate is None else change.rate) <= MAX_DRAM_VALUE
        or not 0 <= change.throttle <= MAX_THROTTLE
    ):
        raise argparse.ArgumentTypeError(
            f"must be K:latency=CYCLES,bytes=RATE,throttle=SHARE such as 20:latency=400,bytes=4, not {shown(text)}"
        )
    return change
