"""`mla db`: inspects, exports, imports and merges measurement databases."""

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cli.options import add_db, add_json, check_database, check_files, database_url, integer
from compiler.util.files import atomic_output, report
from compiler.util.tables import Column, counted, figures, format_table

if TYPE_CHECKING:
    from compiler.profile.measurement import HardwareProfile
    from compiler.tuning_db.database import DatabaseSummary
    from compiler.tuning_db.model_versions import ModelVersion
    from compiler.tuning_db.policy_versions import PolicyVersion

SUMMARY = "inspect, export, import or merge measurement databases"
EXAMPLE = "mla db show --db measurements.db"
DIGEST_DIGITS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    actions = parser.add_subparsers(
        dest="action", metavar="show|strategies|models|export|import|merge|push|pull", required=True
    )
    show = actions.add_parser(
        "show",
        help="show the number of entries per model and hardware profile",
        epilog="example: mla db show --db measurements.db",
    )
    add_json(show)
    strategies = actions.add_parser(
        "strategies",
        help="show which search strategies helped against which bottleneck",
        epilog="example: mla db strategies --db measurements.db",
    )
    add_json(strategies)
    models = actions.add_parser(
        "models",
        help="show the versions of the cost model and of the language model's policy that were trained on measurements",
        epilog="example: mla db models --db measurements.db",
    )
    models.add_argument(
        "--rollback",
        metavar="VERSION",
        type=integer(0),
        help="make this version current again; 0: the models that are included with the compiler",
    )
    add_json(models)
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
    merge, push, pull = (
        actions.add_parser(action, help=text, epilog=f"example: mla db {action} {where}")
        for action, text, where in (
            (
                "merge",
                "copy the new entries of other databases to the database",
                "first.db second.db --db all.db",
            ),
            ("push", "copy the new entries of the database to another one", "postgresql://USER@HOST/NAME"),
            (
                "pull",
                "copy the new entries of another database to the database",
                "postgresql://USER@HOST/NAME",
            ),
        )
    )
    merge.add_argument(
        "others", metavar="URL", type=database_url, nargs="+", help="file or URL of a database"
    )
    for action in (push, pull):
        action.add_argument(
            "others", metavar="URL", type=database_url, nargs=1, help="file or URL of a database"
        )
    for action in (show, strategies, models, export, import_, merge, push, pull):
        add_db(action, optional=False)


def _same_database(one: str | Path, other: str | Path | None) -> bool:
    """Return whether two databases are the same file, or have the same URL."""
    from compiler.tuning_db.connection import default_database, file_of

    places = [each for each in (one, default_database() if other is None else other) if each is not None]
    files = [file_of(each) for each in places]
    if None not in files and len(files) == 2:
        one_file, other_file = (file for file in files if file)
        return one_file.resolve() == other_file.resolve() or (
            one_file.exists() and other_file.exists() and one_file.samefile(other_file)
        )
    return len(places) == 2 and places[0] == places[1]


def run(args: argparse.Namespace) -> int:
    """Show, export, import or copy the entries of the database."""
    from compiler.cache.content_store import ContentStore
    from compiler.tuning.strategies import learned
    from compiler.tuning_db.database import TuningDatabase
    from hw.errors import InputError

    check_files(args, *(["file"] if args.action == "export" else []))
    rolls_back = args.action == "models" and args.rollback is not None
    reads = args.action in ("show", "strategies", "models", "export", "push") and not rolls_back
    if reads or rolls_back:
        check_database(args)
    for each in getattr(args, "others", ()):
        if args.action != "push" and isinstance(each, Path) and not each.exists():
            raise InputError(f"there is no database {each}")
        if _same_database(each, args.db):
            raise InputError(f"{each} is the database itself: name another one")
    own = args.action in ("strategies", "models")  # only this user's entries count
    secret = ContentStore().secret if own else None
    with TuningDatabase(args.db, secret=secret, read_only=reads) as database:
        if args.action == "show":
            document = _document(database.summary())
            report(document, _table(document), args.json)
        elif args.action == "strategies":
            document = {"strategies": learned(database.histories()).rows()}
            report(document, _strategies(document), args.json)
        elif args.action == "models":
            if args.rollback is not None:
                database.roll_back_model(args.rollback)
            document = {"models": model_documents(database.model_versions())}
            report(document, _models(document), args.json)
        elif args.action == "export":
            with atomic_output(args.file) as path:
                print(_entries(database.export(path)) + " written")
        elif args.action == "import":
            print(_entries(database.import_(args.file)) + " added")
        else:
            for each in args.others:
                with TuningDatabase(each, read_only=args.action != "push") as other:
                    push = args.action == "push"
                    count = other.merge(database) if push else database.merge(other)
                    print(f"{_entries(count)} {'added to' if push else 'added from'} {other.title}")
    return 0


def model_documents(versions: "Sequence[ModelVersion | PolicyVersion]") -> list[dict[str, Any]]:
    """Return the versions of models as JSON documents; the last accepted version of each model is current."""
    documents = [version.document() for version in versions]
    last = {_list_of(each): each["version"] for each in documents if each.get("accepted", True)}
    return [each | {"current": each["version"] == last.get(_list_of(each))} for each in documents]


def _list_of(document: dict[str, Any]) -> tuple[str, str]:
    """Return what the versions of a list have in common."""
    return document["kind"], document.get("profile") or document["model"]


def _models(document: dict[str, Any]) -> str:
    if not document["models"]:
        return "no model has been retrained: the models of the compiler are used"
    rows = [_model_row(each) for each in document["models"]]
    columns = [
        Column("version", right=True),
        Column("model"),
        Column("trained (UTC)"),
        Column("measured", right=True),
        Column("held-out layers"),
        Column(""),
    ]
    return format_table(columns, rows)


def _model_row(each: dict[str, Any]) -> list[str]:
    if each["kind"] == "policy":
        model, measured = "language model", f"{each['answers']:,}"
        result = f"expected cost {each['cost_before']:.4f} -> {each['cost']:.4f}"
        state = "" if each["accepted"] else "refused"
    else:
        model, measured = f"cost model, {each['machine']}", f"{each['measurements']:,}"
        result, state = f"error {each['error_before']:.1%} -> {each['error']:.1%}", ""
    return [
        str(each["version"]),
        model,
        datetime.fromtimestamp(each["when"], UTC).strftime("%Y-%m-%d %H:%M"),
        measured if each["trained"] else "",
        result if each["trained"] else "model of the compiler",
        "current" if each["current"] else state,
    ]


def _strategies(document: dict[str, Any]) -> str:
    rows = [
        [
            each["bottleneck"],
            each["strategy"],
            f"{each['trials']:,}",
            f"{each['improvements']:,}",
            f"{each['mean_gain']:.2%}",
        ]
        for each in document["strategies"]
    ]
    columns = [Column("bottleneck"), Column("strategy"), *figures("trials", "improvements", "mean gain")]
    return format_table(columns, rows) if rows else "no trials"


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def _document(found: "DatabaseSummary") -> dict[str, Any]:
    return {
        "profiles": found.profiles,
        "trials": found.trials,
        "programs": found.programs,
        "macros": found.macros,
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
            counted(document[key], noun)
            for key, noun in (
                ("profiles", "profile"),
                ("trials", "trial"),
                ("programs", "program"),
                ("macros", "macro-instruction"),
                ("executions", "execution"),
            )
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
