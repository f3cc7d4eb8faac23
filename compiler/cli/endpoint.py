"""Options `--endpoint...`: the language model server that proposes candidates."""

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
MIN_CONTEXT_TOKENS, MIN_ANSWER_TOKENS = 1024, 64


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    """Add the options of `--method llm`; options that are not given are None."""
    group = parser.add_argument_group(f"language model of --method {LLM}")
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
        help="stop after waiting S seconds for answers in total (default: 600)",
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
        help="price of a million input tokens and of a million output tokens",
    )
    group.add_argument(
        "--endpoint-context",
        metavar="N",
        type=integer(MIN_CONTEXT_TOKENS),
        help="context length: prompt and answer tokens (default: 32768)",
    )
    group.add_argument(
        "--endpoint-answer",
        metavar="N",
        type=integer(MIN_ANSWER_TOKENS),
        help="maximum tokens per answer (default: 4096)",
    )
    group.add_argument(
        "--endpoint-grammar",
        choices=GRAMMARS,
        help="request field for an answer grammar (default: none, the grammar is described in the prompt)",
    )
    group.add_argument(
        "--endpoint-fields",
        metavar="JSON",
        type=_fields,
        help='additional request fields (null removes a field), such as {"top_p": 0.9, "temperature": null}',
    )


def author_of(args: argparse.Namespace, say: Callable[[str], None]) -> "LanguageModelGenerator | None":
    """Return the language model of the options or the built-in one; None if the method is not `llm`.

    Raises
    ------
    InputError
        The options are invalid, incomplete, or for another method; or the endpoint is not a language model server,
        rejects the key, or has no such model.
    WorkError
        The endpoint cannot be reached or fails.
    """
    endpoint = _endpoint_of(args)
    if args.method != LLM:
        return None
    from compiler.llm.generate.choice import language_model

    author = language_model(endpoint, say)
    author.check()
    return author


def _endpoint_of(args: argparse.Namespace) -> Endpoint | None:
    """Return the endpoint given by the options, or None."""
    every = {f"endpoint_{name}": name for name in (*_LIMITS, *_FIELDS)} | {"endpoint": "url"}
    given = {name: vars(args)[option] for option, name in every.items() if vars(args)[option] is not None}
    if not given:
        return None
    option = next(option for option, name in every.items() if name in given).replace("_", "-")
    if args.method != LLM:
        raise InputError(f"--{option} requires --method {LLM}")
    for name in ("url", "model"):
        if name not in given:
            raise InputError(f"--{option} needs --endpoint URL and --endpoint-model NAME")
    limits = SpendingLimits(**{name: given.pop(name) for name in _LIMITS if name in given})
    return Endpoint(limits=limits, **given)


def spending_table(document: dict[str, Any]) -> str:
    """Return one line about usage and cost from the document of a language model."""
    cost = "" if document["cost"] is None else f", cost {document['cost']:g}"
    return (
        f"{document['model']}: {document['requests']} requests, {document['input_tokens']:,} input tokens and "
        f"{document['output_tokens']:,} output tokens in {document['seconds']:.1f} s{cost}; "
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
