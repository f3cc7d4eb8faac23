"""An order of an ONNX file's nodes in which they can run."""

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hw.errors import InputError, shown

if TYPE_CHECKING:
    from compiler.frontends.onnx.node import FileNode


def in_order(nodes: "list[FileNode]", known: Iterable[str]) -> "list[FileNode]":
    """The nodes, each after those that make its inputs.

    Raises
    ------
    InputError
        Two make the same tensor, nothing makes one, or nodes wait for each other.
    """
    makers: dict[str, FileNode | None] = dict.fromkeys(known)
    makers[""] = None
    for node in nodes:
        for name in filter(None, node.outputs):
            if name in makers:
                raise InputError(f"node {shown(node.name)}: its output {shown(name)} already has a producer")
            makers[name] = node
    return _sorted(nodes, makers)


def _sorted(nodes: "list[FileNode]", makers: "dict[str, FileNode | None]") -> "list[FileNode]":
    """As near to the file's order as can be."""
    places = {node: i for i, node in enumerate(nodes)}
    waiting, users = dict.fromkeys(nodes, 0), {node: [] for node in nodes}
    for node in nodes:
        for name in node.inputs:
            if name not in makers:
                raise InputError(f"node {shown(node.name)}: no node computes its input {shown(name)}")
            maker = makers[name]
            if maker is not None:
                users[maker].append(node)
                waiting[node] += 1
    ready = [places[node] for node, count in waiting.items() if not count]
    done: list[FileNode] = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        done.append(node)
        for user in users[node]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, places[user])
    stuck = [node for node, count in waiting.items() if count]
    if stuck:
        raise InputError(f"node {shown(stuck[0].name)} waits for its own output: there is a cycle")
    return done
