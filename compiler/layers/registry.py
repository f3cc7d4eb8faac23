"""Registry of the layer kinds, and of the operators that become layers.

To add a layer kind, declare a `LayerKind` at the end of its module and append it to `LAYER_KINDS`. A module that
lowers operators to a layer kind defined in another module declares those lowerings in its own `LOWERINGS`; include
that dict below.
"""

from compiler.layers import (
    conv_transpose,
    depthwise_codegen,
    elementwise_codegen,
    elementwise_ops,
    matmul,
    move_codegen,
    norm,
    pool_codegen,
    prelu,
    quantize_ops,
    reduce,
    resize,
    softmax,
)
from compiler.layers.base import Layer
from compiler.layers.conv import codegen as conv
from compiler.layers.layer_kind import LayerKind, Lowering

#: All layer kinds. The index of a kind in this tuple is its number in the features of the cost model, and the language
#: model's vocabulary has the kinds' words in this order; `cost/shipped.hpm` and `llm/model/model.safetensors`
#: depend on this. Append new kinds at the end.
LAYER_KINDS: tuple[LayerKind, ...] = (
    conv.KIND,
    depthwise_codegen.KIND,
    matmul.KIND,
    pool_codegen.KIND,
    elementwise_codegen.KIND,
    softmax.KIND,
    norm.KIND,
    reduce.KIND,
    move_codegen.KIND,
    prelu.KIND,
    quantize_ops.KIND,
    conv_transpose.KIND,
    resize.KIND,
)

#: Operators that become layers, by name.
LOWERINGS: dict[str, Lowering] = {
    **{op: lowering for kind in LAYER_KINDS for op, lowering in kind.lowerings.items()},
    # Lowerings to a layer kind of another module.
    **matmul.LOWERINGS,
    **quantize_ops.LOWERINGS,
    **elementwise_ops.LOWERINGS,
}

_BY_CLASS = {kind.layer: kind for kind in LAYER_KINDS}
_NUMBERS = {kind.layer: number for number, kind in enumerate(LAYER_KINDS)}


def kind_of(layer: Layer) -> LayerKind:
    """Return the kind of a layer."""
    return _BY_CLASS[type(layer)]


def kind_number(layer: Layer) -> int:
    """Return the index of a layer's kind in `LAYER_KINDS`, which is its number in the cost model's features."""
    return _NUMBERS[type(layer)]
