"""Lint check: `hw/isa` may import only itself and the standard library.

The contracts of import-linter list forbidden modules. This check lists the allowed modules instead, so that it reports
any new dependency.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ISA = Path(__file__).parent.parent / "hw" / "isa"


def imported_modules(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the dotted name of every absolute import in a source text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module


def is_allowed(module: str) -> bool:
    """Return whether `hw/isa` may import a module."""
    return module.split(".")[0] in sys.stdlib_module_names or (module + ".").startswith("hw.isa.")


def main() -> int:
    """Print each forbidden import; return status 1 if there is one."""
    status = 0
    for path in sorted(ISA.rglob("*.py")):
        for line, module in imported_modules(path.read_text()):
            if not is_allowed(module):
                print(f"{path.relative_to(ISA.parent.parent)}:{line}: hw.isa must not import {module}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
