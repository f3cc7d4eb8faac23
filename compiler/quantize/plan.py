"""Quantization plan of a float graph: rewrites, nodes to quantize, and tensors that share a quantization."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node, rebuild, unused_name
from compiler.ir.ops import BINARY_OPS, MOVING, OPS, QuantizedForm
from compiler.ir.tensor import IDENTITY, Quantization, Tensor
from compiler.lowering.partition import BOUNDARY_REASON
from compiler.quantize.report import INFINITE_VALUES
from compiler.util.scaling import DENSE, block_factors
from hw.errors import InputError, did_you_mean, shown

#: Operators that mark a model as quantized even if their integers have the identity quantization.
_PRODUCTS = frozenset(("conv2d", "depthwise_conv2d", "conv_transpose2d", "matmul", *DENSE))
#: Operators that convert between floating-point values and integers.
_CONVERTING = frozenset(("dequantize", "dynamic_quantize", "dynamic_scale", "dynamic_zero"))
#: Operators that only change the layout of a tensor.
LAYOUT = ("reshape", "transpose")


def is_float(graph: Graph) -> bool:
    """Return True if a graph computes on float32 values and not on quantized ones; plain integers are allowed."""
    return obstacle(graph) is None


def obstacle(graph: Graph) -> str | None:
    """Return why a graph is not a float model, as a phrase that follows the model's name; None if it is one."""
    found = _first_quantized(graph)
    if found is not None:
        node, numbers = found
        return f"is quantized already: node {node.name!r} ({node.operator}) computes on {numbers}"
    nodes = [(each, node) for each, node in graph.walk() if _on_floats(each, node)]
    edge = any(node.op in _CONVERTING for _, node in graph.walk())
    if all(edge and node.op in LAYOUT for _, node in nodes):
        return "has nothing to quantize: no node computes on float32 numbers"
    return None


def left_float(graph: Graph, host: Mapping[str, str]) -> dict[str, str]:
    """Return the reasons why nodes run on the host, with a note added for float nodes of a quantized model."""
    found = _first_quantized(graph)
    if found is None:
        return dict(host)
    because = f"; not quantized, as the model is already (node {found[0].name!r})"
    floats = {node.name for each, node in graph.walk() if _on_floats(each, node)}
    computing = {node.name for _, node in graph.walk() if node.op not in MOVING | {"onnx", "quantize"}}
    return {name: why + because if name in floats & computing else why for name, why in host.items()}


def _first_quantized(graph: Graph) -> tuple[Node, str] | None:
    """Return the first node that computes on quantized values, and a description of the values; None if none does."""
    for each, node in graph.walk():
        numbers = _quantized(each, node)
        if numbers is not None:
            return node, numbers
    return None


def touches_floats(graph: Graph, node: Node) -> bool:
    """Return True if a node has a float32 input or output that is not constant."""
    tensors = (graph.tensors[name] for name in (*node.inputs, *node.outputs))
    return any(tensor.dtype == "float32" and not tensor.constant for tensor in tensors)


def _on_floats(graph: Graph, node: Node) -> bool:
    return node.op not in _CONVERTING and touches_floats(graph, node)


def _quantized(graph: Graph, node: Node) -> str | None:
    """Return a description of the quantized values that a node computes on; None if there are none.

    Moving or dequantizing integers does not count as computing. Plain integers, such as masks and indices, do not count
    as quantized values. A QuantizeLinear node on the host counts, whatever its type.
    """
    if node.op == "onnx" and node.operator == "QuantizeLinear":
        return f"{graph.out(node).dtype} numbers {node.outputs[0]!r}"
    if node.op in MOVING or node.op in ("dequantize", "onnx") or node.bodies:
        return None
    quantizes = node.op in ("quantize", "requantize")
    for name in (*node.inputs, *node.outputs):
        tensor = graph.tensors[name]
        if tensor.quantization is None or tensor.constant:
            continue
        if quantizes or tensor.quantization != IDENTITY or node.op in _PRODUCTS:
            return f"{tensor.dtype} numbers {name!r}"
    return None


def without_hybrids(graph: Graph) -> tuple[Graph, dict[str, Tensor]]:
    """Return a float model in which the quantized constants read by float nodes are dequantized.

    TFLite models with dynamic-range quantization and ONNX models whose weights alone are quantized have such constants.

    Returns
    -------
    Graph, dict
        The float model, and, by name of the dequantized constants, the integers of which they consist if these fit
        int8 after their zero points are subtracted: int8 tensors with the scales of the model and zero points of 0.
    """
    changed: dict[str, Tensor] = {}
    integers: dict[str, Tensor] = {}

    def dequantized(name: str) -> str:
        tensor = graph.tensors[name]
        if tensor.data is None or tensor.quantization is None:
            return name
        real_name = unused_name(f"{name}:real", graph.tensors)
        if real_name not in changed:
            q = tensor.quantization
            changed[real_name] = Tensor(real_name, tensor.shape, "float32", data=q.dequantized(tensor.data))
            symmetric = _symmetric(tensor.data, q)
            if symmetric is not None:
                quantization = Quantization(q.scale, (0,) * len(q.scale), q.axis)
                integers[real_name] = Tensor(name, tensor.shape, "int8", quantization, symmetric)
        return real_name

    nodes = []
    for node in graph:
        mixed = node.op not in ("dequantize", "onnx") and not node.bodies and touches_floats(graph, node)
        ins = tuple(dequantized(name) for name in node.inputs) if mixed else node.inputs
        nodes.append(replace(node, inputs=ins))
    return (rebuild(graph, nodes, changed=changed) if changed else graph), integers


def _symmetric(data: NDArray, q: Quantization) -> NDArray[np.int8] | None:
    """Return 8-bit integers minus their zero points; None if these differences do not fit int8."""
    if data.dtype not in (np.int8, np.uint8):
        return None
    shape = [1] * data.ndim
    if q.axis is not None:
        shape[q.axis] = -1
    centred = data.astype(np.int64) - np.array(q.zero_point, np.int64).reshape(shape)
    return centred.astype(np.int8) if centred.min() >= -128 and centred.max() <= 127 else None


def keeps_blocks(graph: Graph, node: Node, lanes: int | None) -> bool:
    """Return True if a dense node with scales for blocks of weights keeps their integers when it is quantized.

    Parameters
    ----------
    lanes : int or None
        Rows of a tile of weights on the target, 0 or None, as for `compiler.quantize.quantize`.
    """
    _, values, scales = (graph.tensors[name].data for name in node.inputs[:3])
    if values is None or scales is None or lanes == 0:
        return False
    block = node.attributes["block"]
    whole = lanes is None or block % lanes == 0 or block >= values.shape[1]
    return whole and block_factors(values, scales, block) is not None


def without_blocks(graph: Graph, remains: Callable[[Node], bool]) -> Graph:
    """Return a float model in which dense nodes with scales for blocks of weights have float weights instead.

    Parameters
    ----------
    graph : Graph
        The float model.
    remains : function
        Returns True for a node that is not changed.
    """
    changed: dict[str, Tensor] = {}

    def real(node: Node) -> Node:
        _, values, scales = graph.ins(node)[:3]
        if values.dtype != "int8" or values.quantization or values.data is None or scales.data is None:
            return node
        name = unused_name(f"{values.name}:real", graph.tensors)
        wide = np.repeat(scales.data, min(node.attributes["block"], values.shape[1]), 1)[:, : values.shape[1]]
        data = np.asarray(values.data * wide, np.float32)
        changed[name] = Tensor(name, values.shape, "float32", data=data)
        return replace(node, op="dense", inputs=(node.inputs[0], name, *node.inputs[3:]), attributes={})

    nodes = [real(node) if node.op == "block_dense" and not remains(node) else node for node in graph]
    return rebuild(graph, nodes, changed=changed) if changed else graph


#: Reason for not quantizing a node without float32 values.
INTEGERS = "integers are not quantized"
EDGE_INSIDE = "float at the edge of a subgraph"

#: Operators with constant weights, with the axis of the output channels.
WEIGHTED = {name: spec.weights_axis for name, spec in OPS.items() if spec.weights_axis is not None}
#: Operators that move or select elements, whose inputs and outputs share one quantization.
_SHARED = frozenset(name for name, spec in OPS.items() if spec.quantized == QuantizedForm.SHARED)
#: Normalizations, whose scales and biases remain float32.
NORMS = frozenset(name for name, spec in OPS.items() if spec.quantized == QuantizedForm.NORM)
#: Operators whose output quantization is prescribed by TFLite.
FIXED = {name: spec.output for name, spec in OPS.items() if spec.output is not None}


#: Quantization of gates in the steps of recurrent networks. TFLite's quantization of sigmoid does not contain 1: a
#: forget gate of 1 would lose 0.4% of the state in each step.
_IN_STEPS = {"sigmoid": Quantization.per_tensor(1 / 128, -128)}


def quantizable(op: str) -> bool:
    """Return True if an operator has a quantized form."""
    return OPS[op].quantized is not None


def as_int8(x: Tensor) -> Quantization | None:
    """Return the quantization of an 8-bit tensor after conversion to int8; None for other types or several scales."""
    q = x.quantization
    if q is None or not q.whole or x.dtype not in ("int8", "uint8"):
        return None
    return Quantization.per_tensor(q.scale[0], q.zero_point[0] - (128 if x.dtype == "uint8" else 0))


def kept_float(graph: Graph, skip: Collection[str], endless: Collection[str] = ()) -> dict[str, str]:
    """Return the nodes that are not quantized, each with the reason.

    Parameters
    ----------
    graph : Graph
        The float model to quantize.
    skip : collection of str
        Names of nodes or operators that the user excludes from quantization.
    endless : collection of str
        Tensors with non-finite values for at least one calibration sample.

    Raises
    ------
    InputError
        A name in `skip` is neither a node nor an operator of the graph.
    """
    _check_names(graph, skip, names_in(graph), "keep float")
    edge = _edges(graph)
    reasons = {}
    for node in graph:
        why = BOUNDARY_REASON if node.name in edge else _obstacle(graph, node, endless)
        if why is None and not graph.names_of(node).isdisjoint(skip):
            why = "asked to stay float"
        if why is not None:
            reasons[node.name] = why
    return reasons


def names_in(graph: Graph) -> set[str]:
    """Return the names of all nodes and operators of a graph and its subgraphs, also those in the source model."""
    return {name for each, node in graph.walk() for name in each.names_of(node)}


#: Maximum number of names in a message about an unknown name.
_MAX_LISTED = 12


def _check_names(graph: Graph, names: Collection[str], known: Collection[str], purpose: str) -> None:
    """Raise InputError if a name is unknown; the message lists a similar name, or else the first names of the model."""
    for name in names:
        if name not in known:
            first = (each for every, node in graph.walk() for each in sorted(every.names_of(node)))
            listed = ", ".join(islice(dict.fromkeys(first), _MAX_LISTED))
            hint = did_you_mean(name, known) or f" (there are {listed}{', ...' * (len(known) > _MAX_LISTED)})"
            raise InputError(f"{graph.name!r} has no node and no operator {shown(name)} to {purpose}{hint}")


def _edges(graph: Graph) -> set[str]:
    """Return the nodes that change the layout or the floating-point type of float inputs before, or of float outputs
    after, all computation.
    """
    relaid, first = {name for name in graph.inputs if _real(graph, name)}, set()
    for node in graph:
        widens = node.op == "dequantize" and _real(graph, node.inputs[0])
        if (node.op in LAYOUT or widens) and node.inputs[0] in relaid:
            first.add(node.name)
            relaid |= set(node.outputs)
    last: set[str] = set()
    for node in reversed(list(graph)):
        consumers = graph.consumers(node.outputs[0])
        changes = node.op in LAYOUT or (node.op == "dequantize" and _real(graph, node.inputs[0]))
        if changes and _real(graph, node.outputs[0]) and all(user.name in last for user in consumers):
            last.add(node.name)
    return first | last


def _real(graph: Graph, name: str) -> bool:
    return graph.tensors[name].dtype.startswith("float")


def _obstacle(graph: Graph, node: Node, endless: Collection[str]) -> str | None:
    """Return the reason why a node cannot be quantized; None if it can."""
    if node.bodies:
        return "control flow, whose subgraphs are quantized separately"
    if node.op == "onnx":
        return node.attributes["why"]
    if not touches_floats(graph, node):
        return INTEGERS
    if node.op == "dequantize":
        x = graph.ins(node)[0]
        if x.dtype.startswith("float"):
            return f"converts {x.dtype} to {graph.out(node).dtype} at the model boundary"
        return None if as_int8(x) else f"converts {x.dtype} to float32"
    if not quantizable(node.op):
        return f"{node.op} has no quantized form"
    ins, out = graph.ins(node), graph.out(node)
    data = ins[:1] if node.op == "gather" else [*ins[:1], *ins[2:]] if node.op == "block_dense" else ins
    for tensor in (*data, out):
        if tensor.dtype != "float32":
            return f"{tensor.name!r} is {tensor.dtype}, not float32"
        if tensor.name in endless or (tensor.data is not None and not np.isfinite(tensor.data).all()):
            return f"{tensor.name!r} {INFINITE_VALUES}, which int8 cannot represent"
    if node.op in (*WEIGHTED, *NORMS, "block_dense") and not all(tensor.constant for tensor in ins[1:]):
        return "its weights are not constant"
    return None


#: Name that stands for all nodes, and the one that stands for nodes that `quantize` chooses.
ALL, AUTO = "all", "auto"
#: Products whose results FUSE stores as int16 as well as int8.
_PRODUCTS_OF_WEIGHTS = ("conv2d", "depthwise_conv2d", *DENSE)


def int16_nodes(graph: Graph, names: Collection[str], kept: Collection[str]) -> set[str]:
    """Return the nodes that compute on int16 values: nodes with int16 results, and the readers of these results.

    Without its readers, a result would be rounded to int8 where it is read. A reader that only moves elements passes
    int16 on to its own readers.

    Parameters
    ----------
    graph : Graph
        The float model to quantize.
    names : collection of str
        Names of nodes, operators or inputs whose values become int16; "all" stands for all nodes.
    kept : collection of str
        Nodes that are not quantized.

    Raises
    ------
    InputError
        A name is neither a node, an operator nor an input of the graph.
    """
    _check_names(graph, names, names_in(graph) | {ALL, *graph.inputs}, "compute in int16")
    wide, found = {name for name in graph.inputs if name in names}, set[str]()
    for node in graph:
        chosen = ALL in names or not graph.names_of(node).isdisjoint(names)
        reads = any(name in wide for name in node.inputs)
        moves = reads and (node.op in _SHARED or (node.name in kept and node.op in LAYOUT))
        if chosen or moves:
            wide |= set(node.outputs)
        if chosen or reads:
            found.add(node.name)
    return found - set(kept) - {node.name for node in graph if node.op == "dequantize"}


def int16_tensors(graph: Graph, nodes: Collection[str], kept: Collection[str]) -> set[str]:
    """Return the tensors that are stored as int16: results of int16 nodes, and of products that only these read."""
    found = {name for node in graph if node.name in nodes for name in node.outputs}
    for node in graph:
        if node.op not in _PRODUCTS_OF_WEIGHTS or node.name in kept:
            continue
        readers = [user.name for user in graph.consumers(node.outputs[0])]
        if readers and all(name in nodes for name in readers):
            found.add(node.outputs[0])
    return found


class Sharing:
    """Groups of tensors that share a quantization.

    Parameters
    ----------
    graph : Graph
        The float model to quantize.
    kept : collection of str
        Nodes that are not quantized.

    Attributes
    ----------
    fixed : dict
        Quantizations prescribed by operators, by representative tensor of the group.
    covered : set of str
        Tensors whose own range is ignored because a clip follows.
    """

    def __init__(self, graph: Graph, kept: Collection[str]):
        self.graph = graph
        self.parent: dict[str, str] = {}
        self.fixed: dict[str, Quantization] = {}
        self.covered: set[str] = set()
        groups: dict[str, str] = {}
        for node in graph:
            if node.name not in kept:
                self._add(node, kept)
        for node in graph:
            group = graph.tensors[node.outputs[0]].group
            if group and node.name not in kept:
                self._union(groups.setdefault(group, node.outputs[0]), node.outputs[0])

    def root(self, name: str) -> str:
        """Return the representative tensor of a tensor's group."""
        while name in self.parent:
            name = self.parent[name]
        return name

    def _union(self, a: str, b: str) -> None:
        a, b = self.root(a), self.root(b)
        if a == b:
            return
        self.parent[b] = a
        if b in self.fixed:
            self.fixed[a] = self.fixed.pop(b)

    def _add(self, node: Node, kept: Collection[str]) -> None:
        (out,) = node.outputs
        if node.op in FIXED:
            step = self.graph.tensors[out].group and node.op in _IN_STEPS
            self.fixed[out] = _IN_STEPS[node.op] if step else FIXED[node.op]
        elif node.op == "dequantize":
            converted = as_int8(self.graph.tensors[node.inputs[0]])
            assert converted is not None
            self.fixed[out] = converted
        elif node.op == "clip":
            self._clip(node, kept)
        elif node.op in _SHARED:
            names = node.inputs[:1] if node.op == "gather" else node.inputs
            prescribed = {self.fixed.get(self.root(name)) for name in names}
            if node.op == "pad" and node.attributes["value"] != 0:
                prescribed.add(None)
            for name in names:
                # An input with another prescribed quantization is requantized instead.
                if len(prescribed) == 1 or self.root(name) not in self.fixed:
                    self._union(name, out)

    def _clip(self, node: Node, kept: Collection[str]) -> None:
        """Use the range of a clip's output for its input if no other node reads the input."""
        (x,), (out,) = node.inputs, node.outputs
        producer = self.graph.producer(x)
        single_use = len(self.graph.consumers(x)) == 1 and x not in self.graph.outputs
        if producer is None or producer.name in kept or not single_use:
            return
        if producer.op in _SHARED or producer.op in FIXED or producer.op in ("clip", "dequantize"):
            return
        self.covered.add(x)
        self._union(out, x)


#: Magnitude beyond which the function equals its limit within half a quantization step of its result.
_SATURATION = {"sigmoid": math.log(511), "tanh": math.atanh(1 - 1 / 256)}


def saturations(sharing: Sharing, wide: Collection[str], largest: Mapping[str, float]) -> dict[str, float]:
    """Return the largest useful magnitude of groups of tensors that affect only operands of sigmoid, tanh and clips.

    An operand of such a function is useful up to the saturation of the function, and a summand of the operand up to the
    saturation plus the largest magnitude of the other summand.

    Parameters
    ----------
    sharing : Sharing
        Groups of tensors of a float model.
    wide : collection of str
        Tensors that sums and products read as int16.
    largest : dict
        Largest magnitude of each tensor, by name.

    Returns
    -------
    dict
        Magnitude by representative tensor of the group; groups without such a limit are absent.
    """
    graph = sharing.graph
    useful: dict[str, float] = dict.fromkeys(graph.outputs, math.inf)
    for node in reversed(list(graph)):
        limit = useful.get(node.outputs[0], 0.0)
        for index, name in enumerate(node.inputs):
            if name in wide and node.outputs[0] in wide:
                continue
            here = math.inf
            if node.op in _SATURATION:
                here = _SATURATION[node.op]
            elif node.op == "clip":
                here = max(abs(node.attributes["low"]), abs(node.attributes["high"]))
            elif node.op in ("slice", "reshape", "transpose", "concat"):
                here = limit
            elif node.op in ("add", "sub"):
                here = limit + largest.get(node.inputs[1 - index], math.inf)
            useful[name] = max(here, useful.get(name, 0.0))
    found: dict[str, float] = {}
    for name, limit in useful.items():
        root = sharing.root(name)
        found[root] = max(limit, found.get(root, 0.0))
    return {root: limit for root, limit in found.items() if 0 < limit < math.inf}


def accumulated(graph: Graph, kept: Collection[str]) -> set[str]:
    """Return the tensors that need more than 8 bits because rounding errors accumulate in them.

    These are the states of unrolled recurrent networks (`Tensor.group`) that each step computes from the preceding
    state by sums and products alone, such as the cell state of an LSTM, and the products that are added to them.

    Parameters
    ----------
    graph : Graph
        The float model to quantize.
    kept : collection of str
        Nodes that are not quantized.
    """
    nodes = [node for node in graph if node.op in BINARY_OPS and node.name not in kept]
    outputs = {node.outputs[0]: node for node in nodes if graph.out(node).group}
    if not outputs:
        return set()
    import networkx as nx  # slow to import, and needed for recurrent networks only

    steps = nx.DiGraph()
    for name, node in outputs.items():
        steps.add_edges_from(
            (graph.tensors[each].group, graph.tensors[name].group) for each in node.inputs if each in outputs
        )
    states = set[str]()
    for component in nx.strongly_connected_components(steps):
        if len(component) > 1 or steps.has_edge(*component, *component):
            states |= component
    found = {name for name in outputs if graph.tensors[name].group in states}
    summands = {each for name in found if outputs[name].op != "mul" for each in outputs[name].inputs}
    return found | (summands & outputs.keys())


def prepared(
    graph: Graph, names: Collection[str], integers: Mapping[str, Tensor]
) -> tuple[Graph, dict[str, Tensor]]:
    """Return a float graph that is easier to quantize.

    Parameters
    ----------
    graph : Graph
        The float graph.
    names : collection of str
        Nodes and operators that the user names, which are not changed.
    integers : dict
        Integers, by name, of which float constants consist (`without_hybrids`).

    Returns
    -------
    Graph, dict
        The graph, and the integers of its constants, whose scales include factors that are folded into them.
    """
    return folded_scales(pools_as_means(graph), names, integers)


def pools_as_means(graph: Graph) -> Graph:
    """Replace average pooling over whole images by means, whose result has a scale of its own.

    The result of a pooling has the scale of its operand, although a mean over many pixels has a much smaller range.
    """
    nodes = [
        replace(node, op="reduce_mean", attributes=_MEAN) if _is_global(graph, node) else node
        for node in graph
    ]
    return rebuild(graph, nodes)


#: Attributes of a mean over all pixels of images.
_MEAN = {"axes": (1, 2), "keep": True}


def _is_global(graph: Graph, node: Node) -> bool:
    if node.op != "avg_pool2d" or any(node.attributes["pads"]):
        return False
    x = graph.ins(node)[0]
    return x.dtype == "float32" and tuple(node.attributes["kernel"]) == x.shape[1:3]


#: Products with constant weights into which later factors and summands are folded.
_FOLDED_INTO = _PRODUCTS_OF_WEIGHTS


def folded_scales(
    graph: Graph, names: Collection[str] = (), integers: Mapping[str, Tensor] | None = None
) -> tuple[Graph, dict[str, Tensor]]:
    """Fold constant factors and summands of each channel into the weights and the bias of the preceding product.

    Parameters and results are those of `prepared`.
    """
    changed: dict[str, Tensor] = {}
    known = dict(integers or {})
    nodes: dict[str, Node] = {}  # by output
    for node in graph:
        found = None
        if node.op in ("mul", "add", "sub") and graph.names_of(node).isdisjoint(names):
            found = _folded(graph, node, nodes, changed, known)
        if found is not None:
            del nodes[node.inputs[0] if node.inputs[0] in nodes else node.inputs[1]]
        nodes[node.outputs[0]] = found or node
    return (rebuild(graph, list(nodes.values()), changed=changed) if changed else graph), known


def _folded(
    graph: Graph,
    node: Node,
    nodes: dict[str, Node],
    changed: dict[str, Tensor],
    integers: dict[str, Tensor],
) -> Node | None:
    """Return the product with a factor or summand folded in; None if `node` does not permit it."""
    x, other = node.inputs
    if x not in nodes and node.op != "sub":
        x, other = other, x
    product, constant = nodes.get(x), graph.tensors[other].data
    if product is None or product.op not in _FOLDED_INTO or constant is None or x in graph.outputs:
        return None
    y = graph.out(node)
    if len(graph.consumers(x)) != 1 or y.dtype != "float32" or graph.tensors[x].shape != y.shape:
        return None
    # Factors are folded into the scales of blocks of weights.
    first = 2 if product.op == "block_dense" else 1
    data = [
        changed[name].data if name in changed else graph.tensors[name].data for name in product.inputs[first:]
    ]
    channels = y.shape[-1]
    if any(each is None or each.dtype != np.float32 for each in data) or not np.isfinite(constant).all():
        return None
    if constant.size != 1 and constant.shape != (*(1,) * (constant.ndim - 1), channels):
        return None
    row = np.broadcast_to(constant.reshape(-1), channels).astype(np.float64)
    weights = np.asarray(data[0], np.float64)
    bias = np.zeros(channels) if len(data) < 2 else np.asarray(data[1], np.float64)
    axis = OPS[product.op].weights_axis or 0
    parts: dict[str, NDArray] = {}
    if node.op == "mul":
        shape = [1] * weights.ndim
        shape[axis] = channels
        parts["weights"] = weights * row.reshape(shape)
        if len(data) > 1:
            parts["bias"] = bias * row
    else:  # the weights remain as they are, with the integers of which they may consist
        parts["bias"] = bias + (row if node.op == "add" else -row)
    inputs = list(product.inputs[: first + ("weights" not in parts)])
    own = integers.get(product.inputs[1])
    scaled = None if own is None or "weights" not in parts else _with_factors(own, row, axis)
    for part, values in parts.items():
        name = unused_name(f"{node.name}:{part}", graph.tensors, changed)
        if part == "weights" and scaled is not None and scaled.data is not None and scaled.quantization:
            integers[name], values = scaled, scaled.quantization.dequantized(scaled.data)
        changed[name] = Tensor(name, values.shape, "float32", data=values.astype(np.float32))
        inputs.append(name)
    return replace(product, inputs=tuple(inputs), outputs=node.outputs)


def _with_factors(weights: Tensor, row: NDArray[np.float64], axis: int) -> Tensor | None:
    """Return integer weights whose scales are multiplied by a factor for each output; None unless all are positive."""
    q = weights.quantization
    if q is None or q.axis not in (None, axis):
        return None
    scales = (np.array(q.scale, np.float64) * row).astype(np.float32)
    if not ((scales > 0) & np.isfinite(scales)).all():
        return None
    if q.whole and (scales == scales[0]).all():
        return replace(weights, quantization=Quantization.per_tensor(float(scales[0])))
    values = tuple(float(each) for each in scales)
    return replace(weights, quantization=Quantization(values, (0,) * len(values), axis))
