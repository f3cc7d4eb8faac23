"""ONNX files."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import ModelProto

# Importing them enters their conversions.
import compiler.frontends.onnx_cast
import compiler.frontends.onnx_control
import compiler.frontends.onnx_conv_transpose
import compiler.frontends.onnx_elementwise
import compiler.frontends.onnx_functions
import compiler.frontends.onnx_groups
import compiler.frontends.onnx_logic
import compiler.frontends.onnx_loops
import compiler.frontends.onnx_lstm
import compiler.frontends.onnx_matmul
import compiler.frontends.onnx_parts
import compiler.frontends.onnx_pool  # noqa: F401
from compiler.frontends.onnx_emit import Emitter
from compiler.frontends.onnx_file import FileNode, Model, parsed, read_proto
from compiler.frontends.onnx_finish import finished
from compiler.frontends.onnx_fold import fold, foldable
from compiler.frontends.onnx_fuse import fuse
from compiler.frontends.onnx_host import on_host
from compiler.frontends.onnx_patterns import recognize
from compiler.frontends.onnx_quantize import meanings, targets
from compiler.frontends.onnx_registry import CONVERSIONS, Conversion, converts
from compiler.frontends.onnx_rewrite import expand
from compiler.frontends.onnx_sizes import with_sizes
from compiler.frontends.onnx_values import Fixed, Flow, UnsupportedError, Value, plain
from compiler.ir.graph import Graph
from compiler.ir.tensor import Tensor
from hw.errors import InputError, shown

#: What arithmetic on a damaged file's numbers may raise where no check has seen the damage.
_DAMAGE = (
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    OverflowError,
    ZeroDivisionError,
    AttributeError,
    MemoryError,
)
#: Constants that are computed may have so many elements in all, and eight more for each that the file has.
_MOST_COMPUTED = 1 << 26
#: Nodes of subgraphs are converted again where a loop is unrolled or a state gets another type; so many in all.
_MOST_REPEATED = 1 << 14
#: So many nodes are named in one message.
_MOST_NAMED = 20


class UnsupportedNodesError(InputError):
    """Nodes that there is no conversion for.

    Attributes
    ----------
    nodes : list of (str, str, str)
        Name, operator and reason of each.
    """

    def __init__(self, nodes: list[tuple[str, str, str]]):
        self.nodes = nodes
        named = [f"{shown(name)} ({shown(op)[1:-1]}{': ' if why else ''}{why})" for name, op, why in nodes]
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        super().__init__(f"there is no conversion for node {', '.join(named[:_MOST_NAMED])}{more}")


def read_onnx(source: Path | ModelProto, sizes: Mapping[str, int] | None = None) -> Graph:
    """The graph of an ONNX model.

    Inputs and outputs keep the file's names, shapes and types; inside, images have their channels last. Quantized
    models, in any of the forms that there are, become nodes on integers; what is not quantized becomes float32.

    Parameters
    ----------
    source : Path or ModelProto
        A file, whose external data must lie below its folder; or a model in memory, which cannot have any.
    sizes : dict
        Sizes of dimensions that the file only names. A first dimension that is not named here is 1.

    Raises
    ------
    InputError
        The file cannot be read, is damaged, or a size is missing.
    UnsupportedNodesError
        It has nodes that there is no conversion for; all such are named at once.
    """
    called = source if isinstance(source, Path) else shown(source.graph.name or "model")
    try:
        with np.errstate(all="ignore"):  # what overflows in a damaged file is seen by its result
            return _Reader(source, dict(sizes or {})).graph()
    except UnsupportedNodesError as error:
        error.args = (f"{called}: {error}",)
        raise
    except InputError as error:
        raise InputError(f"{called}: {error}") from None
    except _DAMAGE as error:
        raise InputError(f"{called}: damaged ONNX file: {error or type(error).__name__}") from None


class _Reader:
    """One file on its way to a graph."""

    def __init__(self, source: Path | ModelProto, sizes: dict[str, int]):
        path = source if isinstance(source, Path) else None
        proto = source if isinstance(source, ModelProto) else parsed(source)
        self.name = path.stem if path else proto.graph.name or "model"
        self.refused: list[tuple[str, str, str]] = []
        model = read_proto(proto, path.parent if path else None)
        declared = with_sizes(model.inputs, sizes)
        self.room = _MOST_COMPUTED + 8 * sum(value.data.size for value in model.constants.values())
        self.model = replace(model, inputs=declared).used()
        self.left = [_MOST_REPEATED]  # shared with the readers of subgraphs
        self.declared = {output.name: output for output in model.outputs}

    def graph(self) -> Graph:
        """Convert everything."""
        model = self._prepared()
        emitter = self.emitter(self.room)
        values: dict[str, Value] = dict(model.constants)
        for declared in model.inputs:
            shape = tuple(n for n in declared.shape or () if isinstance(n, int))
            q = emitter.meanings.get(declared.name) if declared.dtype not in ("float32", "bool") else None
            try:
                tensor = emitter.build.graph.add_input(Tensor(declared.name, shape, declared.dtype, q))
            except ValueError as error:
                raise InputError(f"input {shown(declared.name)}: {error}") from None
            values[declared.name] = Flow(declared.name, tensor, plain(len(shape)))
        for node in model.nodes:
            self._convert(emitter, node, values)
        missing = [output.name for output in model.outputs if output.name not in values]
        if self.refused:
            raise UnsupportedNodesError(self.refused)
        if missing:
            raise InputError(f"nothing makes the output {shown(missing[0])}")
        return finished(emitter, model.outputs, values)

    def _prepared(self) -> Model:
        """The nodes after all rewrites."""
        for node in self.model.nodes:
            self._check_inputs(node)
        self.ready = fuse(recognize(self._folded(expand(self._folded(self.model)))))
        return self.ready

    def emitter(self, room: int) -> Emitter:
        """What builds the graph."""
        emitter = Emitter(self.name, targets(self.ready), meanings(self.ready), room)
        emitter.reader = self
        return emitter

    def inside(self, model: Model, constants: Mapping[str, Fixed]) -> "_Reader":
        """The same for a subgraph, some of whose inputs and captured values are known."""
        self.left[0] -= len(model.nodes) + 1
        if self.left[0] < 0:
            raise InputError(f"subgraphs repeat more than {_MOST_REPEATED:,} nodes")
        inner = copy(self)
        inner.refused = []
        inner.model = replace(model, constants={**model.constants, **constants})
        inner._prepared()
        self.room = inner.room
        return inner

    def convert(self, emitter: Emitter, values: dict[str, Value]) -> None:
        """Add what the nodes of a subgraph become; values get what they make."""
        values |= self.ready.constants
        for node in self.ready.nodes:
            self._convert(emitter, node, values)
        if self.refused:
            nodes = ", ".join(
                f"{shown(name)} ({shown(op)[1:-1]}{': ' if why else ''}{why})"
                for name, op, why in self.refused
            )
            raise UnsupportedError(f"in its subgraph, node {nodes}")

    def _folded(self, model: Model) -> Model:
        """Without the nodes whose outputs are known beforehand."""
        constants, nodes = dict(model.constants), list[FileNode]()
        for node in model.nodes:
            inputs = [constants.get(name) for name in node.inputs]
            ready = all(
                value is not None or not name for value, name in zip(inputs, node.inputs, strict=True)
            )
            made = self._fold(node, inputs) if ready else None
            if made is None:
                nodes.append(node)
            else:
                constants |= dict(zip(node.outputs, made, strict=False))
        return replace(model, nodes=nodes, constants=constants)

    def _fold(self, node: FileNode, inputs: list[Fixed | None]) -> list[Fixed] | None:
        """Outputs of a node whose inputs are known, if it can be computed beforehand."""
        if not (foldable(node) or (node.op in _PASSED and inputs)):
            return None
        try:
            if foldable(node):
                return self._counted(fold(node, inputs), inputs)
            made = CONVERSIONS[node.op](_NOTHING, node, list(inputs))
            return self._counted([value for value in made if isinstance(value, Fixed)], inputs)
        except UnsupportedError:
            return None  # said when the node is converted
        except InputError as error:
            raise InputError(f"node {shown(node.name)}: {error}") from None
        except _DAMAGE as error:
            raise InputError(f"node {shown(node.name)}: damaged: {error or type(error).__name__}") from None

    def _counted(self, made: list[Fixed], inputs: list[Fixed | None]) -> list[Fixed]:
        """Constants that were computed, if there is room for them."""
        given = [id(value.data) for value in inputs if value is not None]
        self.room -= sum(v.data.size for v in made if v.data.base is None and id(v.data) not in given)
        if self.room < 0:
            raise InputError("its constant result is too large, with those of the nodes before it")
        return made

    def _convert(self, emitter: Emitter, node: FileNode, values: dict[str, Value]) -> None:
        """Add what a node becomes; remember it if there is no conversion."""
        inputs = [values.get(name) for name in node.inputs]
        absent = [name for name, value in zip(node.inputs, inputs, strict=True) if name and value is None]
        conversion = CONVERSIONS.get(node.op)
        if absent:
            if conversion is None and not foldable(node):
                self.refused.append((node.name, node.op, ""))
            return  # what makes it was refused
        try:
            if foldable(node) and all(value is None or isinstance(value, Fixed) for value in inputs):
                fixed = [value for value in inputs if not isinstance(value, Flow)]
                made = self._counted(fold(node, fixed), fixed)
            elif conversion is None:
                why = "there is no way to do it on the accelerator"
                made = on_host(emitter, node, inputs, why, self.declared)
            else:
                made = self._converted(conversion, emitter, node, inputs)
        except UnsupportedError as error:
            self.refused.append((node.name, node.attributes.get("op", node.op), str(error)))
            return
        except InputError as error:
            raise InputError(f"node {shown(node.name)}: {error}") from None
        except _DAMAGE as error:
            raise InputError(f"node {shown(node.name)}: damaged: {error or type(error).__name__}") from None
        made = self._completed(emitter, node, inputs, made)
        values.update(
            {name: value for name, value in zip(node.outputs, made, strict=False) if name and value}
        )

    def _converted(
        self, conversion: Conversion, emitter: Emitter, node: FileNode, inputs: list[Value | None]
    ) -> Sequence[Value | None]:
        """What a conversion makes, or where it has no way, the host's version of the operator."""
        try:
            return conversion(emitter, node, inputs)
        except UnsupportedError as error:
            return on_host(emitter, node, inputs, str(error), self.declared)

    @staticmethod
    def _check_inputs(node: FileNode) -> None:
        """Refuse a node with fewer or more inputs than its operator has; what rewrites nodes relies on it."""
        conversion = CONVERSIONS.get(node.op)
        try:
            if conversion is not None:
                conversion.checked([name or None for name in node.inputs])
        except InputError as error:
            raise InputError(f"node {shown(node.name)}: {error}") from None

    def _completed(
        self, emitter: Emitter, node: FileNode, inputs: list[Value | None], made: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        """Outputs with those that a conversion does not make and something reads."""
        missing = {name for name in node.outputs[len(made) :] if name}
        read = {name for other in self.model.nodes for name in other.inputs} if missing else set()
        if not missing & (read | {output.name for output in self.model.outputs}):
            return made
        first = next(i for i, name in enumerate(node.outputs) if name in missing)
        try:
            rest = on_host(
                emitter, node, inputs, f"its output {first + 1} is no other operator's", self.declared
            )
        except UnsupportedError as error:
            self.refused.append((node.name, node.op, f"output {first + 1} is read: {error}"))
            return made
        return [*made, *rest[len(made) :]]


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


@converts(":refused", inputs=(0, None))
def _refuse(emitter: Emitter, node: FileNode, inputs: list[Value | None]) -> list[Value]:
    """A node that a rewrite refused."""
    raise node.attributes["error"]
