"""Data movement operators (reshape, transpose, slice, concat, pad, ...) as strided copies."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil
from typing import TYPE_CHECKING, cast

import numpy as np

from compiler.ir.identity import identity
from compiler.ir.tensor import Tensor, same_values
from compiler.layers.base import Layer
from compiler.layers.byte_selection import SelectionPlan, selected_pixels, selection_plan
from compiler.layers.elementwise import lower_unary
from compiler.layers.layer_kind import ALL, ANY_TO_ANY, INDICES, INTEGERS, ElementTypes, Lowering
from compiler.layers.lowering_context import (
    EIGHT_BITS,
    LoweringContext,
    UnsupportedLoweringError,
    affine,
    image_of,
    is_unary,
)
from compiler.layers.permutation import BETWEEN_BUFFERS, BoxPlan, Ends, Mode, engine_of, plans
from compiler.layers.strided_copy import (
    Axes,
    Copy,
    CopyOperand,
    Rescale,
    Stretch,
    Walk,
    in_bytes,
    run_beats,
    stretches,
    strides_of,
    transposable,
    walk_beats,
    walks,
    whole,
)
from compiler.layers.tile_pipeline import EARLY_RESULT, PipelineTile, TilePipeline
from compiler.layers.tiling_context import PREFETCH_STEPS, LayerContext
from compiler.reference.fixed_point import round_half_away
from compiler.reference.node_invocation import Kernels, quantize_real
from compiler.schedule.schedule import LayerSchedule
from compiler.util.scaling import float32_multiplier, quantize_multiplier
from compiler.util.tiles import ceil_div, cuts
from cosim.semantics.fixed_point import scale
from hw.config import MlaConfig
from hw.isa.enums import DTYPE_BYTES, Rounding

if TYPE_CHECKING:
    from compiler.layers.tiling_context import TilingContext


@identity("MoveLayer", "copies", "constants")
@dataclass(frozen=True, kw_only=True, eq=False)
class MoveLayer(Layer):
    """Reordering of the elements of one or more tensors.

    Parameters
    ----------
    copies : tuple of Copy
        Copies that write each element of y exactly once, except for elements written by other layers.
    constants : set of str
        Names of the source tensors that are constants.
    """

    copies: tuple[Copy, ...]
    constants: frozenset[str] = frozenset()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of all sources that are not constants."""
        names = (copy.source for copy in self.copies if copy.source is not None)
        return tuple(name for name in dict.fromkeys(names) if name not in self.constants)


#: Maximum number of copies of a layer, which bounds the size of its program.
MAX_COPIES = 1 << 11
#: Maximum number of bits of integers of which all values are tried; float32 cannot represent all wider integers.
_MAX_BITS = 16


def few_walks(x: Sequence[int], y: Sequence[int], axes: Axes) -> Iterator[Walk]:
    """Return the `walks` of strides and stretches.

    Raises
    ------
    UnsupportedLoweringError
        There are too many walks for a layer.
    """
    if math.prod(len(parts) for parts in axes) > MAX_COPIES:
        raise UnsupportedLoweringError(f"its indices are scattered over more than {MAX_COPIES} stretches")
    return walks(x, y, axes)


def rescale(low: LoweringContext, x: Tensor) -> Rescale | None:
    """Return the conversion from the quantization of an input to that of the output; None if they are the same.

    With onnxruntime's rounding, the multiplier may give other results than onnxruntime's float32 arithmetic; see
    `exact`.
    """
    y = low.y
    if same_values(x.quantization, y.quantization) and x.dtype == y.dtype:
        return None
    a, b = affine(x), affine(y)
    if low.rounding == "onnxruntime":
        ratio = float(np.float32(a.scale) / np.float32(b.scale))
        return Rescale(a.zero_point, b.zero_point, *float32_multiplier(ratio), Rounding.EVEN)
    return Rescale(a.zero_point, b.zero_point, *quantize_multiplier(a.scale / b.scale), Rounding.DOUBLE)


def exact(low: LoweringContext, x: Tensor, change: Rescale | None) -> bool:
    """Return True if a conversion gives the same result as on the host for every integer of the type of x.

    For some scales, no multiplier reproduces onnxruntime's float32 rounding. LiteRT's kernels use multipliers, which
    are reproduced exactly.
    """
    if change is None or low.rounding != "onnxruntime":
        return True
    return _as_float32(change, x.dtype, low.y.dtype, affine(x).scale, affine(low.y).scale)


@lru_cache(maxsize=1024)
def _as_float32(change: Rescale, x: str, y: str, x_scale: float, y_scale: float) -> bool:
    """Return True if a conversion of integers from type x to type y equals the conversion through float32."""
    given, limits = np.iinfo(x), np.iinfo(y)
    if max(given.bits, limits.bits) > _MAX_BITS:
        return False
    centred = np.arange(given.min, given.max + 1, dtype=np.int64) - change.x_zp
    found = scale(centred, change.mult, change.exponent, 0, change.rounding) + change.y_zp
    real = centred.astype(np.float32) * np.float32(x_scale)
    wanted = np.rint(real / np.float32(y_scale)).astype(np.int64) + change.y_zp
    return np.array_equal(np.clip(found, limits.min, limits.max), np.clip(wanted, limits.min, limits.max))


def rescale_exactly(low: LoweringContext, x: Tensor) -> Rescale | None:
    """Return the conversion from `rescale` after checking that it equals the host's conversion for every integer.

    Raises
    ------
    UnsupportedLoweringError
        The conversion differs from the host's for some integer.
    """
    change = rescale(low, x)
    if not exact(low, x, change):
        raise UnsupportedLoweringError(
            f"no multiplier reproduces onnxruntime's float32 rounding of {x.name!r}"
        )
    return change


def check_shape(low: LoweringContext, shape: Sequence[int]) -> None:
    """Raise UnsupportedLoweringError unless the output has the given shape."""
    if low.y.shape != tuple(shape):
        raise UnsupportedLoweringError(f"its output must be of shape {list(shape)}, not {list(low.y.shape)}")


def layer(low: LoweringContext, copies: Sequence[Copy]) -> MoveLayer:
    """Return the layer that executes the given copies."""
    tensors = {t.name: t for t in low.graph.ins(low.anchor)}
    sources = [name for name in dict.fromkeys(copy.source for copy in copies) if name is not None]
    constants = frozenset(name for name in sources if tensors[name].constant)
    if all(tensor.constant for tensor in tensors.values()):
        raise UnsupportedLoweringError("its inputs are constants")
    common = low.common(*sources)
    shapes = {name: common["shapes"][name] for name in (*sources, common["y"])}
    first = next((name for name in sources if name not in constants), common["y"])
    return MoveLayer(**common | {"x": first, "shapes": shapes}, copies=tuple(copies), constants=constants)


def moved(low: LoweringContext, x: Sequence[int], y: Sequence[int], axes: Axes) -> list[Copy]:
    """Return the copies of the first input for the given strides and stretches."""
    change = rescale_exactly(low, low.x)
    return [Copy(low.x.name, walk, change) for walk in few_walks(x, y, axes)]


def along(low: LoweringContext, rank: int) -> int:
    """Return the axis of an operator as a non-negative index."""
    axis = low.anchor.attributes["axis"]
    if not -rank <= axis < rank:
        raise UnsupportedLoweringError(f"axis must be within {-rank}..{rank - 1}, not {axis}")
    return axis % rank


#: Range of the ratio of scales that XNNPACK converts with a multiplier in units of 1/256.
_MIN_DELEGATED_RATIO, _MAX_DELEGATED_RATIO = 1 / 256, 128


def _requantize(low: LoweringContext) -> Layer:
    check_shape(low, low.x.shape)
    ratio = affine(low.x).scale / affine(low.y).scale
    if is_unary(low.graph, low.anchor) and not exact(low, low.x, rescale(low, low.x)):
        return lower_unary(low)
    change = rescale_exactly(low, low.x)
    delegated = (
        low.rounding == "xnnpack"
        and low.x.dtype == low.y.dtype
        and low.x.dtype in EIGHT_BITS
        and _MIN_DELEGATED_RATIO <= ratio <= _MAX_DELEGATED_RATIO
    )
    if change and delegated:
        eighths = float(np.rint(np.float32(256) * np.float32(ratio))) / 256
        change = Rescale(change.x_zp, change.y_zp, *quantize_multiplier(eighths), Rounding.SINGLE)
    step = strides_of(low.x.shape)
    axes = [whole(size) for size in low.x.shape]
    return layer(low, [Copy(low.x.name, walk, change) for walk in few_walks(step, step, axes)])


def reshape(low: LoweringContext) -> Layer:
    """Lower a reshape that must copy its input because the result cannot be a view of the same bytes."""
    if low.x.elements != low.y.elements:
        raise UnsupportedLoweringError(f"shape {list(low.x.shape)} cannot be reshaped to {list(low.y.shape)}")
    step = strides_of(low.x.shape)
    return layer(low, moved(low, step, step, [whole(size) for size in low.x.shape]))


def _transpose(low: LoweringContext) -> Layer:
    perm, shape = low.anchor.attributes["perm"], low.x.shape
    if sorted(perm) != list(range(len(shape))):
        raise UnsupportedLoweringError(f"perm must order dimensions 0..{len(shape) - 1}, not {list(perm)}")
    check_shape(low, [shape[i] for i in perm])
    x = strides_of(shape)
    axes = [whole(size) for size in low.y.shape]
    return layer(low, moved(low, [x[i] for i in perm], strides_of(low.y.shape), axes))


def concat_starts(low: LoweringContext) -> list[int]:
    """Return the index at which each operand starts along the concatenation axis."""
    inputs, axis = low.graph.ins(low.anchor), along(low, len(low.y.shape))
    starts = np.cumsum([0, *(t.shape[axis] if axis < len(t.shape) else 0 for t in inputs)]).tolist()
    wanted = list(low.y.shape)
    for tensor in inputs:
        fits = [*tensor.shape[:axis], *tensor.shape[axis + 1 :]] == [*wanted[:axis], *wanted[axis + 1 :]]
        if len(tensor.shape) != len(wanted) or not fits:
            raise UnsupportedLoweringError(
                f"{tensor.name!r} of shape {list(tensor.shape)} is not a part of {wanted} along axis {axis}"
            )
    if starts.pop() != wanted[axis]:
        raise UnsupportedLoweringError(
            f"the sizes of its inputs along axis {axis} must add up to {wanted[axis]}"
        )
    return starts


def _concat_rescale(low: LoweringContext, x: Tensor) -> Rescale | None:
    """Return the conversion of an operand that reproduces LiteRT's concatenation for all 256 values.

    LiteRT adds float32 products and rounds ties away from zero. Where a result is close to a tie, float32 errors
    determine its rounding; a slightly different multiplier may reproduce this rounding.
    """
    change, y = rescale_exactly(low, x), low.y
    if change is None or low.rounding == "onnxruntime":
        return change
    if not {x.dtype, y.dtype} <= {"int8", "uint8"}:
        raise UnsupportedLoweringError(f"{x.name!r} of {x.dtype} joins {y.dtype} of another quantization")
    ratio = np.float32(affine(x).scale) * (np.float32(1) / np.float32(affine(y).scale))
    given, limits = np.iinfo(x.dtype), np.iinfo(y.dtype)
    values = np.arange(given.min, given.max + 1, dtype=np.int64)
    real = values.astype(np.float32) * ratio + np.float32(-change.x_zp) * ratio
    wanted = np.clip(round_half_away(real.astype(np.float64)) + change.y_zp, limits.min, limits.max)
    mult, exponent = quantize_multiplier(float(ratio))
    for offset, rounding in product((0, 1, -1, 8, -8, 64, -64), (Rounding.AWAY, Rounding.SINGLE)):
        found = scale(values - change.x_zp, mult + offset, exponent, 0, rounding) + change.y_zp
        if mult + offset < 1 << 31 and np.array_equal(np.clip(found, limits.min, limits.max), wanted):
            return Rescale(change.x_zp, change.y_zp, mult + offset, exponent, rounding)
    raise UnsupportedLoweringError(f"no multiplier reproduces LiteRT's float32 rounding of {x.name!r}")


def concat(low: LoweringContext, in_place: Set[str]) -> Layer | None:
    """Lower a concatenation to copies of the operands that are not in `in_place`; return None if all are."""
    axis, step = along(low, len(low.y.shape)), strides_of(low.y.shape)
    copies = []
    for tensor, start in zip(low.graph.ins(low.anchor), concat_starts(low), strict=True):
        if tensor.name in in_place:
            continue
        axes = [whole(size) for size in tensor.shape]
        axes[axis] = [Stretch(((tensor.shape[axis], 1, 1),), 0, start)]
        change = _concat_rescale(low, tensor)
        copies += [
            Copy(tensor.name, walk, change) for walk in few_walks(strides_of(tensor.shape), step, axes)
        ]
    return layer(low, copies) if copies else None


def _concat(low: LoweringContext) -> Layer:
    """Lower a concatenation to copies of all operands."""
    return cast(Layer, concat(low, frozenset()))


def _slice(low: LoweringContext) -> Layer:
    a, shape = low.anchor.attributes, low.x.shape
    parts = [a["starts"], a["sizes"], a["steps"]]
    if any(len(part) != len(shape) for part in parts):
        raise UnsupportedLoweringError(f"starts, sizes and steps must be {len(shape)} integers each")
    for axis, (start, size, step, total) in enumerate(zip(*parts, shape, strict=True)):
        last = start + (size - 1) * step
        if size < 1 or not (0 <= start < total and 0 <= last < total):
            raise UnsupportedLoweringError(f"axis {axis} has indices 0..{total - 1}, not {start}..{last}")
    check_shape(low, a["sizes"])
    axes = [[Stretch(((size, step, 1),), start, 0)] for start, size, step in zip(*parts, strict=True)]
    return layer(low, moved(low, strides_of(shape), strides_of(low.y.shape), axes))


def _fill_byte(low: LoweringContext, value: float) -> int:
    """Return the byte that fills the padding: `value` quantized like x and converted to y; its bytes must be equal."""
    x, y = low.x, low.y
    image_of(x)
    if x.dtype == y.dtype == "float32":
        return _only_byte(np.array(value, np.float32))
    if "float32" in (x.dtype, y.dtype):
        raise UnsupportedLoweringError(f"padding that converts {x.dtype} to {y.dtype}")
    limits = np.iinfo(x.dtype)
    if math.isinf(value):
        stored = limits.max if value > 0 else limits.min
    elif x.quantization is None:
        stored = int(value)
    else:
        stored = int(quantize_real(np.array(value), x, cast(Kernels, low.rounding)))
    stored = int(np.clip(stored, limits.min, limits.max))
    change, limits = rescale_exactly(low, x), np.iinfo(y.dtype)
    if change:
        centred = np.array([stored - change.x_zp], np.int64)
        scaled = scale(centred, change.mult, change.exponent, 0, change.rounding)
        stored = int(np.clip(int(scaled[0]) + change.y_zp, limits.min, limits.max))
    return _only_byte(np.array(stored, y.dtype))


def _only_byte(stored: np.ndarray) -> int:
    """Return the byte of which a number consists; raise UnsupportedLoweringError if its bytes differ."""
    pieces = set(stored.tobytes())
    if len(pieces) > 1:
        raise UnsupportedLoweringError(
            f"padding of {stored.dtype} must be bytes that are all the same, not {stored}"
        )
    return pieces.pop()


def _pad(low: LoweringContext) -> Layer:
    pads, shape = low.anchor.attributes["pads"], low.x.shape
    if len(pads) != len(shape):
        raise UnsupportedLoweringError(f"pads must be {len(shape)} pairs, not {len(pads)}")
    check_shape(low, [size + sum(pair) for size, pair in zip(shape, pads, strict=True)])
    step = strides_of(low.y.shape)
    inside = [[Stretch(((size, 1, 1),), 0, pair[0])] for size, pair in zip(shape, pads, strict=True)]
    copies = moved(low, strides_of(shape), step, inside)
    value = _fill_byte(low, low.anchor.attributes["value"])
    for axis, (before, after) in enumerate(pads):
        for start, size in ((0, before), (before + shape[axis], after)):
            if size:
                edge = [Stretch(((size, 0, 1),), 0, start)]
                axes = [*inside[:axis], edge, *(whole(total) for total in low.y.shape[axis + 1 :])]
                copies += [Copy(None, walk, fill=value) for walk in few_walks([0] * len(shape), step, axes)]
    return layer(low, copies)


def _gather(low: LoweringContext) -> Layer:
    x, indices = low.graph.ins(low.anchor)
    axis = along(low, len(x.shape))
    if indices.data is None:
        raise UnsupportedLoweringError("its indices are not constants: no unit takes addresses from data")
    if indices.dtype not in ("int32", "int64"):
        raise UnsupportedLoweringError(f"indices must be int32 or int64, not {indices.dtype}")
    total = x.shape[axis]
    chosen = indices.data.astype(np.int64).reshape(-1)
    if chosen.min() < -total or chosen.max() >= total:
        raise UnsupportedLoweringError(f"indices must be within {-total}..{total - 1}")
    check_shape(low, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))
    flat = (*x.shape[:axis], chosen.size, *x.shape[axis + 1 :])
    axes = [whole(size) for size in x.shape]
    axes[axis] = stretches((chosen % total).tolist())
    return layer(low, moved(low, strides_of(x.shape), strides_of(flat), axes))


def nearest_stretches(given: int, made: int, *, centers: bool) -> list[Stretch]:
    """Return the stretches of indices of nearest-neighbor resizing from `given` to `made` pixels along one axis."""
    return stretches(((2 * np.arange(made) + int(centers)) * given // (2 * made)).tolist())


def _resize(low: LoweringContext) -> Layer:
    size, centers, shape = low.anchor.attributes["size"], low.anchor.attributes["centers"], low.x.shape
    if len(shape) != 4:
        raise UnsupportedLoweringError(f"an image has 4 dimensions, not {len(shape)}")
    check_shape(low, (shape[0], *size, shape[3]))
    axes = [whole(total) for total in shape]
    for axis, wanted in zip((1, 2), size, strict=True):
        axes[axis] = nearest_stretches(shape[axis], wanted, centers=centers)
    return layer(low, moved(low, strides_of(shape), strides_of(low.y.shape), axes))


#: Cycles of a piece in addition to the transfer of its bytes.
_PIECE_OVERHEAD = 120
#: Minimum gain, in cycles, from which a copy is moved in boxes.
_MIN_GAIN = 300
#: Maximum number of buffers for tiles of sums: a round of two transpositions takes several tiles of different sizes.
_SUM_BUFFERS = 8
#: Minimum and maximum number of buffers for loaded boxes of a selection of bytes; more would share the bank of the
#: weights. Runs that FUSE copies keep loaded boxes longer and need the maximum.
_MIN_LOADED, _MAX_LOADED = 4, 6
#: Maximum number of buffers for loaded boxes that are permuted; more would share the banks of other buffers.
_MAX_LOADED_BOXES = 4
#: Cycles of a box below which loads are not started earlier.
_SMALL_BOX = 128
#: Number of buffers for boxes of the result of a selection of bytes, without and with runs that FUSE copies.
_SELECTED_BUFFERS = (3, 2)
#: Cycles of a load in addition to the latency of the DRAM and the transfer.
_LOAD_OVERHEAD = 75
#: Bytes of a box from which every power of two is tried.
_MANY_BYTES = 1 << 12


def box_plans(
    config: MlaConfig,
    layer: MoveLayer,
    copy: Copy,
    most: int,
    ends: Sequence[CopyOperand],
    here: Sequence[bool],
) -> tuple[BoxPlan, ...]:
    """Return the plans by which a copy is moved in boxes; none if lines, or blocks that LOAD transposes, are faster.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    layer : MoveLayer
        Layer of the copy.
    copy : Copy
        Copy to plan.
    most : int
        Maximum number of bytes of a box.
    ends : (CopyOperand, CopyOperand)
        Layouts of source and destination.
    here : (bool, bool)
        True for an end that is in the scratchpad.
    """
    if copy.source is None:
        return ()
    x, y = ends
    size, rescale = x.size, copy.rescale is not None
    if y.size != size or (rescale and size > 1):
        return ()
    read = math.prod(count for count, step, _ in copy.walk.dims if step)
    limit = (read * (not here[0]) + copy.walk.count * (not here[1])) * size / config.n
    now = line_cycles(config, layer, copy, here)
    if now < limit + _MIN_GAIN:
        return ()
    walk = in_bytes(copy.walk.ordered(), x, y)
    elements = Walk((*walk.dims, (size, 1, 1))).merged()
    limit = _box_limit(config, most)
    found = plans(Walk(elements.dims), Ends(here[0], here[1], rescale), engine_of(config), limit)
    if not found or sum(plan.cycles for plan in found) + _MIN_GAIN > now:
        return ()
    return tuple(replace(plan, walk=plan.walk.shifted(walk.x, walk.y)) for plan in found)


def line_cycles(config: MlaConfig, layer: MoveLayer, copy: Copy, here: Sequence[bool]) -> float:
    """Return the estimated cycles of a copy that is moved as lines, or as blocks that LOAD transposes."""
    n, walk, size = config.n, copy.walk.merged(), DTYPE_BYTES[layer.shapes[layer.y].dtype]
    inner = len(walk.dims) - 1 if walk.dims and walk.dims[-1][1:] == (1, 1) else None
    run = 1 if inner is None else walk.dims[inner][0]
    fuse = walk.count // run * ceil_div(run, n) * config.fuse_rate
    if all(here):
        return fuse
    load, store = walk_beats(walk, size, n)
    if here[0]:
        load, store = 0.0, store if copy.rescale else run_beats(walk, size, n, 2)
    bus = (0.0 if copy.source is None else load) + (0.0 if here[1] else store)
    return max(bus, fuse) if copy.rescale and any(here) else bus


def from_dram(config: MlaConfig, layer: MoveLayer) -> set[str]:
    """Return the sources that are read faster from DRAM, with transposition by LOAD, than from the scratchpad.

    Loads, and the stores before them, mostly overlap with other layers, so that MATRIX transposes elements within the
    scratchpad only if lines of the source do not begin at bus beats.
    """
    out = set()
    for copy in layer.copies:
        if copy.source is None or DTYPE_BYTES[layer.shapes[copy.source].dtype] > 1:
            continue
        walk = copy.walk.merged()
        if walk.count >= _MIN_TRANSPOSED_ELEMENTS and transposable(walk):
            ends = CopyOperand(1), CopyOperand(DTYPE_BYTES[layer.shapes[layer.y].dtype])
            load, _ = walk_beats(walk, 1, config.n)
            slow = load > _SLOW_LOAD * walk.count / config.n
            if not slow or not box_plans(config, layer, copy, _BOX_BYTES, ends, (True, True)):
                out.add(copy.source)
    return out


#: Minimum number of single elements for which block transposition by LOAD is faster than copying by FUSE.
_MIN_TRANSPOSED_ELEMENTS = 512
#: Relative excess of the beats of a transposing load from which elements are transposed within the scratchpad.
_SLOW_LOAD = 1.25
#: Bytes of a box between two tensors in the scratchpad for which the memory of a tensor is chosen.
_BOX_BYTES = 1 << 13


def move_rows(n: int, copies: Sequence[Copy]) -> int:
    """Return the number of rows of N bytes that copies transfer as lines."""
    total = 0
    for copy in copies:
        walk = copy.walk.merged()
        run = walk.dims[-1][0] if walk.dims and walk.dims[-1][1:] == (1, 1) else 1
        both = transposable(walk)
        if both:
            run = min(walk.dims[both[0]][0], n)
        total += walk.count // run * ceil_div(run, n)
    return total


@dataclass(frozen=True)
class MovePlan:
    """Ways in which the copies of a layer are moved.

    Parameters
    ----------
    selected : SelectionPlan or None
        Plan by which MATRIX selects the bytes of all copies; None: the copies are moved one after the other.
    straight : list of Copy
        Copies that are moved as lines.
    boxed : list of (Copy, BoxPlan)
        Copies that are moved in boxes, with the plans of all boxes of each copy.
    """

    selected: SelectionPlan | None
    straight: list[Copy]
    boxed: list[tuple[Copy, BoxPlan]]


def move_plan(
    config: MlaConfig,
    layer: MoveLayer,
    most: int,
    operands: Mapping[str, CopyOperand],
    on_chip: Callable[[str], bool],
) -> MovePlan:
    """Return the fastest way, by estimate, to move the copies of a layer.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    layer : MoveLayer
        Layer to plan.
    most : int
        Maximum number of bytes of a box.
    operands : dict
        Layouts of sources and result by name.
    on_chip : callable
        Returns True if a tensor, given by name, is in the scratchpad.
    """
    straight, boxed, cycles = list[Copy](), list[tuple[Copy, BoxPlan]](), 0.0
    y, y_here = operands[layer.y], on_chip(layer.y)
    for copy in layer.copies:
        here = copy.source is not None and on_chip(copy.source), y_here
        ends = y if copy.source is None else operands[copy.source], y
        found = box_plans(config, layer, copy, most, ends, here)
        boxed += [(copy, plan) for plan in found]
        straight += () if found else (copy,)
        cycles += sum(plan.cycles for plan in found) if found else line_cycles(config, layer, copy, here)
    sources = {copy.source for copy in layer.copies if copy.source is not None}
    if not y_here and not any(on_chip(name) for name in sources):
        found = (
            selection_plan(what, engine_of(config), _box_limit(config, most))
            for what in selected_pixels(layer.copies, {name: operands[name] for name in sources}, y, config.n)
        )
        selections = [plan for plan in found if plan is not None]
        best = min(selections, key=lambda plan: plan.cycles, default=None)
        if best is not None and best.cycles + _MIN_GAIN < cycles:
            return MovePlan(best, [], [])
    return MovePlan(None, straight, boxed)


def _plan_of(
    config: MlaConfig, layer: MoveLayer, s: LayerSchedule, on_chip: Callable[[str], bool], y_here: bool
) -> MovePlan:
    """Return the plan of a layer whose tensors are contiguous, before their layouts are known."""
    operands = {name: CopyOperand(DTYPE_BYTES[image.dtype]) for name, image in layer.shapes.items()}

    def here(name: str) -> bool:
        return y_here if name == layer.y else on_chip(name)

    return move_plan(config, layer, s.rows * config.n, operands, here)


def _box_limit(config: MlaConfig, most: int) -> int:
    """Return the maximum number of bytes of a box, rounded down.

    Only a few sizes are tried, because each one takes a search: powers of two, and of four if they are small.
    """
    bits = min(most, config.sp_bytes // config.sp_banks).bit_length() - 1
    return 1 << (bits if 1 << bits >= _MANY_BYTES else bits & ~1)


def copied_by_fuse(
    config: MlaConfig, layer: MoveLayer, s: LayerSchedule, on_chip: Callable[[str], bool]
) -> bool:
    """Return True if FUSE copies all elements within the scratchpad, which takes no buffers."""
    here = all(copy.source is not None and on_chip(copy.source) for copy in layer.copies)
    if not here or not on_chip(layer.y):
        return False
    plan = _plan_of(config, layer, s, on_chip, True)
    return not plan.boxed and plan.selected is None


def _box_bytes(plan: MovePlan, s: LayerSchedule, n: int) -> int:
    """Return the bytes of the buffers for boxes."""
    if plan.selected is not None:
        boxes = s.x_buffers * plan.selected.loaded(n) + s.y_buffers * plan.selected.selected(n)
        return boxes + plan.selected.tiles * n * n
    if not plan.boxed:
        return 0
    loaded, between, permuted = (max(each.sizes[i] for _, each in plan.boxed) + n for i in range(3))
    return s.x_buffers * loaded + BETWEEN_BUFFERS * between + s.y_buffers * permuted + n * n


def _line_work(context: "TilingContext", layer: MoveLayer, copy: Copy) -> float:
    """Return the estimated cycles of a copy that is moved as lines."""
    here = copy.source is not None and context.on_chip(copy.source)
    return line_cycles(context.config, layer, copy, (here, context.y_on_chip))


def move_tilings(context: "TilingContext", layer: MoveLayer) -> Iterator[tuple[float, LayerSchedule]]:
    """Yield tilings whose pieces and boxes fit the scratchpad with double buffering."""
    config, n, total = context.config, context.config.n, sum(copy.walk.count for copy in layer.copies)
    size = max(DTYPE_BYTES[image.dtype] for image in layer.shapes.values())
    sums = max(min(_SUM_BUFFERS, context.acc_rows // engine_of(config).rows), 1)
    for rows in cuts(ceil_div(total * size, n)):
        schedule = LayerSchedule(
            rows=rows, on_chip=context.y_on_chip, acc_buffers=sums, prefetch=PREFETCH_STEPS
        )
        plan = _plan_of(config, layer, schedule, context.on_chip, context.y_on_chip)
        if plan.selected is not None:
            schedule = _selection_schedule(context, schedule, plan.selected)
            if _box_bytes(plan, schedule, n) <= context.free:
                yield plan.selected.cycles, schedule
            continue
        straight = plan.straight
        if not straight:
            ahead = replace(schedule, x_buffers=_loaded_boxes(context, plan))
            schedule = ahead if _box_bytes(plan, ahead, n) <= context.free else schedule
        used, cycles = _box_bytes(plan, schedule, n), sum(each.cycles for _, each in plan.boxed)
        if straight:
            buffers = 4 if any(copy.rescale for copy in straight) else 2
            used += buffers * (rows + 1) * n * size
            left = sum(copy.walk.count for copy in straight)
            pieces = ceil_div(left, rows * n)
            work = sum(_line_work(context, layer, copy) for copy in straight)
            cycles += max(work, pieces * _PIECE_OVERHEAD) + 20 * pieces + 2 * rows
        if used <= context.free:
            yield cycles, schedule


def _loaded_boxes(context: "TilingContext", plan: MovePlan) -> int:
    """Return the number of buffers for loaded boxes: the data of several boxes may be in flight.

    With two transpositions, the second one of a box leaves time to load the next box into the same buffer.
    """
    boxed = [each for _, each in plan.boxed]
    box = sum(each.work.cycles for each in boxed) / sum(each.boxes for each in boxed)
    ahead = (
        ceil(
            (context.dram.chip_latency + _LOAD_OVERHEAD)
            / (box * context.dram.beat(context.config.beat_bytes))
        )
        + 1
    )
    if box < _SMALL_BOX:  # commands take as long as such boxes, which more buffers would not change
        return 2
    if all(each.mode != Mode.TURN_TWICE for each in boxed):
        ahead = max(ahead, 3)
    return min(ahead, _MAX_LOADED_BOXES)


def _selection_schedule(
    context: "TilingContext", schedule: LayerSchedule, plan: SelectionPlan
) -> LayerSchedule:
    """Return a schedule with the buffers for a selection of bytes: the data of several boxes may be in flight."""
    box = (plan.work.load + plan.work.store) * context.dram.beat(context.config.beat_bytes)
    ahead = ceil((context.dram.chip_latency + _LOAD_OVERHEAD) / box) + 2
    copied = bool(plan.copied)
    return replace(
        schedule,
        x_buffers=_MAX_LOADED if copied else min(max(ahead, _MIN_LOADED), _MAX_LOADED),
        y_buffers=_SELECTED_BUFFERS[copied],
        acc_buffers=max(min(_SUM_BUFFERS, context.acc_rows // plan.sums(context.config.n)), 1),
    )


def _selection_model(config: MlaConfig, s: LayerSchedule, plan: SelectionPlan) -> TilePipeline:
    """Return the tile model of a selection of bytes, whose tiles are boxes."""
    weights = float(plan.tiles * config.n)

    def tiles() -> Iterator[PipelineTile]:
        for number in range(plan.boxes):
            work = plan.works[number % len(plan.works)]
            loads = (("w", 0, weights), ("box", number, work.load))
            fuse = work.fuse / config.fuse_rate
            yield PipelineTile(loads, work.array, fuse, work.store, ceil(work.commands))

    buffers = {"w": 1, "box": s.x_buffers}
    return TilePipeline(tiles(), plan.boxes, buffers, s.acc_buffers, s.y_buffers, result=EARLY_RESULT)


def move_tile_model(layer: MoveLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a move layer, whose tiles are pieces of the copies, and boxes."""
    config, n = context.config, context.config.n
    plan = _plan_of(config, layer, s, context.on_chip, context.y_on_chip)
    if plan.selected is not None:
        return _selection_model(config, s, plan.selected)
    straight, boxed = plan.straight, [each for _, each in plan.boxed]
    total = sum(copy.walk.count for copy in straight)
    pieces = ceil_div(total, min(s.rows * n, max(total, 1)))
    here = all(
        context.on_chip(copy.source) for copy in straight if copy.source not in (None, *layer.constants)
    )
    size = DTYPE_BYTES[layer.shapes[layer.y].dtype]
    beats = [walk_beats(copy.walk, size, n) for copy in straight]
    load = 0.0 if here else sum(each for each, _ in beats) / max(pieces, 1)
    store = 0.0 if context.y_on_chip else sum(each for _, each in beats) / max(pieces, 1)
    fused = here == context.y_on_chip and (here or any(copy.rescale for copy in straight))
    through = move_rows(n, straight) / max(pieces, 1) if fused else 0.0

    def tiles() -> Iterator[PipelineTile]:
        for which, plan in enumerate(boxed):
            each = plan.work.times(1 / plan.boxes)
            for number in range(plan.boxes):
                loads = (("box", (which, number), each.load),) if each.load else ()
                fuse = each.fuse / config.fuse_rate
                yield PipelineTile(loads, each.array, fuse, each.store, ceil(each.commands))
        for number in range(pieces):
            loads = (("x", number, load),) if load else ()
            yield PipelineTile(loads, 0.0, through, store, (through > 0) + (store > 0))

    count = sum(plan.boxes for plan in boxed) + pieces
    buffers = {"x": s.x_buffers, "box": s.x_buffers}
    return TilePipeline(tiles(), count, buffers, s.acc_buffers if boxed else 1, s.y_buffers)


#: Lowerings of the operators that become moves.
MOVE_LOWERINGS: dict[str, Lowering] = {
    "transpose": Lowering(_transpose, ANY_TO_ANY, strided_input=True, strided_output=True),
    "reshape": Lowering(reshape, ANY_TO_ANY),
    "concat": Lowering(_concat, ANY_TO_ANY, strided_input=True, strided_output=True),
    "slice": Lowering(_slice, ANY_TO_ANY, strided_input=True, strided_output=True),
    "pad": Lowering(_pad, ANY_TO_ANY, strided_input=True, strided_output=True),
    "gather": Lowering(_gather, ElementTypes((ALL, INDICES), ALL), strided_input=True),
    "resize_nearest": Lowering(_resize, ANY_TO_ANY, strided_input=True, strided_output=True),
    "requantize": Lowering(
        _requantize, ElementTypes((INTEGERS,), INTEGERS), strided_input=True, strided_output=True
    ),
}
