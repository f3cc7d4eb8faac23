"""The imports of hw, cosim and compiler have no cycles, neither between modules nor between packages."""

from collections.abc import Mapping

import pytest

from tests.structure.source_tree import imports, package_name


def edges_in_cycles(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the edges of a directed graph that are part of a cycle, as `from -> to`."""

    def reachable(start: str) -> set[str]:
        seen, waiting = set(), [start]
        while waiting:
            for target in graph.get(waiting.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
        return seen

    after = {node: reachable(node) for node in graph}
    return sorted(f"{a} -> {b}" for a in graph for b in graph[a] if a in after.get(b, ()))


def package_imports() -> dict[str, set[str]]:
    """Return the packages that the modules of each package import."""
    graph: dict[str, set[str]] = {}
    for module, targets in imports().items():
        package = package_name(module)
        graph.setdefault(package, set()).update({package_name(each) for each in targets} - {package})
    return graph


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b -> c", "c -> b"]),
        ({"a": {"a"}}, ["a -> a"]),
    ],
)
def test_edges_in_cycles_of_small_graphs(graph: dict[str, set[str]], found: list[str]) -> None:
    assert edges_in_cycles(graph) == found


def test_imports_are_found_inside_functions_and_between_trees() -> None:
    assert "hw.config" in imports()["hw.verilog.writer"] | imports()["cosim.driver"]
    assert len(imports()) > 300


def test_modules_have_no_import_cycle() -> None:
    found = edges_in_cycles(imports())
    assert not found, "imports in cycles:\n" + "\n".join(found)


def test_packages_have_no_import_cycle() -> None:
    graph = package_imports()
    found = edges_in_cycles(graph)
    causes = [
        f"  {module} -> {target}"
        for module, targets in sorted(imports().items())
        for target in sorted(targets)
        if f"{package_name(module)} -> {package_name(target)}" in found
    ]
    assert not found, "packages in cycles:\n" + "\n".join(found) + "\nby these imports:\n" + "\n".join(causes)
