"""The options `--method` and `--generator`: names of search methods and generators, or classes of the user's own."""

import argparse
from collections.abc import Iterable, Iterator

from compiler.tuning.generators.library import GENERATORS
from compiler.tuning.search.methods import GENERATORS_METHOD, LLM, METHODS
from compiler.util.plugin_registry import Registry
from compiler.util.references import is_reference

_CLASS = "module:Class"


class _Names(Iterable[str]):
    """Values of an option: names of a registry, read when they are needed, and `module:Class`."""

    def __init__(self, registry: Registry, *others: str):
        self._registry, self._others = registry, others

    def __iter__(self) -> Iterator[str]:
        yield from (*self._registry, *self._others, _CLASS)

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and (
            text in self._others or text in self._registry or is_reference(text)
        )


def add_method(parser: argparse.ArgumentParser, default: str) -> None:
    """Add `--method` and `--generator`; call `check_method` before their values are used."""
    parser.add_argument(
        "--method",
        metavar="NAME",
        choices=_Names(METHODS, LLM),
        help=f"search strategy: %(choices)s (default: {default}; with --generator {GENERATORS_METHOD}); a class of "
        "your own is a subclass of compiler.SearchMethod, found from the current folder on",
    )
    parser.add_argument(
        "--generator",
        metavar="NAME",
        choices=_Names(GENERATORS),
        action="append",
        help="propose candidates with this generator instead of all: %(choices)s (repeatable); a class of your own is "
        "a subclass of compiler.Generator",
    )
    parser.set_defaults(default_method=default)


def check_method(args: argparse.Namespace) -> None:
    """Fill in the method that is used by default, and load plug-ins so that a wrong one is refused at once.

    Raises
    ------
    InputError
        A plug-in cannot be imported, is of the wrong class, or does not go with the other option.
    """
    if args.method is None:
        args.method = GENERATORS_METHOD if args.generator else args.default_method
    if args.method == LLM and not args.generator:
        return
    from compiler.tuning.search.tuner import check_generators

    check_generators(args.method, args.generator)
