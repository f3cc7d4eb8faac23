"""Paths and dotted names in README.md and docs/ exist in the tree, links lead somewhere, and no line is too long."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *(ROOT / name / "README.md" for name in ("tests", "examples")), *sorted((ROOT / "docs").rglob("*.md"))]
MAX_COLUMNS = 120
_TOP = "compiler|cosim|hw|scripts|tests"
_PATH = re.compile(rf"(?<![\w./-])(?:{_TOP})/[\w./*-]+")
_NAME = re.compile(rf"(?<![\w./-])(?:{_TOP})(?:\.\w+)+")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FILE_ENDINGS = ("md", "py", "json", "toml")


def path_exists(path: str) -> bool:
    """Whether a path, which may have wildcards, names something in the tree."""
    return any(ROOT.glob(path.rstrip("./")))


def name_exists(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        module = ROOT.joinpath(*parts[:count])
        if module.is_dir() or module.with_suffix(".py").is_file():
            if count == len(parts):
                return True  # without importing it: it may need an optional package
            found: object = importlib.import_module(".".join(parts[:count]))
            for part in parts[count:]:
                if not hasattr(found, part):
                    return False
                found = getattr(found, part)
            return True
    return False


def missing(text: str) -> list[str]:
    """Paths and dotted names of a text that do not exist."""
    names = [match for match in _NAME.findall(text) if match.rpartition(".")[2] not in _FILE_ENDINGS]
    wrong = [path for path in _PATH.findall(text) if not path_exists(path)]
    wrong += [name for name in names if not name_exists(name)]
    for block in re.findall(r"^```python.*?\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module and re.match(rf"(?:{_TOP})\b", node.module):
                imported = [f"{node.module}.{alias.name}" for alias in node.names]
                wrong += [name for name in imported if not name_exists(name)]
    return wrong


@cache
def anchors(page: Path) -> frozenset[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_and_names_exist(page: Path) -> None:
    assert not missing(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        target, _, anchor = link.partition("#")
        if "://" in link:
            continue
        file = page.parent / target if target else page
        assert file.exists(), link
        if anchor:
            assert anchor in anchors(file), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_short(page: Path) -> None:
    text = _FENCE.sub("", page.read_text())
    exempt = ("|", "<!--", "ONNX: ", "TFLite: ", "Maxima: ")
    assert not [line for line in text.splitlines() if len(line) > MAX_COLUMNS and not line.startswith(exempt)]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("see `compiler/pipeline.py`, `hw/library/*.s` and `compiler.api.compile`.", []),
        ("see `compiler/nowhere.py`", ["compiler/nowhere.py"]),
        ("see `compiler.api.nothing`", ["compiler.api.nothing"]),
        ("see `compiler.nowhere.nothing`", ["compiler.nowhere.nothing"]),
        ("[text](compiler.md)", []),
        ("```python\nfrom hw.config import nothing\n```\n", ["hw.config.nothing"]),
    ],
)
def test_missing_names_are_noticed(text: str, wrong: list[str]) -> None:
    assert missing(text) == wrong
