"""Kinds of layers: the performance model numbers them in its features, the language model has a word for each."""

from compiler.ir.identity import identity_of
from compiler.layers.base import Layer

#: From the stable name of a layer's type (`compiler.ir.identity`) to that of its kind, in the order of the numbers in
#: features. `hpm/n16.hpm` and `llm/model.safetensors` depend on names and order: new kinds come last.
LAYER_KINDS = {
    "ConvLayer": "conv",
    "DepthwiseLayer": "depthwise",
    "MatmulLayer": "matmul",
    "PoolLayer": "pool",
    "ElementwiseLayer": "elementwise",
    "SoftmaxLayer": "softmax",
    "NormLayer": "norm",
    "ReduceLayer": "reduce",
    "MoveLayer": "move",
    "PReluLayer": "prelu",
    "DynamicLayer": "dynamic",
    "ConvTransposeLayer": "convtranspose",
}
_NUMBERS = {kind: number for number, kind in enumerate(LAYER_KINDS.values())}


def kind_of(layer: Layer) -> str:
    """Stable name of a layer's kind."""
    return LAYER_KINDS[identity_of(type(layer)).name]


def kind_number(layer: Layer) -> int:
    """Number of a layer's kind in features."""
    return _NUMBERS[kind_of(layer)]
