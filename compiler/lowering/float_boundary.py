"""Conversions between float and integer tensors at the inputs and outputs of a graph."""

from collections.abc import Collection

from compiler.ir.graph import Graph, Node

_LAYOUT = ("transpose", "reshape")
_FLOATS = ("float32", "float16")


def interface(graph: Graph, host: Collection[str]) -> set[str]:
    """Those of the nodes on the host that only convert, or lay out, float inputs and outputs of the graph."""
    return _behind_inputs(graph, host) | _before_outputs(graph, host)


def handed_over(graph: Graph, host: Collection[str]) -> set[str]:
    """Conversions that the machine could do, beside those nodes that are the `host`'s, but that the host does."""
    device = {node.name: node.op for node in graph if node.name not in host}
    found = interface(graph, [node.name for node in graph]) & device.keys()
    return found if any(op not in _LAYOUT for name, op in device.items() if name not in found) else set()


def _is_float(graph: Graph, name: str) -> bool:
    return graph.tensors[name].dtype in _FLOATS


def _behind_inputs(graph: Graph, host: Collection[str]) -> set[str]:
    fresh, found = {name for name in graph.inputs if _is_float(graph, name)}, set()
    for node in graph:
        widens = node.op == "dequantize" and _is_float(graph, node.inputs[0])
        if node.name in host and (widens or node.op in ("quantize", *_LAYOUT)) and node.inputs[0] in fresh:
            found.add(node.name)
            fresh |= {name for name in node.outputs if _is_float(graph, name)}
    return found


def _before_outputs(graph: Graph, host: Collection[str]) -> set[str]:
    found: set[str] = set()

    def goes_out(node: Node) -> bool:
        """Everything it makes is float and is an output, or only laid out to be one."""
        users = [user for name in node.outputs for user in graph.consumers(name)]
        wanted = all(name in graph.outputs or graph.consumers(name) for name in node.outputs)
        floats = all(_is_float(graph, name) for name in node.outputs)
        return wanted and floats and all(user.name in found for user in users)

    for node in reversed(list(graph)):
        converts = node.op == "dequantize" or (node.op in _LAYOUT and _is_float(graph, node.inputs[0]))
        if node.name in host and converts and goes_out(node):
            found.add(node.name)
    return found
