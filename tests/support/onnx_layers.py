"""Splitting of quantized ONNX models into layers, each of which is a model with quantized inputs and output."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from compiler.api import compile
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from tests.support.exact_products import exact_products

Arrays = Mapping[str, np.ndarray]
_QUANTIZE = "QuantizeLinear"
#: Operators that only convert or reshape, which is no work for the accelerator.
_FORMS = (_QUANTIZE, "DequantizeLinear", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")


@dataclass(frozen=True)
class QuantizedLayer:
    """A layer between quantized tensors.

    Parameters
    ----------
    model : ModelProto
        Model that consists of the nodes of the layer.
    inputs : dict
        Values that onnxruntime computed for the layer's inputs in the whole model.
    wanted : array
        Value that onnxruntime computed for the layer's output.
    """

    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    wanted: np.ndarray

    @property
    def name(self) -> str:
        """Names of the layer's operators and of its output."""
        ops = [n.op_type for n in self.model.graph.node if n.op_type not in _FORMS]
        return f"{'+'.join(ops)} -> {self.model.graph.output[0].name}"


def cut(model: onnx.ModelProto, inputs: Arrays) -> Iterator[QuantizedLayer]:
    """Yield a layer for each quantized activation of the model, with values from onnxruntime without optimizations."""
    producer = {name: node for node in model.graph.node for name in node.output}
    held = {tensor.name: tensor for tensor in model.graph.initializer}
    made = [
        node.output[0]
        for node in model.graph.node
        if node.op_type == _QUANTIZE and _activation(node.input[0], producer, held)
    ]
    if not made:
        return
    values = dict(inputs) | _values(model, inputs, made)
    for name in made:
        nodes, ends = _cone(name, producer, set(values) | set(held))
        given = {end: values[end] for end in ends if end in values}
        if not given:
            continue
        graph = helper.make_graph(
            [node for node in model.graph.node if node.output[0] in nodes],
            name,
            [_described(key, array) for key, array in given.items()],
            [_described(name, values[name])],
            [held[end] for end in ends if end in held],
        )
        if not any(node.op_type not in _FORMS for node in graph.node):
            continue  # at the model's edge, float inputs are quantized
        layer = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
        yield QuantizedLayer(layer, given, values[name])


def _activation(name: str, producer: Mapping[str, onnx.NodeProto], held: Mapping[str, object]) -> bool:
    """Return True if a tensor depends on the model's inputs."""
    if name in producer:
        return any(_activation(each, producer, held) for each in producer[name].input if each)
    return name not in held


def _cone(
    name: str, producer: Mapping[str, onnx.NodeProto], known: set[str]
) -> tuple[set[str], dict[str, None]]:
    """Return the first outputs of the nodes that compute a tensor from known tensors, and the known tensors read."""
    nodes, ends, open_ = set[str](), dict[str, None](), [name]
    while open_:
        node = producer[open_.pop()]
        if node.output[0] in nodes:
            continue
        nodes.add(node.output[0])
        for each in filter(None, node.input):
            if each in known:
                ends[each] = None
            else:
                open_.append(each)
    return nodes, ends


def _described(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _values(model: onnx.ModelProto, inputs: Arrays, names: list[str]) -> dict[str, np.ndarray]:
    """Return the values of tensors of a model, computed by onnxruntime with exact integer products."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        exact_products(whole).SerializeToString(), options, ["CPUExecutionProvider"]
    )
    return dict(zip(names, (np.asarray(each) for each in session.run(names, dict(inputs))), strict=True))


def differing(layer: QuantizedLayer, folder: Path, within: int = 1) -> tuple[int, list[str]]:
    """Return the number of values that differ on the accelerator, and the nodes on the host.

    No value may differ by more than `within`.
    """
    path = folder / "layer.onnx"
    onnx.save(layer.model, path)
    network = compile(path, "n16")
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        (found,) = Session(device, network).run(layer.inputs).values()
    off = np.abs(found.astype(int) - layer.wanted)
    assert off.max() <= within, f"{layer.name}: {off.max()} off in {np.count_nonzero(off)} of {off.size}"
    return int(np.count_nonzero(off)), [f"{layer.name}: {each.op}: {each.reason}" for each in network.host]
