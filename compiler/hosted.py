"""Nodes that the host carries out, and whether that is what the user wants."""

from collections.abc import Iterable
from dataclasses import dataclass

from compiler.ir.identity import identity
from hw.errors import InputError


@identity("HostNode", "node", "op", "reason", "edge")
@dataclass(frozen=True)
class HostNode:
    """A node that runs on the host, and why; at the `edge` it only converts or lays out float inputs or outputs."""

    node: str
    op: str
    reason: str
    edge: bool = False


def check_strict(name: str, host: Iterable[HostNode]) -> None:
    """Refuse nodes on the host that are more than conversions at the edges of the model of this name.

    Raises
    ------
    InputError
        There are some; all are named.
    """
    found = [f"{each.node} ({each.op}): {each.reason}" for each in host if not each.edge]
    if found:
        raise InputError(f"{name}: not for the accelerator: {'; '.join(found)}")
