"""The kinds of layers: for each its dataclass, tilings, tile model and code generator."""

from collections.abc import Callable
from typing import Any

from compiler.layers.base import Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.conv.tile_model import conv_tile_model
from compiler.layers.conv_transpose import ConvTransposeLayer, conv_transpose_tile_model
from compiler.layers.depthwise import DepthwiseLayer, depthwise_tile_model
from compiler.layers.dynamic_quantize import DynamicLayer, dynamic_tile_model
from compiler.layers.elementwise import ElementwiseLayer, elementwise_tile_model
from compiler.layers.layer_context import LayerContext
from compiler.layers.matmul import MatmulLayer, matmul_tile_model
from compiler.layers.move import MoveLayer, move_tile_model
from compiler.layers.norm import NormLayer, norm_tile_model
from compiler.layers.pool import PoolLayer, pool_tile_model
from compiler.layers.prelu import PReluLayer, prelu_tile_model
from compiler.layers.reduce import ReduceLayer, reduce_tile_model
from compiler.layers.softmax import SoftmaxLayer, softmax_tile_model
from compiler.layers.tile_pipeline import TilePipeline
from compiler.schedule.schedule import LayerSchedule

_FLOWS: dict[type[Layer], Callable[[Any, LayerSchedule, LayerContext], TilePipeline]] = {
    ConvLayer: conv_tile_model,
    DepthwiseLayer: depthwise_tile_model,
    MatmulLayer: matmul_tile_model,
    PoolLayer: pool_tile_model,
    ElementwiseLayer: elementwise_tile_model,
    SoftmaxLayer: softmax_tile_model,
    NormLayer: norm_tile_model,
    ReduceLayer: reduce_tile_model,
    MoveLayer: move_tile_model,
    PReluLayer: prelu_tile_model,
    DynamicLayer: dynamic_tile_model,
    ConvTransposeLayer: conv_transpose_tile_model,
}


def tile_model_of(layer: Layer, schedule: LayerSchedule, place: LayerContext) -> TilePipeline:
    """The flow of a layer under a schedule."""
    return _FLOWS[type(layer)](layer, schedule, place)
