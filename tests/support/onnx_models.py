"""Small ONNX models for tests, and their results in onnxruntime."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from compiler.frontends.onnx import read_onnx
from compiler.ir.graph import Graph
from compiler.reference.evaluate import evaluate
from tests.support.exact_products import exact_products

Arrays = Mapping[str, np.ndarray]
#: Operator, inputs, outputs and attributes of a node.
NodeText = tuple[str, str, str, dict[str, Any]]


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Return a node; inputs and outputs are space-separated names, in which "-" is an absent input or output."""
    domain = attributes.pop("domain", "")
    ins, outs = (["" if name == "-" else name for name in text.split()] for text in (inputs, outputs))
    return helper.make_node(op, ins, outs, name=f"{op}:{outs[0]}", domain=domain, **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Arrays,
    outputs: Sequence[str],
    constants: Arrays | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """Return a model whose inputs have the shapes and types of the given samples."""
    types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in inputs.items()}
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, types[name], array.shape) for name, array in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    answers = reference(made, inputs)
    for value in made.graph.output:
        kind = helper.np_dtype_to_tensor_dtype(answers[value.name].dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, answers[value.name].shape))
    return made


def reference(made: onnx.ModelProto, inputs: Arrays) -> dict[str, np.ndarray]:
    """Return onnxruntime's outputs, without optimizations and with exact integer products."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        exact_products(made).SerializeToString(), options, ["CPUExecutionProvider"]
    )
    names = [value.name for value in made.graph.output]
    return {
        name: np.asarray(array) for name, array in zip(names, session.run(None, dict(inputs)), strict=True)
    }


def read(folder: Path, made: onnx.ModelProto | bytes, **sizes: int) -> Graph:
    """Write a model to a file, read it, and return its graph."""
    path = folder / "model.onnx"
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return read_onnx(path, sizes)


def ops(graph: Graph) -> dict[str, int]:
    """Return the number of nodes of each operator."""
    return dict(Counter(node.op for node in graph))


def evaluated(graph: Graph, inputs: Arrays) -> dict[str, np.ndarray]:
    """Evaluate the graph on the host with onnxruntime's rounding."""
    return evaluate(graph, inputs, rounding="onnxruntime")


def check(folder: Path, made: onnx.ModelProto, inputs: Arrays, *, tolerance: float = 1e-5) -> Graph:
    """Return the graph of a model after a comparison of its outputs with onnxruntime's; integers must be equal.

    Parameters
    ----------
    folder : Path
        Folder for the model's file.
    made : ModelProto
        Model to read.
    inputs : dict
        Value of each input.
    tolerance : float
        Allowed error of float outputs, relative to the largest magnitude.
    """
    graph = read(folder, made)
    assert graph.inputs == list(inputs)
    wanted = reference(made, inputs)
    assert graph.outputs == list(wanted)
    for name, array in (*inputs.items(), *wanted.items()):
        assert (graph.tensors[name].shape, graph.tensors[name].dtype) == (array.shape, array.dtype.name)
    got = evaluated(graph, inputs)
    for name, array in wanted.items():
        limit = 0.0 if array.dtype.kind in "iu" else tolerance * max(1.0, float(np.abs(array).max()))
        np.testing.assert_allclose(got[name].astype(float), array.astype(float), rtol=0, atol=limit)
    return graph


def small(
    *nodes: onnx.NodeProto, shape: tuple = (2, 3), kind: int = TensorProto.FLOAT, **constants: np.ndarray
) -> onnx.ModelProto:
    """Return a model from x to y without checking that onnxruntime accepts it."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
