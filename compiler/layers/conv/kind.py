"""Layer kind of convolutions and dense layers."""

from compiler.layers.conv.codegen import conv_steps
from compiler.layers.conv.layer import ConvLayer, lower_conv, lower_dense
from compiler.layers.conv.tilings import conv_tile_model, conv_tilings
from compiler.layers.layer_kind import CONVOLUTION, LayerKind, Lowering

KIND = LayerKind(
    name="conv",
    layer=ConvLayer,
    lowerings={
        "conv2d": Lowering(lower_conv, CONVOLUTION, strided_input=True, strided_output=True, epilogue=True),
        "dense": Lowering(lower_dense, CONVOLUTION, strided_output=True, epilogue=True),
    },
    tilings=conv_tilings,
    tile_model=conv_tile_model,
    steps=conv_steps,
)
