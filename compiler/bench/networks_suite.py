"""Suite of published architectures with seeded weights, quantized, checked against the golden model and onnxruntime.

RTL outputs must equal those of the golden model bit by bit. The meaning of the quantized layers is checked per
operator: its numpy kernel against onnxruntime without optimizations on the same inputs; that the
accelerator's layers are also within one unit is tested by `tests/soak/test_quantized_layers.py`.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from compiler.bench.architectures import NETWORKS, model_file
from compiler.bench.case import Case, Work
from compiler.bench.qdq_node_builder import node_model
from compiler.frontends.model import read_model
from compiler.ir.graph import Graph
from compiler.passes import simplify
from compiler.quantize import quantize
from compiler.quantize.samples import random_samples
from compiler.reference import evaluate
from hw.errors import InputError, WorkError, shown

CASES = tuple(NETWORKS)
_ROUNDING = "onnxruntime"
#: Allowed difference from onnxruntime in units in the last place; float-defined operators round twice.
_LAST_PLACE, _FLOAT = 1, 2
_FLOAT_OPS = ("softmax", "layer_norm", "gelu", "sigmoid", "tanh", "exp")


def nets_case(name: str) -> Case:
    """Return the case for the name of a network.

    Raises
    ------
    InputError
        The network is unknown.
    """
    if name not in NETWORKS:
        raise InputError(f"a nets case must be one of {', '.join(NETWORKS)}, not {shown(name)}")
    return Case(name, "golden model; onnxruntime by operator", lambda rng: _work(name, rng), _ROUNDING)


def _work(name: str, rng: np.random.Generator) -> Work:
    graph = simplify(read_model(model_file(name)))
    quantized, _ = quantize(graph, random_samples(graph, int(rng.integers(1 << 31)), 1), rounding=_ROUNDING)
    quantized = simplify(quantized)
    (inputs,) = random_samples(graph, int(rng.integers(1 << 31)), 1)
    values = evaluate(quantized, inputs, rounding=_ROUNDING, keep=True)
    return Work(quantized, inputs, None, apart=_apart(quantized, values))


def _apart(graph: Graph, values: Mapping[str, NDArray]) -> int:
    """Return the largest difference of a layer from onnxruntime in units in the last place.

    Raises
    ------
    WorkError
        The difference exceeds the bound, or onnxruntime is not installed.
    """
    try:
        from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
    except ImportError:
        raise WorkError(
            "onnxruntime, the reference of this suite, is not installed: `make setup`, or "
            "`pip install -e '.[test]'` in the checkout, installs it"
        ) from None
    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    most = 0
    for node in graph:
        if graph.out(node).dtype == "float32":
            continue
        session = InferenceSession(
            node_model(graph, node).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        given = {each.name: values[each.name] for each in session.get_inputs()}
        (wanted,) = session.run(None, given)
        off = int(np.abs(values[node.outputs[0]].astype(np.int64) - np.asarray(wanted)).max())
        if off > (_FLOAT if node.op in _FLOAT_OPS else _LAST_PLACE):
            raise WorkError(f"node {node.name!r} ({node.op}) is {off} units away from onnxruntime")
        most = max(most, off)
    return most
