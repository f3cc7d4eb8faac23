"""All command-line options named in the documentation exist."""

import argparse
import re
from functools import cache
from pathlib import Path

import pytest

from compiler.cli.main import build_parser
from tests.docs.test_paths import PAGES, ROOT

_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
#: Options of commands of other projects.
_FOREIGN = {"--nthreads", "--nworkers", "--hypothesis-profile", "--saved-model", "--opset"}


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return the documented options of a parser and its subparsers."""
    found: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found.update(*(options_of(each) for each in action.choices.values()))
        elif action.help != argparse.SUPPRESS:
            found.update(action.option_strings)
    return found


@cache
def known() -> frozenset[str]:
    """Return the options of `mla`, and the options that scripts, examples and test plug-ins declare."""
    sources = [
        path
        for name in ("scripts", "examples", "tests", "compiler/bench")
        for path in (ROOT / name).rglob("*.py")
    ]
    declared = re.compile(r"add(?:_arg|opt)\w*\(\s*\"(--[a-z-]+)\"")
    found = {name for path in sources for name in declared.findall(path.read_text())}
    return frozenset(options_of(build_parser()) | found | _FOREIGN)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_options_exist(page: Path) -> None:
    assert set(_OPTION.findall(page.read_text())) <= known()


def test_hidden_options_do_not_count_as_documented() -> None:
    assert {"--trials", "--max-in-flight", "--hw-coverage"} <= known()
    assert not {"--flights", "--nowhere"} & known()
