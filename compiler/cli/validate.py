"""`mla validate`: proves that a micro-program is safe, or reports the unsafe instruction."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.cli.options import add_json, add_target, check_files, integer
from compiler.cli.programs import add_call, in_network, in_program, read_program
from compiler.util.files import PACKAGE_SUFFIX, report
from hw.config import DEFAULT_TARGET
from hw.errors import InputError

if TYPE_CHECKING:
    from compiler.validate import ValidationError
    from hw.config import MlaConfig

SUMMARY = "prove that a micro-program is safe"
EXAMPLE = "mla validate copy.mlap --operands 0x4000,0x8000,64 --window 0x4000:0x8000"

_REJECTED = 1
_MAX_CALLS = 1 << 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    parser.add_argument(
        "program",
        metavar="FILE",
        type=Path,
        help="output file of mla asm or mla compile, or assembly text (.s)",
    )
    add_call(parser)
    parser.add_argument(
        "--pinned",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="pinned program: the first one is in segment 0, the next in segment 1, and so on (repeatable)",
    )
    parser.add_argument(
        "--calls",
        metavar="K",
        type=integer(1, _MAX_CALLS),
        default=1,
        help="number of consecutive macro-instructions, or of samples for a network (default: %(default)s)",
    )
    parser.add_argument(
        "--limit",
        metavar="K",
        type=integer(1),
        help="maximum number of instructions executed per macro-instruction",
    )
    parser.add_argument(
        "--require-written",
        action="store_true",
        help="reject reads of on-chip memory that the program has not written",
    )
    add_target(parser, None, f"{DEFAULT_TARGET}, or the target of a compiled network")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prove safety and print the statistics, or print the unsafe instruction and the reason."""
    from hw.config import load_target

    check_files(args)
    if args.program.suffix.lower() == PACKAGE_SUFFIX:
        return _network(args)
    return _program(args, load_target(args.target or DEFAULT_TARGET))


def _network(args: argparse.Namespace) -> int:
    """Validate a compiled network with the operands, windows and target that it contains."""
    from compiler.cli.run import check_machine
    from compiler.runtime.package_writer import read_package
    from compiler.runtime.validation import validate_network
    from compiler.util.progress import progress
    from compiler.validate import ValidationError

    if args.operands or args.window or args.pinned or args.limit is not None:
        raise InputError(
            f"{args.program} is a compiled network, which has its own operands, windows and limits"
        )
    network = read_package(args.program)
    if args.target is not None:
        check_machine(args.program, network, args.target)
    try:
        with progress(f"validating {args.program.name}"):
            reports = validate_network(network, samples=args.calls, require_written=args.require_written)
    except ValidationError as error:
        return _reject(args, error, in_network(error, network, args.program))
    stages = [{"stage": index, **found.to_json()} for index, found in reports.items()]
    text = "\n".join(f"stage {index}: {found}" for index, found in reports.items())
    report({"valid": True, "stages": stages}, text or "safe: nothing runs on the accelerator", args.json)
    return 0


def _program(args: argparse.Namespace, config: "MlaConfig") -> int:
    """Validate one program with the given operands and windows."""
    from compiler.util.progress import progress
    from compiler.validate import MacroCall, ValidationError, validate

    paths = [args.program, *args.pinned]
    programs = [read_program(path) for path in paths]
    limit = {} if args.limit is None else {"limit": args.limit}
    try:
        with progress(f"validating {args.program.name}"):
            found = validate(
                config,
                [MacroCall(programs[0], args.operands)] * args.calls,
                args.window,
                pinned=programs[1:],
                require_written=args.require_written,
                **limit,
            )
    except ValidationError as error:
        return _reject(args, error, in_program(error, programs, paths))
    report({"valid": True, **found.to_json()}, str(found), args.json)
    return 0


def _reject(args: argparse.Namespace, error: "ValidationError", where: str) -> int:
    text = f"rejected: {where}: {error.kind}: {error.reason}"
    report({"valid": False, "refusal": error.to_json()}, text, args.json)
    return _REJECTED
