"""`mla graph`: prints or draws a model at any stage of the compiler."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.cli.compile import REFERENCE, add_compile
from compiler.cli.options import add_memory, add_seed, add_target, check_files, dram_of, fixed_sizes
from compiler.util.files import print_text, write_output
from hw.errors import InputError, did_you_mean, shown

if TYPE_CHECKING:
    from compiler.ir.graph import Graph
    from compiler.pipeline import CompilationTrace

SUMMARY = "print or draw a model at any stage of the compiler"
EXAMPLE = "mla graph network.onnx --stage scheduled --format svg -o network.svg"

_FORMATS = ("text", "dot", "svg", "json")
#: Format by suffix of the output file.
_SUFFIXES = {"": "text", ".txt": "text", ".text": "text", ".dot": "dot", ".svg": "svg", ".json": "json"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.add_argument("model", metavar="MODEL", type=Path, help=f"a .onnx or .tflite file, {REFERENCE}")
    parser.add_argument(
        "--stage",
        metavar="S",
        help="imported, the name of a pass, quantized, reduced, partitioned, layers, scheduled, placed, programs or "
        "timeline (default: a listing of the imported model)",
    )
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        help="text, Graphviz dot, SVG, or networkx node-link JSON (default: by the suffix of FILE, else text)",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="file to write (default: standard output)"
    )
    add_compile(parser)
    add_target(parser)
    add_memory(parser, ", for stages placed and timeline")
    add_seed(parser)


def run(args: argparse.Namespace) -> int:
    """Print the model at the requested stage, or write it to a file."""
    from compiler.passes import FORMER_NAMES
    from compiler.visualize.formats import FORMATS
    from compiler.visualize.stages import STAGES, view_of

    named = FORMER_NAMES.get(args.stage, args.stage)
    if named is not None and named not in STAGES:
        near = did_you_mean(args.stage, STAGES)
        raise InputError(f"--stage must be one of {', '.join(STAGES)}, not {shown(named)}{near}")
    check_files(args, "output")
    form = _format(args)
    if named is None and form == "text":
        text = str(_read(args))
    else:
        stage = named or "imported"
        text = FORMATS[form](view_of(_record(args, stage), stage))
    if args.output:
        write_output(args.output, text.rstrip("\n").encode() + b"\n")
    else:
        print_text(text.rstrip("\n"))
    return 0


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
