"""Options of a search: method, generator, targets, and the endpoint that proposes candidates."""

import argparse
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from compiler.cli.exit_status import warn
from compiler.cli.options import (
    add_clock,
    add_performance_targets,
    integer,
    performance_targets,
    used_database,
)
from compiler.llm.endpoint.settings import GRAMMARS, KEY_VARIABLE, Endpoint, Prices, SpendingLimits, fields_of
from compiler.tuning.registry import GENERATORS, GENERATORS_METHOD, LLM, METHODS, PORTFOLIO, RETRIEVAL
from compiler.util.plugin_registry import Registry, is_reference
from compiler.util.tables import counted
from hw.errors import InputError, WorkError, shown

if TYPE_CHECKING:
    from pathlib import Path

    from compiler.llm.endpoint.model import LanguageModelGenerator
    from compiler.tuning.constraints import Targets

#: Aliases of search methods; reports and the database use the original names.
_METHOD_ALIASES = {"model": "hpm"}
_CLASS = "module:Class"


class _Names(Iterable[str]):
    """Choices for an option: the names in a registry, which is read when needed, and `module:Class`."""

    def __init__(self, registry: Registry, *others: str):
        self._registry, self._others = registry, others

    def __iter__(self) -> Iterator[str]:
        yield from (*self._registry, *self._others, _CLASS)

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and (
            text in self._others or text in self._registry or is_reference(text)
        )


def method_name(text: str) -> str:
    """Parse an argument: the name of a search method, with aliases resolved."""
    return _METHOD_ALIASES.get(text, text)


def add_method(parser: argparse.ArgumentParser) -> None:
    """Add `--method` and `--generator`; `check_method` must be called before their values are used."""
    parser.add_argument(
        "--method",
        metavar="NAME",
        type=method_name,
        choices=_Names(METHODS, RETRIEVAL, LLM),
        help=f"search strategy: %(choices)s (default: {PORTFOLIO}, which draws from the others; with "
        f"--generator {GENERATORS_METHOD}); `model` is another name for hpm, a search guided by the cost model; "
        "module:Class is your own subclass of compiler.SearchMethod, imported from the current folder",
    )
    parser.add_argument(
        "--generator",
        metavar="NAME",
        choices=_Names(GENERATORS),
        action="append",
        help="use only this candidate generator: %(choices)s (repeatable; default: all); module:Class is your own "
        "subclass of compiler.Generator",
    )


def add_targets(parser: argparse.ArgumentParser) -> None:
    """Add the options for targets at which a search ends, with None as their default."""
    add_performance_targets(parser, "end the search when", "; for the goal throughput")
    add_clock(parser, "clock frequency for targets that are times or rates")


def targets_of(args: argparse.Namespace, goal: str) -> "Targets":
    """Return the targets that the options specify for a search with a goal.

    Raises
    ------
    InputError
        A time or a rate is given without the clock frequency, or a rate with another goal than throughput.
    """
    from compiler.tuning.constraints import Targets

    wanted = performance_targets(args)
    cycles = [] if wanted.cycles is None else [wanted.cycles]
    if args.target_throughput is not None:
        if goal != "throughput":
            raise InputError(f"--target-throughput needs --goal throughput, not {goal}")
        cycles.append(args.clock * 1e6 / args.target_throughput)
    return Targets(min(cycles, default=None), wanted.energy_uj)


def check_method(args: argparse.Namespace) -> None:
    """Set the method if none is given, and load plug-ins so that invalid ones are rejected early.

    Raises
    ------
    InputError
        A plug-in cannot be imported or has the wrong base class, or `--method` and `--generator` conflict.
    """
    if args.method is None:
        args.method = GENERATORS_METHOD if args.generator else PORTFOLIO
    if args.method in (LLM, RETRIEVAL) and not args.generator:
        return
    from compiler.tuning.search.tuner import check_generators

    check_generators(args.method, args.generator)


_LIMITS = ("seconds", "requests", "tokens", "cost", "prices")
_FIELDS = ("model", "key", "context", "answer", "grammar", "fields")
MIN_CONTEXT_TOKENS, MIN_ANSWER_TOKENS = 1024, 64


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    """Add the options for the language model, with None as their default."""
    group = parser.add_argument_group(f"options for the language model of --method {LLM} or {PORTFOLIO}")
    group.add_argument(
        "--endpoint",
        metavar="URL",
        help="base URL of an OpenAI-compatible server, such as http://localhost:8080/v1",
    )
    group.add_argument("--endpoint-model", metavar="NAME", help="name of the model on the server")
    group.add_argument(
        "--endpoint-key",
        metavar="VARIABLE",
        help=f"environment variable that holds the API key (default: {KEY_VARIABLE})",
    )
    group.add_argument(
        "--endpoint-seconds",
        metavar="S",
        type=_number,
        help="stop after waiting a total of S seconds for answers (default: 600)",
    )
    group.add_argument(
        "--endpoint-requests", metavar="N", type=integer(1), help="request limit (default: 100)"
    )
    group.add_argument(
        "--endpoint-tokens", metavar="N", type=integer(1), help="token limit (default: 1,000,000)"
    )
    group.add_argument("--endpoint-cost", metavar="C", type=_number, help="spending limit (default: none)")
    group.add_argument(
        "--endpoint-prices",
        metavar="IN,OUT",
        type=_prices,
        help="prices of a million input tokens and of a million output tokens",
    )
    group.add_argument(
        "--endpoint-context",
        metavar="N",
        type=integer(MIN_CONTEXT_TOKENS),
        help="context length in tokens, prompt and answer together (default: 32768)",
    )
    group.add_argument(
        "--endpoint-answer",
        metavar="N",
        type=integer(MIN_ANSWER_TOKENS),
        help="maximum number of tokens per answer (default: 4096)",
    )
    group.add_argument(
        "--endpoint-grammar",
        choices=GRAMMARS,
        help="request field for the answer grammar (default: none; the prompt describes the grammar)",
    )
    group.add_argument(
        "--endpoint-fields",
        metavar="JSON",
        type=_fields,
        help='additional request fields (null removes a field), such as {"top_p": 0.9, "temperature": null}',
    )


def generator_of(args: argparse.Namespace, say: Callable[[str], None]) -> "LanguageModelGenerator | None":
    """Return the language model that the options specify or, for the method `llm`, the built-in one; None without one.

    Raises
    ------
    InputError
        The options are invalid, incomplete, or for another method, or the endpoint is not a language model server,
        rejects the key, or does not have the model.
    WorkError
        The endpoint cannot be reached or fails.
    """
    endpoint = _endpoint_of(args)
    if args.method != LLM and endpoint is None:
        return None
    from compiler.llm.generate.lm_generator import language_model

    generator = language_model(endpoint, say)
    generator.check()
    return generator


def _endpoint_of(args: argparse.Namespace) -> Endpoint | None:
    """Return the endpoint that the options specify; None if no such option is given."""
    every = {f"endpoint_{name}": name for name in (*_LIMITS, *_FIELDS)} | {"endpoint": "url"}
    given = {name: vars(args)[option] for option, name in every.items() if vars(args)[option] is not None}
    if not given:
        return None
    option = next(option for option, name in every.items() if name in given).replace("_", "-")
    if args.method not in (LLM, PORTFOLIO):
        raise InputError(f"--{option} requires --method {LLM} or {PORTFOLIO}")
    missing = {"url": "--endpoint URL", "model": "--endpoint-model NAME"}
    needed = [text for name, text in missing.items() if name not in given]
    if needed:
        raise InputError(f"--{option} needs {' and '.join(needed)}")
    limits = SpendingLimits(**{name: given.pop(name) for name in _LIMITS if name in given})
    return Endpoint(limits=limits, **given)


def spending_table(document: dict[str, Any]) -> str:
    """Return one line on usage and cost from the JSON report of a language model."""
    cost = "" if document["cost"] is None else f", cost {document['cost']:g}"
    return (
        f"{document['model']}: {counted(document['requests'], 'request')}, "
        f"{document['input_tokens']:,} input tokens and {document['output_tokens']:,} output tokens in "
        f"{document['seconds']:.1f} s{cost}; "
        f"{counted(document['candidates'], 'candidate')}, {document['better']} better"
    )


def _number(text: str) -> float:
    """Parse an argument: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {shown(text)}")
    return value


def _prices(text: str) -> Prices:
    """Parse an argument: `IN,OUT`."""
    try:
        before, after = text.split(",")
        return Prices(float(before), float(after))
    except (ValueError, InputError):
        raise argparse.ArgumentTypeError(f"must be IN,OUT such as 2.5,10, not {shown(text)}") from None


def _fields(text: str) -> dict[str, Any]:
    """Parse an argument: a JSON object."""
    try:
        return fields_of(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def writable_database(args: argparse.Namespace) -> "str | Path | None":
    """Return the database of the verb's options for a search; None, with a warning, if the default one is unusable.

    Raises
    ------
    InputError, WorkError
        The database that `--db` names is damaged or cannot be written.
    """
    from compiler.tuning_db.database import TuningDatabase

    url = used_database(args)
    if url is None:
        return None
    try:
        with TuningDatabase(url) as database:
            database.check()
    except (InputError, WorkError) as error:
        if args.db is not None:
            raise
        warn(f"{error}; measurements are not kept (name another database with --db, or none with --no-db)")
        return None
    return url
