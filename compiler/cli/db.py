"""`mla db`: inspects, exports and imports the measurement database."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cli.options import add_db, add_json, check_files
from compiler.util.files import atomic_output, report
from compiler.util.tables import counted

if TYPE_CHECKING:
    from compiler.profile.measurement import HardwareProfile
    from compiler.tuning_db.database import DatabaseSummary

SUMMARY = "inspect, export or import the measurement database"
EXAMPLE = "mla db show --db measurements.db"
DIGEST_DIGITS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    actions = parser.add_subparsers(dest="action", metavar="show|export|import", required=True)
    show = actions.add_parser(
        "show",
        help="show the number of entries per model and hardware profile",
        epilog="example: mla db show --db measurements.db",
    )
    add_json(show)
    export = actions.add_parser(
        "export",
        help="write all entries except programs to a file",
        epilog="example: mla db export measurements.jsonl",
    )
    export.add_argument("file", metavar="FILE.jsonl", type=Path, help="file of JSON lines")
    import_ = actions.add_parser(
        "import",
        help="add entries of an exported file that are missing from the database",
        epilog="example: mla db import measurements.jsonl",
    )
    import_.add_argument(
        "file",
        metavar="FILE.jsonl",
        type=Path,
        help="file of JSON lines; its results are hints and are measured again before use",
    )
    for action in (show, export, import_):
        add_db(action, optional=False)


def run(args: argparse.Namespace) -> int:
    """Show, export or import the entries of the database."""
    from compiler.tuning_db.database import TuningDatabase
    from hw.errors import InputError

    check_files(args, *(["file"] if args.action == "export" else []))
    if args.action != "import" and isinstance(args.db, Path) and not args.db.exists():
        raise InputError(f"--db: there is no database {args.db}")
    with TuningDatabase(args.db, read_only=args.action != "import") as database:
        if args.action == "show":
            document = _document(database.summary())
            report(document, _table(document), args.json)
        elif args.action == "export":
            with atomic_output(args.file) as path:
                print(_entries(database.export(path)) + " written")
        else:
            print(_entries(database.import_(args.file)) + " added")
    return 0


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def _document(found: "DatabaseSummary") -> dict[str, Any]:
    return {
        "profiles": found.profiles,
        "trials": found.trials,
        "programs": found.programs,
        "executions": found.executions,
        "searched": [
            {
                "subgraph": each.subgraph,
                "profile": each.profile,
                "machine": None if each.conditions is None else _machine(each.conditions),
                "trials": each.trials,
                "cycles": each.cycles,
            }
            for each in found.searched
        ],
    }


def _machine(conditions: "HardwareProfile") -> dict[str, Any]:
    config = conditions.config
    return {
        "n": config.n,
        "sp_bytes": config.sp_bytes,
        "acc_bytes": config.acc_bytes,
        "latency": conditions.dram.latency,
        "bytes_per_cycle": conditions.rate,
    }


def _table(document: dict[str, Any]) -> str:
    lines = [
        ", ".join(
            counted(document[f"{noun}s"], noun) for noun in ("profile", "trial", "program", "execution")
        )
    ]
    for each in document["searched"]:
        machine = each["machine"]
        where = f"profile {each['profile'][:DIGEST_DIGITS]}"
        if machine is not None:
            where = (
                f"n={machine['n']}, {machine['sp_bytes'] >> 10}+{machine['acc_bytes'] >> 10} KiB, "
                f"latency {machine['latency']}, {machine['bytes_per_cycle']:g} bytes per cycle"
            )
        best = "none measured" if each["cycles"] is None else f"best {each['cycles']:,} cycles"
        lines.append(
            f"model {each['subgraph'][:DIGEST_DIGITS]} on {where}: {counted(each['trials'], 'trial')}, {best}"
        )
    return "\n".join(lines)
