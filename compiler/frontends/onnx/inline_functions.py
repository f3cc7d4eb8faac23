"""Inlining of the functions that an ONNX file defines."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import networkx as nx
import onnx
from onnx import AttributeProto, defs, inliner

from compiler.frontends.onnx.registry import DEFAULT, check_version, versions_of
from hw.errors import InputError, shown

#: Nodes that a file may have after that; functions that use others twice, those again, and so on make many of few.
_MOST = 1 << 18
Key = tuple[str, str]


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions of its own.

    Raises
    ------
    InputError
        They use themselves, would make too many nodes, are of operator sets that do not go with the model's, or are
        damaged.
    """
    if not model.functions:
        return model
    _check(model)
    model = _of_one_version(model)
    try:
        return inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, TypeError, onnx.checker.ValidationError) as error:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"its functions cannot be inlined: {text[:200]}") from None


def _check(model: onnx.ModelProto) -> None:
    """The inliner looks for neither cycles nor size."""
    functions = {(f.domain, f.name): f for f in model.functions}
    if len(functions) != len(model.functions):
        raise InputError("defines a function twice")
    uses = nx.DiGraph()
    uses.add_nodes_from(functions)
    sizes: dict[Key, Counter[Key]] = {}
    for key, function in functions.items():
        sizes[key] = Counter(_keys(function.node))
        uses.add_edges_from((key, used) for used in sizes[key] if used in functions)
    try:
        order = list(nx.topological_sort(uses))
    except nx.NetworkXUnfeasible:
        (first, _), *_ = nx.find_cycle(uses)
        raise InputError(f"function {shown(first[1])} uses itself") from None
    total: dict[Key, int] = {}
    for key in reversed(order):
        total[key] = sum(count * total.get(used, 1) for used, count in sizes[key].items())
    made = sum(total.get(key, 1) for key in _keys(model.graph.node))
    if made > _MOST:
        raise InputError(f"its functions make {made:,} nodes, more than {_MOST:,}")


def _keys(nodes: Iterable[Any]) -> Iterator[Key]:
    """Domain and operator of nodes, those of subgraphs among them."""
    for node in nodes:
        yield node.domain, node.op_type
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _keys(attribute.g.node)


def _of_one_version(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with functions of its own operator sets; the inliner leaves others where they are."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    versions = versions_of(model.opset_import)
    for function in made.functions:
        try:
            _check_versions(function, versions)
        except InputError as error:
            raise InputError(f"function {shown(function.name)}: {error}") from None
        for each in function.opset_import:
            each.version = versions.get(_called(each.domain), each.version)
    return made


def _check_versions(function: onnx.FunctionProto, versions: dict[str, int]) -> None:
    """Refuse a function whose operators are not those of the model's operator sets."""
    own, used = versions_of(function.opset_import), {(_called(d), op) for d, op in _keys(function.node)}
    if DEFAULT in own:
        check_version(own[DEFAULT])
    for domain, op in sorted(used):
        if domain not in own:
            raise InputError(f"uses {shown(op)} of domain {shown(domain)} and imports no operator set of it")
        version, wanted = own[domain], versions.get(domain, own[domain])
        if version != wanted and not _same(op, domain, version, wanted):
            raise InputError(
                f"{shown(op)} of its operator set {version} is not that of {wanted}, which the model imports"
            )


def _same(op: str, domain: str, version: int, wanted: int) -> bool:
    """Whether an operator is the same in two versions of its operator set."""
    if not all(defs.has(op, each, domain) for each in (version, wanted)):
        return False
    first, second = (defs.get_schema(op, each, domain).since_version for each in (version, wanted))
    return first == second


def _called(domain: str) -> str:
    return DEFAULT if domain == "ai.onnx" else domain
