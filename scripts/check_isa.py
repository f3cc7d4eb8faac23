"""Lint step: `hw/isa` must stand alone, importing only itself and the standard library.

Import contracts name the modules that are forbidden; here everything is, except what is listed as allowed,
so that a new dependency cannot slip in.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ISA = Path(__file__).parent.parent / "hw" / "isa"


def imported_modules(source: str) -> Iterator[tuple[int, str]]:
    """Line number and dotted name of every absolute import in a module's source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module


def is_allowed(module: str) -> bool:
    """Whether `hw/isa` may import the module."""
    return module.split(".")[0] in sys.stdlib_module_names or (module + ".").startswith("hw.isa.")


def main() -> int:
    """Print each forbidden import; the exit status is 1 if there is one."""
    status = 0
    for path in sorted(ISA.rglob("*.py")):
        for line, module in imported_modules(path.read_text()):
            if not is_allowed(module):
                print(f"{path.relative_to(ISA.parent.parent)}:{line}: hw.isa must not import {module}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
