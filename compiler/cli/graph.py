"""`mla graph`: prints or draws a model at any stage of the compiler."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.cli.compile import REFERENCE, add_compile, add_dispatch, has_share
from compiler.cli.options import add_memory, add_seed, add_target, check_files, dram_of, fixed_sizes, integer
from compiler.util.files import print_text, write_output
from hw.errors import InputError, did_you_mean, shown

if TYPE_CHECKING:
    from compiler.ir.graph import Graph
    from compiler.pipeline import CompilationTrace
    from compiler.runtime.compiled import CompiledNetwork
    from compiler.visualize.plan import PlanRequest
    from compiler.visualize.view import View

SUMMARY = "print or draw a model at any stage of the compiler"
EXAMPLE = "mla graph network.onnx --stage scheduled --format svg -o network.svg"

#: Stage that shows the programs that follow the data.
_PLAN = "plan"
_FORMATS = ("text", "dot", "svg", "json")
#: Format by suffix of the output file.
_SUFFIXES = {"": "text", ".txt": "text", ".text": "text", ".dot": "dot", ".svg": "svg", ".json": "json"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.add_argument("model", metavar="MODEL", type=Path, help=f"a .onnx or .tflite file, {REFERENCE}")
    parser.add_argument(
        "--stage",
        metavar="S",
        help="imported, the name of a pass, quantized, reduced, partitioned, layers, scheduled, placed, programs, "
        "timeline, or plan: the programs that mla serve --no-db runs for the requests of --input, and what they cost "
        "(default: a listing of the imported model)",
    )
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        help="text, Graphviz dot, SVG, or networkx node-link JSON (default: by the suffix of FILE, else text)",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="file to write (default: standard output)"
    )
    parser.add_argument(
        "--input",
        metavar="FILE",
        type=Path,
        help="for stage plan: requests, as for mla serve (default: none)",
    )
    parser.add_argument(
        "--requests",
        metavar="N",
        type=integer(1),
        help="for stage plan: number of requests; a file is repeated as needed (default: all samples of the input)",
    )
    parser.add_argument(
        "--device",
        choices=("rtl", "golden"),
        help="for stage plan: device that serves the requests and measures the programs; the golden model has no clock "
        "(default: rtl)",
    )
    add_compile(parser)
    add_dispatch(parser)
    add_target(parser)
    add_memory(parser, ", for stages placed, timeline and plan")
    add_seed(parser)


def run(args: argparse.Namespace) -> int:
    """Print the model at the requested stage, or write it to a file."""
    from compiler.passes import FORMER_NAMES
    from compiler.visualize.formats import FORMATS
    from compiler.visualize.stages import STAGES, view_of

    named = FORMER_NAMES.get(args.stage, args.stage)
    if named is not None and named not in (*STAGES, _PLAN):
        near = did_you_mean(args.stage, [*STAGES, _PLAN])
        raise InputError(f"--stage must be one of {', '.join((*STAGES, _PLAN))}, not {shown(named)}{near}")
    check_files(args, "output")
    form = _format(args)
    if named != _PLAN:
        _check_plan_options(args)
    if named == _PLAN:
        text = FORMATS[form](_plan(args))
    elif named is None and form == "text":
        text = str(_read(args))
    else:
        stage = named or "imported"
        text = FORMATS[form](view_of(_record(args, stage), stage))
    if args.output:
        write_output(args.output, text.rstrip("\n").encode() + b"\n")
    else:
        print_text(text.rstrip("\n"))
    return 0


def _check_plan_options(args: argparse.Namespace) -> None:
    """Raise InputError if an option is given that applies to stage plan only."""
    given = {
        "--input": args.input,
        "--requests": args.requests,
        "--device": args.device,
        "--batches": args.batches,
        "--skip": args.skip,
        "--reuse-regions" if args.reuse == "regions" else "--reuse": args.reuse,
    }
    for option, value in given.items():
        if value not in (None, False, ()):
            raise InputError(f"{option} requires --stage {_PLAN}")


def _plan(args: argparse.Namespace) -> "View":
    """Return the view of the plan."""
    from compiler.visualize.plan import plan_of, plan_view

    return plan_view(plan_of(_plan_request(args)))


def _plan_request(args: argparse.Namespace) -> "PlanRequest":
    """Compile the network as usual and with the options of dispatch, and read the requests."""
    import numpy as np

    from compiler.cli import serve
    from compiler.cli.compile import compile_model
    from compiler.cli.request_stream import requests_of
    from compiler.frontends.model import check_suffix
    from compiler.frontends.torch_module import is_reference
    from compiler.ir.graph import random_input
    from compiler.passes.index_bounds import index_bounds
    from compiler.pipeline import CompilationTrace
    from compiler.visualize.plan import PlanRequest
    from hw.config import load_target

    if not is_reference(args.model):
        check_suffix(args.model)
    options = _as_serve(args)
    serve.check_options(options)
    if args.requests is not None and args.input is None:
        raise InputError("--requests requires --input")
    following, option = _chosen(options)
    record = CompilationTrace(load_target(args.target), args.rounding or "reference", dram_of(args))
    plain = _without_dispatch(options)
    compile_model(plain, record=record)
    serving = serve.serving_of(options)
    network = {
        "reuse": serving.reusing,
        "cascade": serving.audits and serving.audits.cascade,
        "network": serving.network,
    }.get(following)
    requests = [] if args.input is None else list(requests_of(options, serving.network).each)
    if requests:
        sample = requests[0].inputs
    else:
        rng, bounds = np.random.default_rng([args.seed, 0]), index_bounds(serving.network)
        sample = {tensor.name: random_input(rng, tensor, bounds) for tensor in serving.network.sample}
    others = _others(plain, record, option)
    return PlanRequest(record, serving, network, option, requests, sample, others, options.device)


def _as_serve(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments of `mla serve --no-db` with the same options."""
    from compiler.cli import serve

    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    defaults = vars(parser.parse_args([str(args.model), "--no-db"]))
    given = {name: value for name, value in vars(args).items() if value is not None or name not in defaults}
    return argparse.Namespace(**defaults | given)


def _without_dispatch(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with which the network is compiled as usual, for the longest of several lengths."""
    from compiler.cli.serve import exactly

    sizes = [(name, value if isinstance(value, int) else value[-1]) for name, value in args.size]
    plain = argparse.Namespace(**vars(args) | {"reuse": False, "skip": None, "batches": (), "size": sizes})
    return exactly(plain) if has_share(args) else plain


def _chosen(args: argparse.Namespace) -> tuple[str, str]:
    """Return which network follows the data, and the options of `mla serve` that select it; both may be empty."""
    for name, value in args.size:
        if not isinstance(value, int):
            step = f":{value.step}" if value.step != 1 else ""
            return "network", f"--size {name}={value[0]}..{value[-1]}{step}"
    if args.reuse:
        return "reuse", "--reuse-regions" if args.reuse == "regions" else "--reuse"
    if args.batches:
        return "network", f"--batches {','.join(map(str, args.batches))}"
    if args.skip is not None:
        return "network", f"--skip {args.skip}"
    if has_share(args):
        return "cascade", f"--accuracy-budget {100 * args.accuracy_budget['share']:g}%"
    return "", ""


#: Batch sizes that a plan considers.
_BATCHES = (1, 2, 4)


def _others(
    args: argparse.Namespace, record: "CompilationTrace", chosen: str
) -> "list[tuple[str, Callable[[], CompiledNetwork]]]":
    """Return the strategies that are not chosen, with functions that compile the network with their options.

    With several lengths, there are none: they exclude all other strategies.
    """
    from compiler.cli.compile import compile_model
    from compiler.cli.serve import check_options
    from compiler.quantize.cascade import confidence_of

    def compiled(**options: object) -> "Callable[[], CompiledNetwork]":
        def made() -> "CompiledNetwork":
            changed = argparse.Namespace(**vars(args) | options)
            check_options(changed)
            return compile_model(changed)

        return made

    def cascade() -> "CompiledNetwork":
        confidence_of(record.graphs["quantized"])
        raise InputError("needs a share of the requests (--accuracy-budget 0.5%) and calibration samples")

    def lengths() -> "CompiledNetwork":
        raise InputError("needs a range of a dynamic dimension (--size NAME=FIRST..LAST)")

    if chosen.startswith("--size"):
        return []
    network = record.network
    assert network is not None
    found = [("--reuse", compiled(reuse=True)), ("--reuse-regions", compiled(reuse="regions"))]
    found += [(f"--skip {tensor.name}", compiled(skip=tensor.name)) for tensor in network.stages[0].inputs]
    found.append((f"--batches {','.join(map(str, _BATCHES))}", compiled(batches=_BATCHES)))
    found += [("--accuracy-budget", cascade), ("--size", lengths)]
    kind = chosen.partition(" ")[0]
    return [each for each in found if each[0].partition(" ")[0] != kind]


def _format(args: argparse.Namespace) -> str:
    if args.format or not args.output:
        return args.format or "text"
    suffix = args.output.suffix.lower()
    if suffix not in _SUFFIXES:
        suffixes = ", ".join(filter(None, _SUFFIXES))
        raise InputError(f"{args.output}: the suffix must be {suffixes} or absent unless --format is given")
    return _SUFFIXES[suffix]


def _read(args: argparse.Namespace) -> "Graph":
    from compiler.cli.inputs import first_sample, read_bound
    from compiler.frontends.model import read_model
    from compiler.frontends.torch_module import is_reference

    example = first_sample(args.calibrate) if is_reference(args.model) else None
    return read_model(args.model, fixed_sizes(args), example=example, bind=read_bound(args.bind))


def _record(args: argparse.Namespace, stage: str) -> "CompilationTrace":
    """Record the stages up to `stage`; early stages do not compile the model and also work if compilation fails."""
    from compiler.cli.compile import compile_model
    from compiler.passes import simplify
    from compiler.pipeline import CompilationTrace
    from compiler.visualize.stages import EARLY
    from hw.config import load_target

    graph = _read(args)
    dram = dram_of(args)
    record = CompilationTrace(load_target(args.target), args.rounding or "reference", dram)
    if stage in EARLY:
        record.graphs["imported"] = graph
        simplify(graph, record.graphs)
    else:
        compile_model(args, graph=graph, record=record)
    return record
