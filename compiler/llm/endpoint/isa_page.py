"""The instruction set's reference page, cut to what some programs use."""

import re
from collections.abc import Iterable
from functools import cache

from hw.isa import reference

#: Parts of the page that are not about writing programs.
_LEFT_OUT = ("Macro-instructions", "Counters", "Traps")
_NAMED = re.compile(r"\| `([^` ]+)[^`]*` \|")
_WORD = re.compile(r"[a-z_][a-z0-9_]*(?:\.[a-z0-9_]+)?")


@cache
def whole_page() -> str:
    """All of it that is about micro-programs."""
    parts = re.split(r"(?m)^(?=## )", reference.page())
    return "".join(part for part in parts if not part.startswith(tuple(f"## {name}" for name in _LEFT_OUT)))


def cut_page(programs: Iterable[str]) -> str:
    """The page without the rows of instructions and fields that no program has; tables of no row are left out."""
    used = {word for text in programs for word in _WORD.findall(text)}
    kept = [
        line for line in whole_page().splitlines() if not (found := _NAMED.search(line)) or found[1] in used
    ]
    return "\n".join(_without_empty(kept)) + "\n"


def _without_empty(lines: list[str]) -> Iterable[str]:
    """Lines without tables that have a header alone."""
    for number, line in enumerate(lines):
        header = line.startswith("|") and not lines[number - 1].startswith("|")
        ruled = line.startswith("| ---")
        first = number + (2 if header else 1)
        empty = (header or ruled) and not (first < len(lines) and lines[first].startswith("|"))
        if not empty:
            yield line
