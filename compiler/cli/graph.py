"""`mla graph`: what the compiler has understood of a model."""

import argparse
from pathlib import Path

SUMMARY = "print the graph of a model"
EXAMPLE = "mla graph network.tflite"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="a .tflite file")


def run(args: argparse.Namespace) -> int:
    """Print the text."""
    from compiler.frontends.model import read_model

    print(read_model(args.model))
    return 0
