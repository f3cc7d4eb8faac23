"""Access to modules, imports, classes and docstrings of the packages through their source, without imports."""

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
#: Package trees; each may import only those before it.
TREES = ("hw", "cosim", "compiler")

#: Sections of a docstring that describe parameters, attributes, or the ports of a component.
SECTIONS = ("Parameters", "Attributes", "Members")

Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Documented(NamedTuple):
    """A docstring and its location.

    Attributes
    ----------
    place : str
        File, line and name of the documented object.
    text : str
        The docstring, without its indentation.
    """

    place: str
    text: str


@cache
def modules(trees: tuple[str, ...] = TREES) -> dict[str, ast.Module]:
    """Return the syntax trees of all modules, by dotted name."""
    return {name: module for tree in trees for name, module in _parsed(tree).items()}


@cache
def _parsed(tree: str) -> dict[str, ast.Module]:
    # Garbage collections while millions of nodes are built take most of the time, and none of the nodes is garbage.
    gc.disable()
    try:
        return {
            module_name(path): ast.parse(path.read_text(), str(path.relative_to(ROOT)))
            for path in sorted((ROOT / tree).rglob("*.py"))
        }
    finally:
        gc.freeze()
        gc.enable()


def module_name(path: Path) -> str:
    """Return the dotted name of the module in a file below the root."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def source_path(module: str) -> Path:
    """Return the file of a module; inverse of `module_name`."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def package_name(module: str) -> str:
    """Return the second-level package of a module: `compiler.ir` for `compiler.ir.graph`."""
    return ".".join(module.split(".")[:2])


@cache
def imports() -> dict[str, set[str]]:
    """Return the modules that each module imports, also inside functions, except imports for type checkers."""
    known = modules()
    return {name: {target for target in _imported(tree) if target in known} for name, tree in known.items()}


def _imported(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _imported(ast.Module(child.orelse, []))
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0 and child.module, "relative imports are not used"
            for alias in child.names:
                full = f"{child.module}.{alias.name}"
                yield full if full in modules() else child.module
        else:
            yield from _imported(child)


def definitions(trees: tuple[str, ...] = TREES) -> Iterator[tuple[str, Definition]]:
    """Yield the location (`file:line name`) and the syntax tree of all modules, classes and functions."""
    for name, tree in modules(trees).items():
        path = source_path(name).relative_to(ROOT)
        yield f"{path}:1", tree
        for node in _nested_definitions(tree):
            yield f"{path}:{node.lineno} {node.name}", node


def _nested_definitions(node: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the classes and functions below a node; its expressions, most of its nodes, contain none."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _nested_definitions(child)


def docstrings(trees: tuple[str, ...] = TREES) -> Iterator[Documented]:
    """Yield all docstrings of the packages."""
    for place, node in definitions(trees):
        if text := ast.get_docstring(node):
            yield Documented(place, text)


def parameters(text: str) -> Iterator[tuple[str, str]]:
    """Yield names and descriptions of the parameters, attributes and ports that the sections of a docstring list."""
    lines = text.splitlines()
    headers = [i for i, line in enumerate(lines[1:]) if line.startswith("---")]
    for start in headers:
        if lines[start] not in SECTIONS:
            continue
        end = next((each for each in headers if each > start), len(lines))
        entry, description = "", []
        for line in [*lines[start + 2 : end], "end"]:
            if line and not line.startswith(" "):
                if entry:
                    yield entry, " ".join(description)
                entry, description = line, []
            elif line:
                description.append(line.strip())
