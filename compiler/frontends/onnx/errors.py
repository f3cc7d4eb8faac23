"""Errors in ONNX files, with the name of the node."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.values import UnsupportedNodeError
from hw.errors import InputError, shown

#: What arithmetic on a damaged file's numbers may raise where no check has seen the damage.
DAMAGE = (
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    OverflowError,
    ZeroDivisionError,
    AttributeError,
    MemoryError,
)
#: So many nodes are named in one message.
_MOST_NAMED = 20

#: Name, operator and reason of a node.
Refused = tuple[str, str, str]


class UnsupportedNodesError(InputError):
    """Nodes that there is no conversion for.

    Attributes
    ----------
    nodes : list of (str, str, str)
        Name, operator and reason of each.
    """

    def __init__(self, nodes: list[Refused]):
        self.nodes = nodes
        named = listed(nodes)
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        super().__init__(f"there is no conversion for node {', '.join(named[:_MOST_NAMED])}{more}")


def listed(nodes: Sequence[Refused]) -> list[str]:
    """Each node with its operator and its reason, as text."""
    return [f"{shown(name)} ({shown(op)[1:-1]}{': ' if why else ''}{why})" for name, op, why in nodes]


def check_inputs(given: Sequence[object], least: int, most: int | None) -> None:
    """InputError unless there are from `least` to `most` inputs, the first `least` of them not left out."""
    if len(given) < least or (most is not None and len(given) > most):
        raise InputError(f"must have {_counted(least, most)}, not {len(given)}")
    for number, each in enumerate(given[:least], 1):
        if not each:
            raise InputError(f"input {number} must not be left out")


def _counted(least: int, most: int | None) -> str:
    """A number of inputs, in words that read on."""
    if most is None:
        return f"at least {least} input{'s' * (least != 1)}"
    if least == most:
        return f"{least} input{'s' * (least != 1)}"
    return f"{least} {'or' if most == least + 1 else 'to'} {most} inputs"


@contextmanager
def naming(node: FileNode) -> Iterator[None]:
    """Name the node in errors; an UnsupportedError goes through as it is."""
    try:
        yield
    except UnsupportedNodeError:
        raise
    except InputError as error:
        where = f"node {shown(node.name)}"
        named = str(error).startswith(where)  # by the graph, which says more
        raise InputError(f"{error}" if named else f"{where}: {error}") from None
    except DAMAGE as error:
        raise InputError(f"node {shown(node.name)}: damaged: {error or type(error).__name__}") from None
