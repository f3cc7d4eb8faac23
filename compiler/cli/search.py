"""Options `--method` and `--generator`: names of search methods and generators, or user-defined classes."""

import argparse
from collections.abc import Iterable, Iterator

from compiler.tuning.generators.library import GENERATORS
from compiler.tuning.search.methods import GENERATORS_METHOD, LLM, METHODS
from compiler.util.plugin_registry import Registry, is_reference

#: Further names of search methods. Reports and the database use the original names.
_METHOD_ALIASES = {"model": "hpm"}
_CLASS = "module:Class"


class _Names(Iterable[str]):
    """Choices of an option: the names of a registry, read lazily, and `module:Class`."""

    def __init__(self, registry: Registry, *others: str):
        self._registry, self._others = registry, others

    def __iter__(self) -> Iterator[str]:
        yield from (*self._registry, *self._others, _CLASS)

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and (
            text in self._others or text in self._registry or is_reference(text)
        )


def method_name(text: str) -> str:
    """Argument type: the name of a search method, with aliases resolved."""
    return _METHOD_ALIASES.get(text, text)


def add_method(parser: argparse.ArgumentParser, default: str) -> None:
    """Add `--method` and `--generator`; call `check_method` before using their values."""
    parser.add_argument(
        "--method",
        metavar="NAME",
        type=method_name,
        choices=_Names(METHODS, LLM),
        help=f"search strategy: %(choices)s (default: {default}; with --generator {GENERATORS_METHOD}); `model` is "
        "another name of hpm, search guided by the cost model; module:Class is your own subclass of "
        "compiler.SearchMethod, imported from the current folder",
    )
    parser.add_argument(
        "--generator",
        metavar="NAME",
        choices=_Names(GENERATORS),
        action="append",
        help="use only this candidate generator: %(choices)s (repeatable; default: all); module:Class is your own "
        "subclass of compiler.Generator",
    )
    parser.set_defaults(default_method=default)


def check_method(args: argparse.Namespace) -> None:
    """Set the default method, and load plug-ins so that invalid ones are rejected early.

    Raises
    ------
    InputError
        A plug-in cannot be imported, has the wrong base class, or conflicts with the other option.
    """
    if args.method is None:
        args.method = GENERATORS_METHOD if args.generator else args.default_method
    if args.method == LLM and not args.generator:
        return
    from compiler.tuning.search.tuner import check_generators

    check_generators(args.method, args.generator)
