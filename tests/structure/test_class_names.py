"""Public class names are unique within a tree of packages."""

import ast
from collections import defaultdict

import pytest

from tests.structure.source_tree import TREES, modules


@pytest.mark.parametrize("tree", TREES)
def test_public_class_names_are_unique(tree: str) -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module, source in modules().items():
        if module.split(".")[0] == tree:
            for node in source.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(module)
    assert places
    twice = {name: where for name, where in sorted(places.items()) if len(where) > 1}
    assert not twice, "\n".join(f"{name}: {', '.join(where)}" for name, where in twice.items())
