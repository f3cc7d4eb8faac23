"""Nodes of an ONNX file whose outputs are known before anything runs."""

from collections.abc import Sequence
from dataclasses import replace

from compiler.frontends.onnx.emit import Emitter
from compiler.frontends.onnx.errors import naming
from compiler.frontends.onnx.fold import fold, foldable
from compiler.frontends.onnx.node import FileNode, Model, taken
from compiler.frontends.onnx.registry import CONVERSIONS
from compiler.frontends.onnx.values import Fixed, UnsupportedError
from hw.errors import InputError

#: Operators whose conversion works on constants without a graph.
_PASSED = frozenset(
    (
        "QuantizeLinear",
        "DequantizeLinear",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "Identity",
        "Cast",
        "CastLike",
        "Shape",
        "Size",
    )
)
#: What they get for a graph.
_NOTHING = Emitter("", {}, {}, 0)
#: Constants that are computed may have so many elements in all, and eight more for each that the file has.
_MOST_COMPUTED = 1 << 26


class Beforehand:
    """Constants computed from constants, as long as there is room for them.

    Attributes
    ----------
    room : int
        Elements that may still be computed.
    """

    def __init__(self, model: Model):
        self.room = _MOST_COMPUTED + 8 * sum(value.data.size for value in model.constants.values())

    def folded(self, model: Model) -> Model:
        """Without nodes whose outputs are known beforehand, branches that are never taken, and what nobody needs."""
        constants, nodes = dict(model.constants), list[FileNode]()
        for each in model.nodes:
            node = taken(each, constants.get(each.inputs[0])) if each.inputs else each
            inputs = [constants.get(name) for name in node.inputs]
            ready = all(
                value is not None or not name for value, name in zip(inputs, node.inputs, strict=True)
            )
            made = self._made(node, inputs) if ready else None
            if made is None:
                nodes.append(node)
            else:
                constants |= dict(zip(node.outputs, made, strict=False))
        return replace(model, nodes=nodes, constants=constants).used()

    def computed(self, node: FileNode, inputs: Sequence[Fixed | None]) -> list[Fixed]:
        """Outputs of a node that `fold` can compute."""
        return self._counted(fold(node, list(inputs)), inputs)

    def _made(self, node: FileNode, inputs: list[Fixed | None]) -> list[Fixed] | None:
        """Outputs of a node whose inputs are known, if it can be computed beforehand."""
        if not (foldable(node) or (node.op in _PASSED and inputs)):
            return None
        try:
            with naming(node):
                if foldable(node):
                    return self.computed(node, inputs)
                made = CONVERSIONS[node.op](_NOTHING, node, list(inputs))
                return self._counted([value for value in made if isinstance(value, Fixed)], inputs)
        except UnsupportedError:
            return None  # said when the node is converted

    def _counted(self, made: list[Fixed], inputs: Sequence[Fixed | None]) -> list[Fixed]:
        """Constants that were computed, if there is room for them."""
        given = [id(value.data) for value in inputs if value is not None]
        self.room -= sum(v.data.size for v in made if v.data.base is None and id(v.data) not in given)
        if self.room < 0:
            raise InputError("its constant result is too large, with those of the nodes before it")
        return made
