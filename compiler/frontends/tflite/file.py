"""A TFLite file and the graphs in it."""

from pathlib import Path

import tflite

from compiler.frontends.tflite.reader import DAMAGE, TfliteReader
from compiler.ir.graph import Graph
from hw.errors import InputError

_IDENTIFIER = b"TFL3"
#: A file may have so many graphs, and with each as often as it is used so many nodes.
_MOST_GRAPHS, _MOST_NODES = 1 << 10, 1 << 18


def read_tflite(path: Path) -> Graph:
    """The graph of a TFLite file.

    Raises
    ------
    InputError
        The file cannot be read, is damaged, or has an operator that there is no conversion for; all such are named
        at once.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if data[4:8] != _IDENTIFIER:
        raise InputError(f"{path}: not a TFLite file: bytes 4..7 must be {_IDENTIFIER!r}, not {data[4:8]!r}")
    try:
        return _File(path.stem, data).graph(0)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except DAMAGE as error:
        raise InputError(f"{path}: damaged TFLite file: {error or type(error).__name__}") from None


class _File:
    """A file, whose first graph is the model; others are subgraphs of it."""

    def __init__(self, name: str, data: bytes):
        self.model, self.name, self.size = tflite.Model.GetRootAsModel(data, 0), name, len(data)
        count = self.model.SubgraphsLength()
        if not 1 <= count <= _MOST_GRAPHS:
            raise InputError(f"must hold 1..{_MOST_GRAPHS} graphs, not {count}")
        self._made: dict[int, Graph | None] = {}  # None while it is under way
        self._nodes = 0

    def graph(self, index: int) -> Graph:
        """A graph of the file.

        Raises
        ------
        InputError
            There is none, it is part of itself, or all together are too large.
        """
        if not 0 <= index < self.model.SubgraphsLength():
            raise InputError(f"there is no graph {index}, only {self.model.SubgraphsLength()}")
        if index not in self._made:
            self._made[index] = None
            self._made[index] = TfliteReader(self.model, index, self.name, self.size, self.graph).graph()
        made = self._made[index]
        if made is None:
            raise InputError(f"graph {index} is a subgraph of itself")
        self._nodes += sum(1 for _ in made.walk())
        if self._nodes > _MOST_NODES:
            raise InputError(f"its subgraphs have more than {_MOST_NODES:,} nodes")
        return made
