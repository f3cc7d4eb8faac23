"""Damaged model files of many kinds, each with the name that the error message must contain."""

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import onnx
from ai_edge_litert import schema_py_generated as schema
from onnx import TensorProto, helper, numpy_helper

from scripts.networks.digits import MODEL
from tests.kernel_library.models import weighted
from tests.numerics.litert import Tensor

HUGE = 1 << 40
#: Invalid scales.
SCALES = (np.nan, np.inf, 0.0, -1.0)
#: Invalid locations of external data; the folder contains a link to a file outside and a link to that file's folder.
ESCAPES = (
    "../secret",
    "/etc/passwd",
    "a/../../secret",
    "link",
    "links/secret",
    "..",
    ".",
    "",
    "x\0y",
    "C:\\secret/../..",
)
Change = Callable[[onnx.ModelProto], None]


class Damage(NamedTuple):
    """A damaged model file.

    Parameters
    ----------
    what : str
        Description of the damage.
    suffix : str
        File name extension.
    data : bytes
        Contents of the file.
    named : str or None
        Name that the message must contain; None if the damage is random and may be harmless.
    """

    what: str
    suffix: str
    data: bytes
    named: str | None = None


def damages() -> Iterator[Damage]:
    """Yield all damaged files, the same ones each time."""
    yield from _random()
    yield from _onnx()
    yield from _tflite()


def _random() -> Iterator[Damage]:
    """Yield truncated files and files with changed bytes or words."""
    for suffix, whole in ((".onnx", MODEL.read_bytes()), (".tflite", _convolution())):
        for seed in range(20):
            rng = random.Random(seed)
            yield Damage(f"cut {seed}", suffix, whole[: rng.randrange(len(whole))])
        for seed in range(40):
            rng, data = random.Random(seed), bytearray(whole)
            for _ in range(rng.randrange(1, 6)):
                place = rng.choice((rng.randrange(len(data)), rng.randrange(min(900, len(data)))))
                word = rng.choice((rng.randbytes(1), b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\0"))
                data[place : place + len(word)] = word
            yield Damage(f"bytes {seed}", suffix, bytes(data[: len(whole)]))


def _changed(change: Change) -> bytes:
    model = onnx.load(MODEL)
    change(model)
    return model.SerializeToString()


def _put(name: str, array: np.ndarray) -> Change:
    """Return a function that replaces the contents of a model's constant."""

    def change(model: onnx.ModelProto) -> None:
        (place,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
        place.CopyFrom(numpy_helper.from_array(array, name))

    return change


def _onnx() -> Iterator[Damage]:
    model = onnx.load(MODEL)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for name, array in constants.items():
        if name.endswith("_scale"):
            for bad in SCALES:
                yield Damage(
                    f"{name} {bad}", ".onnx", _changed(_put(name, np.full_like(array, bad))), name[:-6]
                )
        if name.endswith(("_weight", "_bias")):
            wrong = np.zeros((*array.shape, 2), array.dtype)
            yield Damage(
                f"{name} of another shape", ".onnx", _changed(_put(name, wrong)), name.rpartition("_")[0]
            )
            yield Damage(f"{name} of 2^40", ".onnx", _changed(_stretched(name)), name)
            for number, place in enumerate(ESCAPES):
                yield Damage(f"{name} in {place!r}", ".onnx", _changed(_outside(name, place, number)), name)
    for index, node in enumerate(model.graph.node):
        for what, change in (("unknown", _unknown), ("cycle", _cycle), ("no input", _lost)):
            yield Damage(f"{node.name} {what}", ".onnx", _changed(change(index)), node.name)
    yield Damage("an input of 2^40", ".onnx", _changed(_wide), "image")


def _stretched(name: str) -> Change:
    def change(model: onnx.ModelProto) -> None:
        (place,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
        place.dims[0] = HUGE

    return change


def _outside(name: str, location: str, number: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        (place,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
        place.ClearField("raw_data")
        place.data_location = TensorProto.EXTERNAL
        entries = {"location": location} | ({"offset": str(HUGE)} if number % 2 else {})
        for key, value in entries.items():
            place.external_data.add(key=key, value=value)

    return change


def _unknown(index: int) -> Change:
    return lambda model: setattr(model.graph.node[index], "op_type", "Wonder")


def _cycle(index: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        node = model.graph.node[index]
        node.input[0] = node.output[0]

    return change


def _lost(index: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node[index].input[0] = "nowhere"

    return change


def _wide(model: onnx.ModelProto) -> None:
    shape = helper.make_tensor_type_proto(TensorProto.INT8, [1, 1, HUGE, HUGE])
    model.graph.input[0].type.CopyFrom(shape)


def _convolution() -> bytes:
    """Return a TFLite file with a convolution of a 5x6x4 input to 3 channels."""
    options = schema.Conv2DOptionsT()
    options.padding, options.strideH, options.strideW = schema.Padding.SAME, 2, 2
    rng = np.random.default_rng(1)
    return weighted(
        schema.BuiltinOperator.CONV_2D,
        (schema.BuiltinOptions.Conv2DOptions, options),
        Tensor((1, 5, 6, 4), 0.5, 3),
        rng.integers(-127, 128, (3, 3, 3, 4)),
        [0.1, 0.2, 0.3],
        rng.integers(-99, 99, 3),
        Tensor((1, 3, 3, 3), 0.25, -7),
        0,
    )


def _rebuilt(change: Callable[[schema.ModelT], None]) -> bytes:
    import flatbuffers

    model = schema.ModelT.InitFromPackedBuf(_convolution(), 0)
    change(model)
    builder = flatbuffers.Builder(0)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _tflite() -> Iterator[Damage]:
    for index, name in enumerate("xwby"):
        for bad in SCALES:

            def scale(model: schema.ModelT, index: int = index, bad: float = bad) -> None:
                quantization = model.subgraphs[0].tensors[index].quantization
                quantization.scale = [bad] * len(quantization.scale)

            yield Damage(f"{name} {bad}", ".tflite", _rebuilt(scale), f"'{name}'")

        def shape(model: schema.ModelT, index: int = index) -> None:
            model.subgraphs[0].tensors[index].shape = [1 << 20, 1 << 20, 1 << 20, 1 << 20]

        def turned(model: schema.ModelT, index: int = index) -> None:
            model.subgraphs[0].tensors[index].shape = [7, 5, 3]

        def buffer(model: schema.ModelT, index: int = index) -> None:
            model.subgraphs[0].tensors[index].buffer = 77

        yield Damage(f"{name} of 2^80", ".tflite", _rebuilt(shape), f"'{name}'")
        yield Damage(f"{name} of another shape", ".tflite", _rebuilt(turned))
        yield Damage(f"{name} in no buffer", ".tflite", _rebuilt(buffer))

    def unknown(model: schema.ModelT) -> None:
        code = model.operatorCodes[0]
        code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.TOPK_V2

    def cycle(model: schema.ModelT) -> None:
        operator = model.subgraphs[0].operators[0]
        operator.inputs = [operator.outputs[0], *operator.inputs[1:]]

    def nowhere(model: schema.ModelT) -> None:
        operator = model.subgraphs[0].operators[0]
        operator.inputs = [1000, *operator.inputs[1:]]

    yield Damage("unknown", ".tflite", _rebuilt(unknown), "topk_v2_0")
    yield Damage("cycle", ".tflite", _rebuilt(cycle), "conv_2d_0")
    yield Damage("no tensor", ".tflite", _rebuilt(nowhere))
