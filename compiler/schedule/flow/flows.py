"""The flow of any layer."""

from collections.abc import Callable
from typing import Any

from compiler.lower.conv_transpose import ConvTransposeLayer
from compiler.lower.dynamic import DynamicLayer
from compiler.lower.elementwise_layer import ElementwiseLayer
from compiler.lower.layer import ConvLayer, DepthwiseLayer, Layer, MoveLayer, PoolLayer, SoftmaxLayer
from compiler.lower.matmul import MatmulLayer
from compiler.lower.norm import NormLayer
from compiler.lower.prelu import PReluLayer
from compiler.lower.reduce import ReduceLayer
from compiler.schedule.flow.array import conv_flow, matmul_flow, transposed_flow
from compiler.schedule.flow.depthwise import depthwise_flow
from compiler.schedule.flow.fuse import (
    dynamic_flow,
    elementwise_flow,
    norm_flow,
    pool_flow,
    prelu_flow,
    reduce_flow,
    softmax_flow,
)
from compiler.schedule.flow.move import move_flow
from compiler.schedule.flow.pace import Flow
from compiler.schedule.flow.place import Place
from compiler.schedule.schedule import LayerSchedule

_FLOWS: dict[type[Layer], Callable[[Any, LayerSchedule, Place], Flow]] = {
    ConvLayer: conv_flow, DepthwiseLayer: depthwise_flow, MatmulLayer: matmul_flow, PoolLayer: pool_flow,
    ElementwiseLayer: elementwise_flow, SoftmaxLayer: softmax_flow, NormLayer: norm_flow, ReduceLayer: reduce_flow,
    MoveLayer: move_flow, PReluLayer: prelu_flow, DynamicLayer: dynamic_flow, ConvTransposeLayer: transposed_flow,
}  # fmt: skip


def flow_of(layer: Layer, schedule: LayerSchedule, place: Place) -> Flow:
    """The flow of a layer under a schedule."""
    return _FLOWS[type(layer)](layer, schedule, place)
