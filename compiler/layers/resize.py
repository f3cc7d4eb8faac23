"""Bilinear resizing of images of bytes, in one of three ways.

Pixels whose neighbors have the same weights are a depthwise convolution of 2x2 or fewer taps. If there are many kinds
of pixels, some adjacent outputs are the product of a constant matrix, their weights, with the inputs that they depend
on: input pixels are the rows of the weight tiles of MATRIX, so that the channels of a block are the array's columns.
With few channels, windows of adjacent bytes of the input are multiplied by constant weight tiles.
"""

import math
from dataclasses import replace
from itertools import product
from typing import cast

import numpy as np

from compiler.commands.commands import TileStep
from compiler.commands.tile_buffers import CodegenContext
from compiler.layers.depthwise import MAX_STRIDE
from compiler.layers.layer_kind import BYTES_TO_BYTES, LayerKind, Lowering
from compiler.layers.lowering_context import LoweringContext, UnsupportedLoweringError, affine
from compiler.layers.resize_products import (
    ProductSteps,
    WindowSteps,
    divide_image,
    divide_into_windows,
    pixels_of_tiles,
    pixels_per_tile,
    product_tile_model,
    product_tilings,
    product_weights,
    window_tile_model,
    window_tilings,
)
from compiler.layers.resize_runs import (
    COMMAND_CYCLES,
    PixelRun,
    ResizeLayer,
    RunSteps,
    run_tile_model,
    run_tilings,
)
from compiler.layers.tile_pipeline import TilePipeline
from compiler.layers.tiling_context import LayerContext, TilingContext, Tilings, images
from compiler.reference.node_invocation import Kernels, NodeInvocation
from compiler.reference.shape import Interpolation, Lines, interpolation
from compiler.schedule.schedule import LayerSchedule
from compiler.util.tiles import ceil_div
from hw.config import MlaConfig
from hw.isa.enums import Rounding

_ROUNDING = {"up": Rounding.SINGLE, "away": Rounding.AWAY, "even": Rounding.EVEN}
#: Unit of float32 fractions: sums of products of bytes and two such fractions are exact in float32.
_FLOAT_ONE = 256
#: Largest sum of weights by which bytes are divided exactly with ties to even, for which FUSE rounds to 24 bits first.
MAX_EXACT_TOTAL = 1 << 15
#: Maximum number of combinations of a run of rows and a run of columns, each of which needs commands of its own.
_MAX_KINDS = 2500
#: Share of the scratchpad that the weights of all combinations may take.
_MAX_WEIGHTS_SHARE = 1 / 2


def lower_resize(low: LoweringContext) -> ResizeLayer:
    """Lower a bilinear resizing.

    Raises
    ------
    UnsupportedLoweringError
        Fractions of float32 positions are not exact, or the pixels differ in too many ways.
    """
    how = interpolation(NodeInvocation(low.anchor, (low.x,), (), low.y, cast(Kernels, low.rounding)))
    down, across = (_shares(line, how) for line in (how.rows, how.columns))
    rows, columns = _runs(down, 1), _runs(across, 1)
    total = max(run.total for run in rows) * max(run.total for run in columns)
    if how.ties == "even" and total > MAX_EXACT_TOTAL:
        raise UnsupportedLoweringError(
            f"the weights of pixels are multiples of 1/{total:,}, finer than 1/{MAX_EXACT_TOTAL:,}"
        )
    kinds = len(rows) * len(columns)
    if kinds > _MAX_KINDS:
        raise UnsupportedLoweringError(
            f"the weights of neighboring pixels differ in {kinds:,} ways between pixels, more than {_MAX_KINDS:,}"
        )
    layer = ResizeLayer(
        **low.common(),
        macs=4 * low.y.elements,
        batch=low.x.shape[0],
        rows=rows,
        columns=columns,
        packed=_packed(low.config, rows, columns, across, low.y.shape[3]),
        rounding=_ROUNDING[how.ties],
        zero_point=affine(low.x).zero_point if how.ties == "even" else 0,
    )
    held = min(layer.weight_rows * low.config.n, product_weights(low.config, layer))
    room = int(low.config.sp_bytes * _MAX_WEIGHTS_SHARE)
    if held > room:
        raise UnsupportedLoweringError(
            f"the weights of neighboring pixels differ in {kinds:,} ways between pixels, and take {held:,} bytes of "
            f"scratchpad, more than {room:,}"
        )
    return layer


def _shares(line: Lines, how: Interpolation) -> list[dict[int, int]]:
    """Return the weight, which is not zero, of each input that an output of a dimension depends on."""
    one = int(how.one)
    before, after, fractions = line
    if isinstance(how.one, np.floating):
        one = _FLOAT_ONE
        fractions = fractions * np.float32(one)
        if (fractions != np.rint(fractions)).any():
            raise UnsupportedLoweringError(f"some float32 fractions are not multiples of 1/{one}")
    found = []
    for first, last, fraction in zip(before.tolist(), after.tolist(), fractions.tolist(), strict=True):
        part = int(fraction)
        shares = {first: one} if first == last else {first: one - part, last: part}
        found.append({place: share for place, share in shares.items() if share})
    return found


def _runs(shares: list[dict[int, int]], pixels: int, most: int = 2) -> tuple[PixelRun, ...]:
    """Return the runs of a dimension, in order of their first outputs.

    Parameters
    ----------
    shares : list of dict of int to int
        Weight of each input, for each output pixel.
    pixels : int
        Number of pixels of a group. Pixels are computed separately where the inputs of a group would begin before the
        image or be more than `most`.
    most : int
        Maximum number of adjacent inputs of an output.
    """
    latest: dict[tuple[tuple[int, ...], ...], PixelRun] = {}
    done: list[PixelRun] = []
    for first in range(0, len(shares), pixels):
        group = shares[first : first + pixels]
        source, weights = _combined(group)
        outputs = [(first, source, weights)]
        if source < 0 or len(weights) > most:
            outputs = [(first + number, *_combined([each])) for number, each in enumerate(group)]
        for output, source, weights in outputs:
            found = latest.get(weights)
            longer = None if found is None else _longer(found, output, source)
            if found is not None and longer is None:
                done.append(found)
            latest[weights] = longer or PixelRun(output, 1, 1, source, 0, weights)
    return tuple(sorted((*done, *latest.values()), key=lambda run: run.first))


def _combined(group: list[dict[int, int]]) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Return the first input of a group of pixels, and its weights without common factors (`PixelRun`)."""
    first = min(min(shares) - pixel for pixel, shares in enumerate(group))
    end = max(max(shares) - pixel for pixel, shares in enumerate(group)) + 1
    factor = math.gcd(*(share for shares in group for share in shares.values()))
    weights = [
        tuple(shares.get(place + pixel, 0) // factor for pixel, shares in enumerate(group))
        for place in range(first, end)
    ]
    return first, tuple(weights)


def _packed(
    config: MlaConfig,
    rows: tuple[PixelRun, ...],
    columns: tuple[PixelRun, ...],
    across: list[dict[int, int]],
    channels: int,
) -> tuple[PixelRun, ...]:
    """Return the runs of groups of columns that take the fewest cycles; none if single columns take as few."""
    sizes = (pixels for pixels in range(2, config.n // channels + 1) if len(across) % pixels == 0)
    found = [columns, *(_runs(across, pixels, config.n // 2) for pixels in sizes)]
    best = min(found, key=lambda runs: _cycles(rows, runs))
    return () if best is columns else best


def _cycles(rows: tuple[PixelRun, ...], columns: tuple[PixelRun, ...]) -> int:
    """Return the estimated cycles of the commands for one block of channels."""
    pairs = list(product(rows, columns))
    array = sum(down.streamed * across.streamed for down, across in pairs)
    return max(array, sum(down.count * across.count for down, across in pairs)) + COMMAND_CYCLES * len(pairs)


def _longer(run: PixelRun, output: int, source: int) -> PixelRun | None:
    """Return a run with one more output; None if that output does not continue it."""
    step, stride = output - run.first, source - run.source
    if run.count > 1:
        last = run.first + (run.count - 1) * run.step, run.source + (run.count - 1) * run.stride
        step, stride = output - last[0], source - last[1]
        if (step, stride) != (run.step, run.stride):
            return None
    if len(run.weights) > 1 and not 0 < stride <= MAX_STRIDE:
        return None
    return replace(run, step=step, stride=stride, count=run.count + 1)


#: Number of combinations of a run of rows and a run of columns from which products take fewer cycles than they do.
_MAX_DEPTHWISE_KINDS = 100
#: Ratio of the cycles of MATRIX for depthwise convolutions and for products from which the latter are tried: they load
#: more weights and, for their spans, more pixels.
_MANY_STREAMED = 1.25


def _streams_many(layer: ResizeLayer, context: TilingContext) -> bool:
    """Return True if depthwise convolutions stream so many pixels that products or windows may be faster."""
    n, (_, y) = context.config.n, images(layer)
    blocks = ceil_div(y.c, n)
    depthwise = _cycles(layer.rows, layer.across(contiguous=True)) * layer.passes * blocks
    divisions = (
        divide_image(layer, n, pixels) for pixels in pixels_of_tiles(n, layer, on_chip=context.x_on_chip)
    )
    cycles = [float(blocks * max(each.array_cycles(n), y.h * y.w)) for each in divisions]
    windows = None if context.x_on_chip else divide_into_windows(layer, n)
    if windows is not None:
        cycles.append(float(y.h * len(windows.columns) * windows.tiles * windows.passes))
    return depthwise > _MANY_STREAMED * min(cycles, default=math.inf)


def resize_tilings(context: TilingContext, layer: ResizeLayer) -> Tilings:
    """Yield the tilings of a resizing that fit, by products if depthwise convolutions take many cycles or weights."""
    kinds = len(layer.rows) * len(layer.columns)
    if _streams_many(layer, context) or layer.weight_rows * context.config.n > context.free:
        found = [*product_tilings(context, layer), *window_tilings(context, layer)]
        yield from found
        if found and kinds > _MAX_DEPTHWISE_KINDS:
            return
    yield from run_tilings(context, layer)


def resize_tile_model(layer: ResizeLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a resizing, by the method that a schedule selects."""
    n = context.config.n
    if s.fold_kernel_width and not context.x_on_chip and divide_into_windows(layer, n) is not None:
        return window_tile_model(layer, s, context)
    if (pixels := pixels_per_tile(n, layer, s, on_chip=context.x_on_chip)) > 1:
        return product_tile_model(layer, replace(s, pixels_per_pass=pixels), context)
    return run_tile_model(layer, s, context)


def resize_steps(context: CodegenContext, layer: ResizeLayer) -> list[TileStep]:
    """Generate the steps of a bilinear resizing."""
    schedule, n = context.schedule, context.config.n
    x, y = (context.layouts[each] for each in (layer.x, layer.y))
    contiguous = not x.on_chip and (not y.on_chip or y.pixel == layer.shapes[layer.y].c)
    if schedule.fold_kernel_width and contiguous and divide_into_windows(layer, n) is not None:
        return WindowSteps(context, layer).steps()
    pixels = pixels_per_tile(n, layer, schedule, on_chip=x.on_chip)
    if pixels > 1 and (not x.on_chip or x.even or pixels * 2 > n):
        schedule = replace(schedule, pixels_per_pass=pixels)
        return ProductSteps(replace(context, schedule=schedule), layer).steps()
    return RunSteps(context, layer).steps()


KIND = LayerKind(
    name="resize",
    layer=ResizeLayer,
    lowerings={
        "resize_bilinear": Lowering(lower_resize, BYTES_TO_BYTES, strided_input=True, strided_output=True)
    },
    tilings=resize_tilings,
    tile_model=resize_tile_model,
    steps=resize_steps,
    rank_by_tile_model=True,
    resembles="depthwise",
)
