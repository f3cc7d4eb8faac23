"""`mla isa`: lists, shows, exports, imports and removes learned macro-instructions."""

import argparse
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cli.options import add_db, add_json, check_database, check_files
from compiler.util.files import atomic_output, report
from compiler.util.tables import Column, counted, figures, format_table

if TYPE_CHECKING:
    from compiler.tuning_db.database import TuningDatabase
    from compiler.tuning_db.entries import Profile
    from compiler.tuning_db.macro_instructions import MacroInstruction

SUMMARY = "list, show, export or import learned macro-instructions"
EXAMPLE = "mla isa list"
#: Values that differ between the layers that a macro-instruction executes.
_PARAMETERS = ("addresses", "weights", "biases", "scales", "zero points")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command-line options of the verb."""
    actions = parser.add_subparsers(dest="action", metavar="list|show|export|import|remove", required=True)
    listed = actions.add_parser(
        "list", help="list all macro-instructions", epilog="example: mla isa list --json -"
    )
    show = actions.add_parser(
        "show",
        help="show origin, signature, proof, measurements and uses of a macro-instruction",
        epilog="example: mla isa show conv2d-3f2a9c1b04de",
    )
    show.add_argument("name", metavar="NAME", help="name in the output of mla isa list")
    export = actions.add_parser(
        "export",
        help="write macro-instructions to a file",
        epilog="example: mla isa export macros.jsonl",
    )
    export.add_argument("file", metavar="FILE.jsonl", type=Path, help="file of JSON lines")
    export.add_argument("names", metavar="NAME", nargs="*", help="macro-instructions to write (default: all)")
    import_ = actions.add_parser(
        "import",
        help="add macro-instructions of an exported file",
        epilog="example: mla isa import macros.jsonl",
    )
    import_.add_argument(
        "file",
        metavar="FILE.jsonl",
        type=Path,
        help="file of JSON lines; its macro-instructions are used only after a search has proved and measured them",
    )
    remove = actions.add_parser(
        "remove", help="remove macro-instructions", epilog="example: mla isa remove conv2d-3f2a9c1b04de"
    )
    remove.add_argument("names", metavar="NAME", nargs="+", help="names in the output of mla isa list")
    for action in (listed, show):
        add_json(action)
    for action in (listed, show, export, import_, remove):
        add_db(action, optional=False)


def run(args: argparse.Namespace) -> int:
    """List, show, export, import or remove macro-instructions."""
    from compiler.cache.content_store import ContentStore
    from compiler.tuning_db.database import TuningDatabase

    check_files(args, *(["file"] if args.action == "export" else []))
    reads = args.action in ("list", "show", "export")
    if args.action != "import":
        check_database(args)
    secret = ContentStore().secret if reads else None  # states which entries are this user's
    with TuningDatabase(args.db, secret=secret, read_only=reads) as database:
        if args.action == "import":
            count = database.import_(args.file, only_macros=True)
            print(f"{count:,} {'entry' if count == 1 else 'entries'} added (macro-instructions and profiles)")
            return 0
        macros = _by_name(database)
        for name in [*getattr(args, "names", ()), *([args.name] if args.action == "show" else [])]:
            _check_name(name, macros)
        if args.action == "export":
            chosen = frozenset(args.names or macros)
            with atomic_output(args.file) as path:
                database.export(path, lambda each: each.name in chosen)
            print(f"{_macros(len(chosen))} written")
        elif args.action == "remove":
            chosen = frozenset(args.names)
            database.drop_macros(lambda each: each.name in chosen)
            print(f"{_macros(len(chosen))} removed")
        elif args.action == "list":
            document = {"macros": [_document(database, name, each) for name, each in macros.items()]}
            report(document, _table(document["macros"]), args.json)
        else:
            document = _document(database, args.name, macros[args.name])
            report(document, _description(document), args.json)
    return 0


#: Entries of a macro-instruction: one for each network in which it was learned, with a flag that is True if trusted.
_Entries = list[tuple["MacroInstruction", bool]]


def _by_name(database: "TuningDatabase") -> dict[str, _Entries]:
    """Return the entries of each macro-instruction, those with the most saved cycles first."""
    found: dict[str, _Entries] = {}
    for macro, trusted in database.all_macros():
        found.setdefault(macro.name, []).append((macro, trusted))
    for each in found.values():
        each.sort(key=lambda entry: (not entry[1], -entry[0].saved))
    return dict(sorted(found.items(), key=lambda item: (not item[1][0][1], -item[1][0][0].saved, item[0])))


def _check_name(name: str, macros: Iterable[str]) -> None:
    from hw.errors import InputError, did_you_mean, shown

    if name not in macros:
        raise InputError(
            f"there is no macro-instruction {shown(name)}{did_you_mean(name, list(macros)) or ''}"
        )


def _macros(count: int) -> str:
    return counted(count, "macro-instruction")


def _document(database: "TuningDatabase", name: str, entries: _Entries) -> dict[str, Any]:
    """Return the JSON document of a macro-instruction."""
    first = entries[0][0]
    profiles = {each.conditions.key: each for each in database.profiles()}
    uses = _uses(database, name, first, profiles)
    return {
        "name": name,
        "subgraph": first.key.subgraph,
        "from": first.model,
        "cycles": first.cycles,
        "saved_cycles": first.saved,
        "used_by": list(dict.fromkeys(use["network"] for use in uses)),
        "ops": list(first.ops),
        "operands": [operand for part in first.parts for operand in part.operands],
        "parameters": list(_PARAMETERS),
        "words": first.words,
        "own_commands": first.templates,
        "proof": _proof(first),
        "rules": first.rules,
        "test_inputs": first.test_inputs,
        "measurements": [
            {
                "network": macro.model,
                "layer": macro.layers[0],
                "layers": list(macro.layers),
                "machine": _machine(profiles.get(macro.key.profile)),
                "cycles": macro.cycles,
                "static_cycles": macro.static_cycles,
                "method": macro.method,
                "when": macro.when,
                "trusted": trusted,
            }
            for macro, trusted in entries
        ],
        "uses": uses,
    }


def _proof(macro: "MacroInstruction") -> str:
    """Return how a macro-instruction was accepted; it is proved again for each network that uses it."""
    if not macro.templates:
        return "generated"
    return "tests" if macro.test_inputs else "symbols"


def _machine(profile: "Profile | None") -> dict[str, Any] | None:
    if profile is None:
        return None
    conditions = profile.conditions
    return {
        "n": conditions.config.n,
        "latency": conditions.dram.latency,
        "bytes_per_cycle": conditions.rate,
    }


def _uses(
    database: "TuningDatabase", name: str, macro: "MacroInstruction", profiles: "dict[str, Profile]"
) -> list[dict[str, Any]]:
    """Return the networks whose executions used a macro-instruction, with the least cycles with and without it.

    The cycles are None if the layers share a counter tag with others in the network.
    """
    from compiler.tuning_db.macro_instructions import use_of

    found: dict[tuple[str, str], dict[str, int]] = {}
    for each in database.history(macro.key.subgraph):
        kind = "cycles" if each.macro == name else "static_cycles" if not each.macro else ""
        if kind and each.network:
            cycles = found.setdefault((each.network, each.key.profile), {})
            cycles[kind] = min(each.cycles, cycles.get(kind, each.cycles))
    used = {each for each, cycles in found.items() if "cycles" in cycles}
    used |= {(each.network, each.key.profile) for each in database.history(use_of(name)) if each.network}
    return [
        {
            "network": network,
            "machine": _machine(profiles.get(profile)),
            "cycles": found.get((network, profile), {}).get("cycles"),
            "static_cycles": found.get((network, profile), {}).get("static_cycles"),
        }
        for network, profile in sorted(used)
    ]


def _saved(each: dict[str, Any]) -> str:
    known = None not in (each["static_cycles"], each["cycles"])
    return f"{each['static_cycles'] - each['cycles']:,}" if known else ""


def _table(macros: list[dict[str, Any]]) -> str:
    rows = []
    for each in macros:
        first = each["measurements"][0]
        rows.append(
            [
                each["name"],
                each["operands"][-1] if each["operands"] else "",
                f"{each['words']:,}",
                f"{first['static_cycles']:,}",
                f"{first['cycles']:,}",
                _saved(first),
                f"{len(each['used_by'])}",
                first["network"],
                first["method"] if first["trusted"] else "imported",
            ]
        )
    columns = [
        Column("name", shrinks=True),
        Column("result"),
        *figures("words", "static", "cycles", "saved", "uses"),
        Column("learned in"),
        Column("method"),
    ]
    return format_table(columns, rows) if rows else "no macro-instructions"


_PROOFS = {
    "generated": "commands generated anew from the schedule and proved safe for each network",
    "symbols": "own commands, proved equivalent for all inputs by symbolic execution",
    "tests": "own commands, equal for {test_inputs} test inputs with the same arithmetic",
}


def _description(document: dict[str, Any]) -> str:
    """Return the description of a macro-instruction for people."""
    proof = _PROOFS[document["proof"]].format(**document)
    if document["rules"]:
        proof += f" (rules {document['rules']})"
    lines = [
        document["name"],
        f"operators   {', '.join(document['ops']) or 'unknown'}",
        f"operands    {'; '.join(document['operands']) or 'unknown'}",
        f"parameters  {', '.join(document['parameters'])}",
        f"program     {counted(document['words'], 'word')}",
        f"proof       {proof}",
        "",
        format_table(
            [Column("learned in"), Column("machine"), *figures("static", "cycles", "saved"), *_ORIGIN],
            [
                [
                    f"{each['network']}: {', '.join(each['layers'])}",
                    _conditions(each["machine"]),
                    f"{each['static_cycles']:,}",
                    f"{each['cycles']:,}",
                    _saved(each),
                    each["method"] if each["trusted"] else "imported, not measured here",
                    time.strftime("%Y-%m-%d", time.gmtime(min(max(each["when"], 0), _LAST_TIME))),
                ]
                for each in document["measurements"]
            ],
        ),
        "",
        format_table(
            [Column("used by"), Column("machine"), *figures("static", "cycles", "saved")],
            [
                [
                    each["network"],
                    _conditions(each["machine"]),
                    "" if each["static_cycles"] is None else f"{each['static_cycles']:,}",
                    "" if each["cycles"] is None else f"{each['cycles']:,}",
                    _saved(each),
                ]
                for each in document["uses"]
            ],
        )
        if document["uses"]
        else "no network has used it yet",
    ]
    return "\n".join(lines)


_ORIGIN = (Column("method"), Column("date"))
#: Last moment that a date can show (the end of the year 9999).
_LAST_TIME = 253_402_300_799


def _conditions(machine: dict[str, Any] | None) -> str:
    if machine is None:
        return "unknown"
    return f"n={machine['n']}, latency {machine['latency']}, {machine['bytes_per_cycle']:g} bytes per cycle"
