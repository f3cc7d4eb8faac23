"""Declaration of a layer kind: its dataclass, lowerings, tilings, tile model and code generator."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from compiler.commands.commands import TileStep
from compiler.commands.tile_buffers import CodegenContext
from compiler.layers.base import Layer
from compiler.layers.lowering_context import DTYPES, LoweringContext
from compiler.layers.tile_pipeline import TilePipeline
from compiler.layers.tiling_context import LayerContext, TilingContext, Tilings
from compiler.schedule.schedule import LayerSchedule

Types = tuple[str, ...]

BYTES: Types = ("int8", "uint8")
INTEGERS: Types = (*BYTES, "int16", "int32")
FLOAT: Types = ("float32",)
ALL: Types = tuple(DTYPES)
INDICES: Types = ("int32", "int64")


@dataclass(frozen=True)
class ElementTypes:
    """Element types of an operator on the accelerator.

    Parameters
    ----------
    operands : tuple of (tuple of str or None)
        Allowed types of each operand; the last entry applies to all further operands. None: any type (for constants
        that the compiler converts).
    result : tuple of str
        Allowed types of the result.
    """

    operands: tuple[Types | None, ...]
    result: Types


#: Element types of operators on 8-bit integers, and of operators that only move elements.
BYTES_TO_BYTES = ElementTypes((BYTES,), BYTES)
ANY_TO_ANY = ElementTypes((ALL,), ALL)
#: Element types of operators with weights: input, weights, bias, and the result.
CONVOLUTION = ElementTypes((BYTES, BYTES, ("int32",)), INTEGERS)


@dataclass(frozen=True)
class Lowering:
    """Conversion of one operator of the graph into a layer.

    Parameters
    ----------
    lower : callable
        Lowers a group of nodes whose anchor is the operator to a layer. Raises `UnsupportedLoweringError` with a
        reason for a node that the accelerator cannot execute.
    types : ElementTypes
        Element types that `lower` accepts; nodes with other types are rejected before it is called.
    strided_input : bool
        True if the layer can read an image whose pixels are not contiguous (a slice of the channels of another tensor).
    strided_output : bool
        True if the layer can write an image whose pixels are not contiguous (a slice of the channels of a
        concatenation).
    epilogue : bool
        True if the results pass through FUSE, so that a clip, a lookup table and an addition can be fused into the
        layer.
    """

    lower: Callable[[LoweringContext], Layer]
    types: ElementTypes
    strided_input: bool = False
    strided_output: bool = False
    epilogue: bool = False


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """Kind of layer, with its lowerings, tilings, tile model and code generator.

    Parameters
    ----------
    name : str
        Unique name, which never changes.
    layer : type
        Dataclass of the layers of this kind; the exact class of a layer determines its kind.
    lowerings : dict of str to Lowering
        Operators of the graph that become layers of this kind, by name.
    tilings : callable
        Yields the tilings of a layer that fit, each as (estimated cycles, schedule).
    tile_model : callable
        Returns the tile pipeline of a layer under a schedule, for the cost model.
    steps : callable
        Generates the code of a layer: one step of commands for each tile.
    rank_by_tile_model : bool
        True if the scheduler refines the estimates of `tilings` by simulating the tile model.
    resembles : str or None
        Name of the kind whose word represents this kind in prompts for the language model; None: this kind has its own
        word. The vocabulary is part of the trained model, so a new kind must name an existing kind.
    """

    name: str
    layer: type[Layer]
    lowerings: Mapping[str, Lowering]
    tilings: Callable[[TilingContext, Any], Tilings]
    tile_model: Callable[[Any, LayerSchedule, LayerContext], TilePipeline]
    steps: Callable[[CodegenContext, Any], list[TileStep]]
    rank_by_tile_model: bool = False
    resembles: str | None = None

    @property
    def word(self) -> str:
        """Word of the language model's vocabulary for layers of this kind."""
        return self.resembles or self.name
