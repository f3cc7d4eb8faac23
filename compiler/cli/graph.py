"""`mla graph`: what the compiler has understood of a model."""

import argparse
from pathlib import Path

from hw.errors import shown

SUMMARY = "print the graph of a model"
EXAMPLE = "mla graph network.onnx"


def _size(text: str) -> tuple[str, int]:
    name, _, size = text.rpartition("=")
    if not name or not (size.isascii() and size.isdigit() and len(size) < 19 and int(size)):
        raise argparse.ArgumentTypeError(f"must be NAME=N, N at least 1, not {shown(text)}")
    return name, int(size)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="a .onnx or .tflite file")
    parser.add_argument(
        "--size", metavar="NAME=N", type=_size, action="append", default=[],
        help="size of a dimension that an .onnx file only names; again for others",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Print the text."""
    from compiler.frontends.model import read_model

    print(read_model(args.model, dict(args.size)))
    return 0
