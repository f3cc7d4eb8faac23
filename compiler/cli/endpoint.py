"""The options `--endpoint...`: a language model that is asked for candidates."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from compiler.cli.options import integer
from compiler.llm.endpoint.settings import GRAMMARS, KEY_VARIABLE, Endpoint, Prices, SpendingLimits, fields_of
from compiler.tuning.search.methods import LLM
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from compiler.llm.generate.author import LanguageModelGenerator

_LIMITS = ("seconds", "requests", "tokens", "cost", "prices")
_FIELDS = ("model", "key", "context", "answer", "grammar", "fields")
_LEAST_CONTEXT, _LEAST_ANSWER = 1024, 64


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    """Add the options of `--method llm`; what was not given is None."""
    group = parser.add_argument_group(f"language model of --method {LLM}")
    group.add_argument(
        "--endpoint",
        metavar="URL",
        help="OpenAI-compatible: what /chat/completions comes behind, such as http://localhost:8080/v1",
    )
    group.add_argument("--endpoint-model", metavar="NAME", help="its name there")
    group.add_argument(
        "--endpoint-key",
        metavar="VARIABLE",
        help=f"environment variable that holds the key, if it wants one (default: {KEY_VARIABLE})",
    )
    group.add_argument(
        "--endpoint-seconds", metavar="S", type=_number, help="wait so long for it in all (default: 600)"
    )
    group.add_argument(
        "--endpoint-requests", metavar="N", type=integer(1), help="send so many requests (default: 100)"
    )
    group.add_argument(
        "--endpoint-tokens", metavar="N", type=integer(1), help="use so many tokens (default: 1,000,000)"
    )
    group.add_argument("--endpoint-cost", metavar="C", type=_number, help="spend so much (default: anything)")
    group.add_argument(
        "--endpoint-prices", metavar="IN,OUT", type=_prices, help="of a million tokens read and written"
    )
    group.add_argument(
        "--endpoint-context",
        metavar="N",
        type=integer(_LEAST_CONTEXT),
        help="tokens of prompt and answer together (default: 32768)",
    )
    group.add_argument(
        "--endpoint-answer",
        metavar="N",
        type=integer(_LEAST_ANSWER),
        help="tokens of an answer (default: 4096)",
    )
    group.add_argument(
        "--endpoint-grammar",
        choices=GRAMMARS,
        help="the field by which it takes a grammar of answers (default: none: it is in the prompt)",
    )
    group.add_argument(
        "--endpoint-fields",
        metavar="JSON",
        type=_fields,
        help='more fields of a request, null leaves one out, such as {"top_p": 0.9, "temperature": null}',
    )


def author_of(args: argparse.Namespace, say: Callable[[str], None]) -> "LanguageModelGenerator | None":
    """The language model that options name, or the built-in one, if it answers; None: another method is asked for.

    Raises
    ------
    InputError
        Options are wrong, miss others, or are for another method; the endpoint is none, wants another key, or has no
        such model.
    WorkError
        It cannot be reached, or fails.
    """
    endpoint = _endpoint_of(args)
    if args.method != LLM:
        return None
    from compiler.llm.generate.choice import language_model

    author = language_model(endpoint, say)
    author.check()
    return author


def _endpoint_of(args: argparse.Namespace) -> Endpoint | None:
    """The endpoint that options name; None: they name none."""
    every = {f"endpoint_{name}": name for name in (*_LIMITS, *_FIELDS)} | {"endpoint": "url"}
    given = {name: vars(args)[option] for option, name in every.items() if vars(args)[option] is not None}
    if not given:
        return None
    option = next(option for option, name in every.items() if name in given).replace("_", "-")
    if args.method != LLM:
        raise InputError(f"--{option} is for --method {LLM}")
    for name in ("url", "model"):
        if name not in given:
            raise InputError(f"--{option} needs --endpoint URL and --endpoint-model NAME")
    limits = SpendingLimits(**{name: given.pop(name) for name in _LIMITS if name in given})
    return Endpoint(limits=limits, **given)


def spending_table(document: dict[str, Any]) -> str:
    """A line for people about what was asked, from a model's document."""
    cost = "" if document["cost"] is None else f", cost {document['cost']:g}"
    return (
        f"{document['model']}: {document['requests']} requests, {document['input_tokens']:,} tokens read and "
        f"{document['output_tokens']:,} written in {document['seconds']:.1f} s{cost}; "
        f"{document['candidates']} candidates, {document['better']} better"
    )


def _number(text: str) -> float:
    """Argument type: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {shown(text)}")
    return value


def _prices(text: str) -> Prices:
    """Argument type: `IN,OUT`."""
    try:
        before, after = text.split(",")
        return Prices(float(before), float(after))
    except (ValueError, InputError):
        raise argparse.ArgumentTypeError(f"must be IN,OUT such as 2.5,10, not {shown(text)}") from None


def _fields(text: str) -> dict[str, Any]:
    """Argument type: a JSON object."""
    try:
        return fields_of(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
