"""`mla compile`: compiles a model to a file that can be run without the compiler."""

import argparse
import inspect
import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cli.exit_status import report, targets_status, warn
from compiler.cli.options import (
    add_clock,
    add_db,
    add_json,
    add_memory,
    add_performance_targets,
    add_seed,
    add_target,
    bound,
    check_database,
    check_files,
    database_of,
    dram_of,
    integer,
    performance_targets,
    size,
)
from compiler.options import PASSES
from compiler.util.files import PACKAGE_SUFFIX, write_output
from compiler.util.tables import Column, counted, format_table

if TYPE_CHECKING:
    from compiler.cache.model_source import ModelSource
    from compiler.ir.graph import Graph
    from compiler.options import AccuracyBudget, CompileOptions, HostCosts
    from compiler.pipeline import CompilationTrace
    from compiler.quantize.ranges import Sample
    from compiler.runtime.compiled import CompiledNetwork
    from compiler.schedule.schedule import Schedule

SUMMARY = "compile a model to a .mla file"
#: Maximum batch size, since all samples of a batch are in memory at once.
MAX_BATCH = 4096
#: Maximum number of labeled samples that also calibrate a float model.
MAX_CALIBRATION = 64
EXAMPLE = "mla compile network.tflite -o network.mla --target n8"

#: Help text about PyTorch models, shared by all verbs.
REFERENCE = (
    "or module:function: Python code that is imported and executed; the function returns a PyTorch module, or "
    "(module, example inputs)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.add_argument("model", metavar="MODEL", type=Path, help=f"a .tflite or .onnx file, {REFERENCE}")
    parser.add_argument("-o", "--output", metavar="FILE.mla", type=Path, required=True, help="file to write")
    parser.add_argument(
        "--schedule", metavar="FILE.json", type=Path, help="use this schedule instead of the heuristic one"
    )
    parser.add_argument(
        "--save-schedule", metavar="FILE.json", type=Path, help="write the schedule that was used"
    )
    add_db(parser)
    parser.add_argument("--listing", metavar="FILE.s", type=Path, help="write the programs as assembly text")
    add_compile(parser, fuse=True)
    add_dispatch(parser)
    add_clock(
        parser,
        "clock frequency, for targets that are times or rates, and for the passes place_on_host and unroll_loops",
    )
    add_performance_targets(parser)
    add_target(parser)
    add_memory(parser, ", assumed for scheduling")
    add_seed(parser)
    add_json(parser)


def add_compile(parser: argparse.ArgumentParser, *, fuse: bool = False) -> None:
    """Add the options shared by all verbs that compile models, and `--fuse` for those that choose no schedules."""
    parser.add_argument("--strict", action="store_true", help="fail if an operator would run on the host")
    parser.add_argument(
        "--rounding",
        choices=("reference", "xnnpack", "onnxruntime"),
        help="reproduce the rounding of TFLite's reference kernels, TFLite's default (XNNPACK) kernels, or onnxruntime "
        "(default: onnxruntime for ONNX files and PyTorch, else reference)",
    )
    parser.add_argument(
        "--calibrate",
        metavar="FILE",
        type=Path,
        help="quantize a float model with these calibration samples: .npy, or .npz with one array per input",
    )
    parser.add_argument(
        "--keep-float",
        metavar="NODE",
        action="append",
        default=[],
        help="do not quantize this node of a float model (or all nodes of this operator): run it in float32 on the "
        "host (repeatable)",
    )
    parser.add_argument(
        "--int16",
        metavar="NODE",
        action="append",
        default=[],
        help="quantize the activations of this node of a float model (or of all nodes of this operator, or of `all` "
        "nodes) to int16 instead of int8 (repeatable); `auto`: of as few results as meet --accuracy-budget (default: "
        "30 dB) relative to the float model",
    )
    parser.add_argument(
        "--accuracy-budget",
        metavar="LOSS",
        type=_accuracy_loss,
        help="round the weights of each layer, also those of a quantized model, to as few bits as this loss on the "
        "samples of --calibrate permits, measured on those to which the weights are not fitted: N samples labelled "
        "worse (the file then has the labels in y), or a signal-to-noise ratio such as 30dB; a share of the requests "
        "such as 0.5%% makes a cascade, whose exact network runs if the label of one with few bits is not certain "
        "(default: none, 8 bits)",
    )
    for option, text in (("--enable", "run"), ("--disable", "do not run")):
        parser.add_argument(
            option,
            metavar="PASS",
            choices=tuple(PASSES),
            action="append",
            default=[],
            help=f"{text} this graph pass (repeatable; --passes lists all)",
        )
    parser.add_argument(
        "--host",
        metavar="NODE",
        action="append",
        default=[],
        help="run this node (or all nodes of this operator) on the host (repeatable)",
    )
    parser.add_argument(
        "--keep-on-accelerator",
        metavar="NODE",
        action="append",
        default=[],
        help="the pass place_on_host leaves this node (or all nodes of this operator) on the accelerator (repeatable)",
    )
    parser.add_argument(
        "--unroll",
        metavar="[NODE=]FACTOR",
        type=_unrolled,
        action="append",
        default=[],
        help="compute FACTOR steps in each iteration of this loop (default: of all loops) whose number of iterations "
        "is known; 1 for a loop as in the model, `full` for none (repeatable; default: by estimated costs)",
    )
    parser.add_argument(
        "--passes", action=ListPasses, help="list the graph passes that can be switched, and exit"
    )
    parser.add_argument(
        "--batch",
        metavar="B",
        type=integer(1, MAX_BATCH),
        help="batch size: the weights are loaded once per B samples (default: 1)",
    )
    parser.add_argument(
        "--size",
        metavar="NAME=N",
        type=size,
        action="append",
        default=[],
        help="size of a symbolic dimension of an .onnx file or a dynamic dimension of a PyTorch module (repeatable); "
        "NAME=FIRST..LAST[:STEP]: programs for all these lengths, of which the chip selects one at run time",
    )
    parser.add_argument(
        "--bind",
        metavar="NAME=VALUE",
        type=bound,
        action="append",
        default=[],
        help="make an input constant: a number for all its elements, or a .npy file (repeatable)",
    )
    for name, memory in (
        ("sp", "scratchpad memory"),
        ("acc", "accumulator memory"),
        ("dram", "DRAM for weights and results"),
    ):
        parser.add_argument(
            f"--{name}-limit",
            metavar="BYTES",
            type=integer(1, 1 << 32),
            help=f"use at most BYTES of {memory}",
        )
    if fuse:
        parser.add_argument(
            "--fuse",
            action="store_true",
            help="improve the chosen schedule by fusions and tilings of adjacent layers whose predicted gain exceeds "
            "its expected error; takes seconds",
        )
    parser.add_argument("--no-cache", action="store_true", help="ignore cached compilations and proofs")


def _accuracy_loss(text: str) -> dict[str, int | float]:
    """Parse an argument, a number of labels, decibels as `30dB` or `0.5%`: the arguments of an AccuracyBudget."""
    from hw.errors import shown

    number = re.fullmatch(r"(\d{1,9})|(\d{1,3}(?:\.\d{1,9})?) ?([dD][bB]|%)", text, re.ASCII)
    most = 100 if number and number[3] == "%" else math.inf
    if number is None or (number[2] and not 0 < float(number[2]) < most):
        raise argparse.ArgumentTypeError(
            "must be a number of labels, decibels such as 30dB, or more than 0% and less than 100% of the requests, "
            f"not {shown(text)}"
        )
    if number[1]:
        return {"worse": int(number[1])}
    return {"share": float(number[2]) / 100} if number[3] == "%" else {"sqnr_db": float(number[2])}


def has_share(args: argparse.Namespace) -> bool:
    """Return True if `--accuracy-budget` is a share of requests, which makes the network a cascade."""
    return "share" in (args.accuracy_budget or {})


def _unrolled(text: str) -> tuple[str, int]:
    """Parse an argument, `FACTOR` or `NODE=FACTOR`: the name of a loop and its factor, 0 for `full`."""
    from hw.errors import shown

    name, equals, factor = text.rpartition("=")
    digits = factor.isascii() and factor.isdigit() and 0 < len(factor) < 10 and int(factor)
    if not (digits or factor == "full") or (equals and not name):
        raise argparse.ArgumentTypeError(
            f"must be FACTOR or NODE=FACTOR, FACTOR an integer of at least 1 or full, not {shown(text)}"
        )
    return name or "loop", 0 if factor == "full" else int(factor)


class ListPasses(argparse.Action):
    """Option that prints the graph passes and ends the program."""

    def __init__(self, option_strings: list[str], dest: str, **settings: Any):
        super().__init__(
            option_strings, argparse.SUPPRESS, 0, default=argparse.SUPPRESS, help=settings["help"]
        )

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the name, the default and the description of each pass."""
        columns = [Column("pass"), Column("default"), Column("effect")]
        rows = [[name, "on" if each.default else "off", each.text] for name, each in PASSES.items()]
        print(format_table(columns, rows))
        parser.exit()


def add_dispatch(parser: argparse.ArgumentParser) -> None:
    """Add the options for networks that choose among several programs at run time."""
    parser.add_argument(
        "--batches",
        metavar="B,B,...",
        type=batches,
        default=(),
        help="compile one program per batch size; the chip selects the smallest sufficient batch size at run time",
    )
    parser.add_argument(
        "--skip",
        metavar="TENSOR",
        help="skip the work that follows this tensor (or the output of this node) when it is all zeros",
    )
    parser.add_argument(
        "--reuse",
        action="store_true",
        help="write the previous results again when the inputs equal those of the previous sample",
    )
    parser.add_argument(
        "--reuse-regions",
        dest="reuse",
        action="store_const",
        const="regions",
        help="as --reuse; if a part of an image has changed, compute only what depends on it",
    )


def batches(text: str) -> tuple[int, ...]:
    """Parse an argument: batch sizes as `B,B,...`."""
    return tuple(integer(1, MAX_BATCH)(part) for part in text.split(","))


def compile_model(
    args: argparse.Namespace,
    schedule: "Schedule | None" = None,
    graph: "Graph | None" = None,
    record: "CompilationTrace | None" = None,
    target: str | None = None,
) -> "CompiledNetwork":
    """Compile `args.model`, or `graph` if given, with the options of `add_compile`; `target` overrides `--target`.

    Verbs with `--db` use the best known schedule in the database.
    """
    from compiler.api import compile
    from compiler.util.progress import progress

    use_cache = record is None and not args.no_cache
    source, options = source_of(args, graph, use_cache)
    with progress(f"compiling {args.model.name}"), _named_options(args):
        return compile(
            source,
            target or args.target,
            rounding=options.rounding,
            schedule=schedule,
            strict=options.strict,
            calibration=options.calibration,
            seed=options.seed,
            batch=options.batch,
            batches=options.batches,
            skip=options.skip,
            reuse=options.reuse,
            keep_float=options.keep_float,
            int16=options.int16,
            accuracy_budget=options.accuracy_budget,
            enable=options.enable,
            disable=options.disable,
            host=options.host,
            keep_on_accelerator=options.keep_on_accelerator,
            host_costs=options.host_costs,
            unroll=dict(options.unroll),
            dram=options.dram,
            limits=options.limits,
            fuse=options.fuse,
            cache=use_cache,
            database=database_of(args) if "db" in vars(args) else False,
            record=record,
        )


@contextmanager
def _named_options(args: argparse.Namespace) -> Iterator[None]:
    """Replace a parameter name of `compiler.compile` at the start of an error message by the option's name."""
    from compiler.api import compile
    from hw.errors import InputError

    options = (inspect.signature(compile).parameters.keys() & vars(args).keys()) - {"model"}
    try:
        yield
    except InputError as error:
        name, text = re.fullmatch(r"(\w*)(.*)", str(error), re.DOTALL).groups()  # type: ignore[union-attr]
        if name in options:
            raise InputError(f"--{name.replace('_', '-')}{text}") from None
        raise


def _check_limits(args: argparse.Namespace) -> None:
    """Raise InputError if a limit of on-chip memory is too small for the target."""
    from compiler.options import MemoryLimits
    from hw.config import load_target
    from hw.errors import InputError

    config = load_target(args.target)
    for option, limits in (
        ("--sp-limit", MemoryLimits(sp_bytes=args.sp_limit)),
        ("--acc-limit", MemoryLimits(acc_bytes=args.acc_limit)),
    ):
        try:
            limits.within(config)
        except InputError as error:
            raise InputError(f"{option}: {error}") from None


def source_of(
    args: argparse.Namespace, graph: "Graph | None" = None, use_cache: bool = False
) -> "tuple[ModelSource, CompileOptions]":
    """Return the model source and the compile options that the options of `add_compile` and `--seed` specify."""
    from compiler.cache.model_source import ModelSource
    from compiler.cli.inputs import read_labeled, read_samples
    from compiler.options import DEFAULT_DRAM, CompileOptions, MemoryLimits

    if "target" in vars(args):
        _check_limits(args)
    source, labeled = model_source(args, graph, use_cache), vars(args).get("data")
    calibration, budget = None, None
    if args.accuracy_budget:
        calibration, budget = _budgeted(args, source)
    elif args.calibrate:
        calibration = read_samples(source.inputs, args.calibrate, None, args.seed)
    elif labeled and source.floating:
        limit = min(args.limit or MAX_CALIBRATION, MAX_CALIBRATION)
        calibration, _ = read_labeled(labeled, limit, source.inputs, "reference")
        warn(
            f"no --calibrate file: quantizing with the first {counted(len(calibration), 'sample')} of {labeled}, which "
            "the accuracy is also measured on"
        )
    dram = dram_of(args) if "dram_latency" in vars(args) else DEFAULT_DRAM
    return source, CompileOptions(
        rounding=args.rounding or ModelSource(args.model).rounding,
        strict=args.strict,
        calibration=calibration,
        seed=args.seed,
        batch=args.batch or 1,
        batches=vars(args).get("batches", ()),
        skip=vars(args).get("skip"),
        reuse=vars(args).get("reuse", False),
        keep_float=tuple(args.keep_float),
        int16=tuple(args.int16),
        enable=tuple(args.enable),
        disable=tuple(args.disable),
        host=tuple(args.host),
        keep_on_accelerator=tuple(args.keep_on_accelerator),
        host_costs=_host_costs(args),
        unroll=tuple(sorted(dict(args.unroll).items())),
        accuracy_budget=budget,
        dram=dram,
        limits=MemoryLimits(args.sp_limit, args.acc_limit, args.dram_limit),
        fuse=vars(args).get("fuse", False),
    )


def _budgeted(args: argparse.Namespace, source: "ModelSource") -> "tuple[list[Sample], AccuracyBudget]":
    """Return the calibration samples and the accuracy budget, with the labels of the samples if it is one of labels."""
    from compiler.cli.inputs import has_labels, read_labeled, read_samples
    from compiler.options import AccuracyBudget
    from hw.errors import InputError

    if not args.calibrate:
        raise InputError("--accuracy-budget needs calibration samples (--calibrate)")
    if has_share(args) and has_labels(args.calibrate):  # which do not matter: changes of labels count
        samples, _ = read_labeled(args.calibrate, None, source.inputs, "reference")
        return samples, AccuracyBudget(**args.accuracy_budget)
    if "worse" not in args.accuracy_budget:
        samples = read_samples(source.inputs, args.calibrate, None, args.seed)
        return samples, AccuracyBudget(**args.accuracy_budget)
    samples, labels = read_labeled(args.calibrate, None, source.inputs, "reference")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InputError(f"{args.calibrate}: the labels in y must be one integer for each sample")
    return samples, AccuracyBudget(**args.accuracy_budget, labels=tuple(int(label) for label in labels))


def _host_costs(args: argparse.Namespace) -> "HostCosts":
    """Return the costs of this host, at the clock frequency of `--clock`, if a pass reads them."""
    from compiler.options import DEFAULT_HOST_COSTS, host_costs_path, read_host_costs

    clock = vars(args).get("clock")
    costs = read_host_costs(host_costs_path()) if "place_on_host" in args.enable else DEFAULT_HOST_COSTS
    return costs if clock is None else replace(costs, clock=clock)


def report_provenance(args: argparse.Namespace, network: "CompiledNetwork") -> None:
    """Print where the network came from and the time this took, and the number of schedules from the database."""
    print(f"{args.verb}: {network.provenance}", file=sys.stderr, flush=True)
    known = [each for each in network.sources if each.source == "database"]
    if network.sources:
        proposers = ", ".join(sorted({each.proposer for each in known if each.proposer}))
        print(
            f"{args.verb}: the database has better schedules for {len(known)} of "
            f"{counted(len(network.sources), 'layer')}{f' ({proposers})' if proposers else ''}",
            file=sys.stderr,
            flush=True,
        )


def model_source(
    args: argparse.Namespace, graph: "Graph | None" = None, use_cache: bool = False
) -> "ModelSource":
    """Return the model source that the options of `add_compile` specify; `graph`, if given, replaces the model."""
    from compiler.cache.content_store import ContentStore
    from compiler.cache.model_source import ModelSource
    from compiler.cli.inputs import first_labeled, first_sample, read_bound
    from compiler.frontends.torch_module import is_reference

    example, labeled = None, vars(args).get("data")
    if graph is None and is_reference(args.model):
        given = args.calibrate or vars(args).get("input")
        example = first_labeled(labeled) if labeled and not given else first_sample(given)
    return ModelSource(
        args.model if graph is None else graph,
        ContentStore() if use_cache else None,
        sizes=dict(args.size),
        example=example,
        bind=read_bound(args.bind),
    )


def read_schedule(path: Path) -> "Schedule":
    """Read a schedule from a JSON file.

    Raises
    ------
    InputError
        The file cannot be read or is not a valid schedule.
    """
    from compiler.schedule.schedule import Schedule
    from compiler.util.files import read_input
    from hw.errors import InputError

    data = read_input(path)
    try:
        return Schedule.from_json(data.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"{path} must be UTF-8 text: {error.reason}") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def run(args: argparse.Namespace) -> int:
    """Compile and write the output files."""
    from compiler.cli.run_report import memory_lines
    from compiler.ir.identity import stored
    from compiler.options import target_lines
    from compiler.quantize.report import summary
    from compiler.runtime.package_writer import to_bytes
    from compiler.runtime.program_text import listing
    from compiler.runtime.run_report import lengths_of, memory_use, sources
    from hw.errors import InputError

    check_files(args, "output", "save_schedule", "listing")
    check_database(args)
    device = args.output.exists() and not args.output.is_file()  # such as /dev/null
    if args.output.suffix.lower() != PACKAGE_SUFFIX and not device:
        raise InputError(
            f"--output: {args.output} must end in {PACKAGE_SUFFIX}, the suffix of compiled networks"
        )
    goals = performance_targets(args)
    network = compile_model(args, read_schedule(args.schedule) if args.schedule else None)
    write_output(args.output, to_bytes(network))
    report_provenance(args, network)
    if args.save_schedule:
        write_output(args.save_schedule, network.schedule.to_json().encode() + b"\n")
    programs = [program for code in network.codes for program in code.all_programs]
    if args.listing:
        write_output(args.listing, listing(network).encode())
    document = {
        "model": str(args.model),
        "target": Path(args.target).stem,
        "dram": {
            "latency": args.dram_latency,
            "bytes_per_cycle": args.dram_bytes_per_cycle or network.config.beat_bytes,
            "throttle": args.throttle,
            "used": True,  # used for scheduling; the file runs with any DRAM timing
        },
        "layers": len(network.infos),
        "programs": [{"name": program.name, "words": len(program.words)} for program in programs],
        "memory": memory_use(network),
        "schedules": sources(network),
        "batch": network.batch,
        "batches": network.batches,
        "lengths": lengths_of(network),
        "compile_seconds": network.compile_seconds,
        "origin": network.origin,
        "host_ops": [vars(each) for each in network.host],
        "removed": [vars(each) for each in network.removed],
        "rewritten": [stored(each) for each in network.rewritten],
        "quantization": None if network.quantization is None else network.quantization.document(),
    }
    rate = args.dram_bytes_per_cycle or network.config.beat_bytes
    floor = network.floor.cycles(network.config, rate) / network.batch
    document["performance_targets"] = goals.judged(floor, floor, None, bound=True)
    text = (
        f"{counted(len(network.infos), 'layer')} in {counted(len(programs), 'program')} of "
        f"{counted(sum(len(program.words) for program in programs), 'word')}; "
        f"{sum(code.memory for code in network.codes):,} bytes of DRAM"
    )
    lines = [f"runs on the host: {each.node} ({each.op}): {each.reason}" for each in network.host]
    lines += [str(each) for each in (*network.removed, *network.rewritten)]
    lines += memory_lines(document["memory"])
    if network.quantization is not None:
        lines += summary(network.quantization.document())
    lines += target_lines(document["performance_targets"])
    report(document, "\n".join([*lines, text]), args.json)
    return targets_status(document["performance_targets"])
