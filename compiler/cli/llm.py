"""`mla llm`: train the language model, see what it says, and how good it is on layers it has not seen."""

import argparse
from pathlib import Path

from compiler.cli.compile import REFERENCE, add_compile
from compiler.cli.file_conflicts import claim
from compiler.cli.llm_sample import ASKED
from compiler.cli.options import add_json, add_memory, add_seed, add_target, integer

SUMMARY = "train the language model that writes schedules and micro-programs, sample it, evaluate it"
EXAMPLE = "mla llm sample network.tflite --answers 8"
_STEPS, _THEN = 4000, 1000
_SEEDS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    actions = parser.add_subparsers(dest="action", metavar="train|sample|eval", required=True)
    _add_train(
        actions.add_parser(
            "train",
            help="make a model from measurements (needs the extra torch)",
            epilog="example: mla llm train --out model.safetensors",
        )
    )
    _add_sample(
        actions.add_parser(
            "sample",
            help="show what the model says about a network",
            epilog="example: mla llm sample network.tflite --answers 8",
        )
    )
    _add_eval(
        actions.add_parser(
            "eval",
            help="let it and other methods look for schedules of unseen layers",
            epilog="example: mla llm eval --layers 4",
        )
    )


def _add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--corpus",
        metavar="FILE",
        type=Path,
        action="append",
        help="measurements to learn from; again for others (default: those that come with the compiler)",
    )
    parser.add_argument(
        "--steps",
        metavar="N",
        type=integer(1),
        default=_STEPS,
        help="batches of all that was measured (default: %(default)s)",
    )
    parser.add_argument(
        "--then",
        metavar="N",
        type=integer(0),
        default=_THEN,
        help="batches of the best of it, after those (default: %(default)s)",
    )
    parser.add_argument(
        "--from",
        metavar="FILE",
        type=Path,
        dest="start",
        help="go on from this model, which may know fewer words (default: a new one)",
    )
    parser.add_argument(
        "--without-profile", action="store_true", help="do not tell it what a layer costs now"
    )
    parser.add_argument("--without-want", action="store_true", help="do not tell it what is wanted")
    parser.add_argument(
        "--checkpoints",
        metavar="FOLDER",
        type=Path,
        default=Path("build/llm"),
        help="where it is kept meanwhile; a call that was interrupted goes on from there (default: %(default)s)",
    )
    parser.add_argument("-o", "--out", metavar="FILE", type=Path, required=True, help="write the model here")
    add_seed(parser)
    add_json(parser)


def _add_sample(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", type=Path, help=f"a .tflite or .onnx file, {REFERENCE}")
    parser.add_argument(
        "--ask",
        choices=ASKED,
        default=ASKED[0],
        help="what the answers are: schedules of layers, edits of programs, whole programs (default: %(default)s)",
    )
    parser.add_argument("--layer", metavar="NAME", help="of this layer only (default: all)")
    parser.add_argument(
        "--answers",
        metavar="N",
        type=integer(1, 1024),
        default=4,
        help="for each layer (default: %(default)s)",
    )
    parser.add_argument(
        "--unconstrained", action="store_true", help="let it say any words, not only what the grammar allows"
    )
    parser.add_argument(
        "--on-machine",
        action="store_true",
        help="let the machine itself read the questions and write the answers",
    )
    _add_model(parser)
    add_compile(parser)
    add_target(parser)
    add_memory(parser)
    add_seed(parser)
    add_json(parser)


def _add_eval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--layers", metavar="N", type=integer(1, 1000), default=8, help="unseen layers (default: %(default)s)"
    )
    parser.add_argument(
        "--trials", metavar="N", type=integer(1, 4096), default=16, help="of the model (default: %(default)s)"
    )
    parser.add_argument(
        "--others",
        metavar="N",
        type=integer(1, 4096),
        default=64,
        help="of each other method (default: %(default)s)",
    )
    parser.add_argument(
        "--methods",
        metavar="M,M,...",
        default="random,evolution,hpm",
        help="the others (default: %(default)s)",
    )
    parser.add_argument(
        "--machine",
        metavar="NAME",
        default="usual",
        help="a machine of the corpus, or one that is kept out of it (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds",
        metavar="N",
        type=integer(1, _SEEDS),
        default=5,
        help="searches of each (default: %(default)s)",
    )
    parser.add_argument(
        "--samples",
        metavar="N",
        type=integer(0, 4096),
        default=0,
        help="measure so many answers about each layer, without any search, too (default: %(default)s)",
    )
    _add_model(parser)
    add_seed(parser)
    add_json(parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--llm",
        metavar="FILE",
        type=Path,
        help="who is asked (default: the model that comes with the compiler)",
    )
    parser.add_argument(
        "--temperature",
        metavar="T",
        type=float,
        default=1.0,
        help="0: always the likeliest words (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Train, sample or evaluate."""
    from compiler.cli import llm_eval, llm_sample, llm_train

    claim(args, *(["out"] if args.action == "train" else []))
    return {"train": llm_train.run, "sample": llm_sample.run, "eval": llm_eval.run}[args.action](args)
