"""Paths and dotted names in README files and docs/ exist, links are valid, and lines are not too long."""

import ast
import importlib
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(ROOT / name / "README.md" for name in ("tests", "examples")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
MAX_COLUMNS = 120
_TOP = "compiler|cosim|hw|scripts|tests"
_PATH = re.compile(rf"(?<![\w./-])(?:{_TOP})/[\w./*-]+")
_NAME = re.compile(rf"(?<![\w./-])(?:{_TOP})(?:\.\w+)+")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FILE_ENDINGS = ("md", "py", "json", "toml")
#: Inline code that consists of the name of a source file, with or without its folder.
_FILE = re.compile(r"`((?:[\w.-]+/)*\w+\.(?:py|toml|s))`")
#: Example files of the documentation, which commands write or users have.
_EXAMPLES = {"FILE.s", "digits.s", "pyproject.toml"}


def path_exists(path: str) -> bool:
    """Return True if a path, possibly with wildcards, exists in the tree."""
    return any(ROOT.glob(path.rstrip("./")))


def name_exists(name: str) -> bool:
    """Return True if a dotted name is a module or an attribute of a module."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        module = ROOT.joinpath(*parts[:count])
        if module.is_dir() or module.with_suffix(".py").is_file():
            if count == len(parts):
                return True  # without an import, since the module may need an optional package
            found: object = importlib.import_module(".".join(parts[:count]))
            for part in parts[count:]:
                if not hasattr(found, part):
                    return False
                found = getattr(found, part)
            return True
    return False


def missing(text: str) -> list[str]:
    """Return paths and dotted names in a text that do not exist."""
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
def source_files() -> frozenset[str]:
    """Return the names of all source files, without their folders."""
    folders = [ROOT / name for name in (*_TOP.split("|"), "examples")]
    return frozenset(path.name for folder in folders for path in folder.rglob("*.*"))


def missing_files(text: str, folder: Path) -> list[str]:
    """Return names of source files in a text that do not exist."""
    return [
        name
        for name in _FILE.findall(text)
        if not (folder / name).exists()
        and not (ROOT / name).exists()
        and name not in source_files() | _EXAMPLES
    ]


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings in the form that GitHub uses."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_and_names_exist(page: Path) -> None:
    assert not missing(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_exist(page: Path) -> None:
    assert not missing_files(_FENCE.sub("", page.read_text()), page.parent)


def test_test_folders_are_in_readme() -> None:
    text = (ROOT / "tests/README.md").read_text()
    named = set(re.findall(r"`(\w+)/`", text))
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/*.py")}
    assert folders <= named, folders - named
    assert all((ROOT / "tests" / name).is_dir() or (ROOT / name).is_dir() for name in named), named


def test_compiler_packages_are_listed_in_the_order_of_their_layers() -> None:
    table = (ROOT / "docs/compiler.md").read_text().partition("## Packages")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `compiler/(\w+)(?:\.py)?` \|", table, re.MULTILINE)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == ["compiler"])
    level = {name: number for number, layer in enumerate(layers) for name in layer.split(" | ")}
    assert [level[name] for name in named] == sorted(level[name] for name in named)
    assert {path.parent.name for path in (ROOT / "compiler").glob("*/__init__.py")} <= set(named)
    assert set(level) - set(named) <= {"onnx_backend"}


def test_pictures_are_used_by_a_page() -> None:
    shown = {
        Path(link).name for page in PAGES for link in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text())
    }
    assert shown == {path.name for path in (ROOT / "docs/pictures").iterdir()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_are_valid(page: Path) -> None:
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
def test_missing_names_are_detected(text: str, wrong: list[str]) -> None:
    assert missing(text) == wrong


def test_missing_files_are_detected() -> None:
    text = "see `pipeline.py`, `docs/test_paths.py`, `docs/nowhere.py`, `nowhere.py` and `gemm_i8.s`"
    assert missing_files(text, ROOT / "tests") == ["docs/nowhere.py", "nowhere.py"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_has_no_conflict_markers(page: Path) -> None:
    lines = page.read_text("utf-8").splitlines()
    assert not [line for line in lines if line.startswith(("<<<<<<< ", ">>>>>>> "))]
