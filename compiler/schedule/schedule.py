"""Schedules, which contain all decisions for the execution of a network on a machine."""

import json
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

from compiler.ir.identity import identity, identity_of, items, stored
from compiler.schedule.program_override import ProgramText, text_of
from hw.errors import InputError, shown

#: Version of written documents. Documents of version 1, whose fields have stable names, can be read as well.
VERSION = 2
#: Maximum number of result buffers; the hardware's queues are much shorter.
_MAX_RESULT_BUFFERS = 256
#: Maximum value of a size, which exceeds the sizes of every layer.
_MAX_SIZE = 1 << 24
#: Size that stands for a layer's whole extent, such as the width of a strip that includes all columns.
ALL_COLUMNS = 1 << 16
#: Fields that may be 0.
_MAY_BE_NONE = ("prefetch", "stream_channel_blocks", "stream_row_blocks", "kept_weights")

#: Names of the fields in documents of version 2, in order.
_NAMES = (
    "rows",
    "rows_per_load",
    "width",
    "columns",
    "depth",
    "param_blocks",
    "param_buffers",
    "order",
    "x_buffers",
    "w_buffers",
    "y_buffers",
    "acc_buffers",
    "fold_kernel_width",
    "im2col",
    "pixels_per_pass",
    "prefetch",
    "on_chip",
    "interleave",
    "common_scale",
    "split_first_tile",
    "split_last_tile",
    "stream_channel_blocks",
    "same_program_as_previous",
    "own_counter_tag",
    "strip_width",
    "stream_row_blocks",
    "kept_weights",
    "packed_weights",
)


@identity(
    "LayerSchedule",
    "rows",
    "band",
    "width",
    "columns",
    "depth",
    "slots",
    "slot_buffers",
    "order",
    "x_buffers",
    "w_buffers",
    "y_buffers",
    "acc_buffers",
    "fold",
    "strips",
    "together",
    "prefetch",
    "on_chip",
    "overlap",
    "common_scale",
    "ramp",
    "taper",
    "planes",
    "joined",
    "counted",
    "strip_width",
    "stream_row_blocks",
    "kept_weights",
    "packed_weights",
    added=("strip_width", "stream_row_blocks", "kept_weights", "packed_weights"),
)
@dataclass(frozen=True, kw_only=True)
class LayerSchedule:
    """Schedule of one layer; sizes that exceed the layer's dimensions select the whole layer.

    Parameters
    ----------
    rows : int
        Output rows of a tile; for a matrix, rows of the result.
    rows_per_load : int
        Output rows whose input rows are loaded together; they form one or more tiles.
    width : int
        Output columns of a tile of a depthwise convolution; with fewer columns, the line buffers hold more rows. Of a
        convolution with `im2col` and `fold_kernel_width`: output columns of a tile whose inputs FUSE copies; those of
        the others are loaded, or read from the image rows.
    columns : int
        Blocks of N output channels of a tile.
    depth : int
        Blocks of N input channels over which a MATRIX command sums.
    param_blocks : int
        Blocks of output channels whose parameters are loaded together: `columns` or a multiple of it.
    param_buffers : int
        Number of parameter buffers, each for `param_blocks` blocks.
    order : str
        Outer loop: "rows" reuses the input of a tile for all weights, "channels" reuses the weights for all tiles. Of
        a depthwise convolution: with "channels", the blocks of a tile are computed one after the other, in parts of as
        many rows as the accumulator holds twice; `split_first_tile` and `split_last_tile` apply only to such tiles.
    x_buffers, w_buffers, y_buffers, acc_buffers : int
        Number of buffers for tiles of the input, weights, results (at most 256) and sums. Only data that is loaded from
        or stored to DRAM has buffers.
    fold_kernel_width : bool
        True to make kernel columns part of the reduction dimension, which fills the array if there are few channels. In
        bilinear resizing: windows of adjacent pixels, with constant weights. In averages: sums of windows of bytes.
    im2col : bool
        True to make the whole kernel part of the reduction dimension; the inputs of each output column are loaded
        separately. With `fold_kernel_width`, the image rows are loaded, or are in the scratchpad, and FUSE copies the
        inputs of each output column from them.
    pixels_per_pass : int
        Number of adjacent output pixels that are computed as a single pixel with correspondingly more channels. In
        bilinear resizing: adjacent input pixels of a weight tile, more than one for products with constant matrices.
    prefetch : int
        Number of steps of earlier layers during which the first weights of this layer may be loaded.
    on_chip : bool
        True to keep the output in the scratchpad.
    interleave : bool
        True if the layer's steps may be interleaved with the steps of adjacent layers that also set `interleave`.
    common_scale : bool
        True to make the multiplier, which must be the same for all channels, part of the command. Only biases are then
        loaded, 4 instead of 9 bytes per channel, but FUSE takes four times as long for each pixel.
    split_first_tile : bool
        True to compute the first tile in parts. The first part is small, so that MATRIX can start as soon as the input
        of this part is loaded.
    split_last_tile : bool
        True to drain the last tile in parts. The last part is small, so that subsequent layers wait only for this part.
    stream_channel_blocks : int
        For a convolution whose result is read only by a depthwise convolution: number of channel blocks of the result
        that the scratchpad holds at a time, with both layers interleaved by blocks; 0 to hold the whole result.
    same_program_as_previous : bool
        True to make the layer part of the previous layer's program. This saves a dispatch, but neither layer's program
        can be replaced separately.
    own_counter_tag : bool
        True to count the layer's cycles with a separate tag, False to count them with the previous layer's tag. After a
        tag change, a unit may stall for about a hundred cycles until the previous counters are saved.
    strip_width : int
        Output columns of a strip of a convolution, a depthwise convolution, a pool (packed pixels count as one) or a
        resizing. An image with more columns is split into strips, which are loaded, computed and stored separately.
    stream_row_blocks : int
        For a matrix product whose result is read only by a softmax, or a softmax that is read only by a matrix product:
        number of blocks of `rows` rows of the result, as many as a tile of the product has, that the scratchpad holds
        at a time, with both layers interleaved by blocks; 0 to hold the whole result.
    kept_weights : int
        Number of tiles of the weights of a convolution or dense layer that have buffers of their own, in addition to
        `w_buffers`. Later layers with the same weights and as many such tiles use these buffers without loading them
        again; all these layers must not be interleaved.
    packed_weights : bool
        True to load packed weights, if the machine expands them, wherever these need fewer bytes, and to skip tiles of
        weights that are zero, wherever this saves enough cycles. Programs are then longer.
    """

    rows: int = 1 << 16
    rows_per_load: int = 1 << 16
    width: int = ALL_COLUMNS
    columns: int = 1 << 16
    depth: int = 1 << 16
    param_blocks: int = 1 << 16
    param_buffers: int = 2
    order: str = "rows"
    x_buffers: int = 2
    w_buffers: int = 2
    y_buffers: int = 2
    acc_buffers: int = 2
    fold_kernel_width: bool = False
    im2col: bool = False
    pixels_per_pass: int = 1
    prefetch: int = 4
    on_chip: bool = True
    interleave: bool = False
    common_scale: bool = False
    split_first_tile: bool = False
    split_last_tile: bool = False
    stream_channel_blocks: int = 0
    same_program_as_previous: bool = False
    own_counter_tag: bool = True
    strip_width: int = ALL_COLUMNS
    stream_row_blocks: int = 0
    kept_weights: int = 0
    packed_weights: bool = True

    def __post_init__(self) -> None:
        values = self.__dict__
        for name, kind, least, most in field_limits():
            value = values[name]
            if type(value) is not kind or not least <= value <= most:
                _check(name, value, kind, least, most)
        if self.order not in ("rows", "channels"):
            raise InputError(f'schedule: order must be "rows" or "channels", not {shown(self.order)}')


@cache
def field_limits() -> list[tuple[str, type, Any, Any]]:
    """Return the name, type, minimum and maximum of each field, except of `order`."""
    out = []
    for item in fields(LayerSchedule):
        kind = type(item.default)
        if kind is bool:
            out.append((item.name, kind, False, True))
        elif kind is int:
            least = 0 if item.name in _MAY_BE_NONE else 1
            most = _MAX_RESULT_BUFFERS if item.name in ("y_buffers", "acc_buffers") else _MAX_SIZE
            out.append((item.name, kind, least, most))
    return out


def _check(name: str, value: Any, kind: type, least: int, most: int) -> None:
    """Check a value of a field; an integer may have a type that is derived from int."""
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, kind):
        raise InputError(
            f"schedule: {name} must be {'true or false' if kind is bool else 'an integer'}, not {shown(value)}"
        )
    if value < least:
        raise InputError(f"schedule: {name} must be at least {least}, not {shown(value)}")
    if value > most:
        raise InputError(f"schedule: {name} must be at most {most}, not {shown(value)}")


@identity("Schedule", "fusions", "layers", "programs")
@dataclass(frozen=True)
class Schedule:
    """All decisions for the execution of a network, as plain data: fusion, tiling and order of its layers.

    Parameters
    ----------
    fusions : tuple of tuples of str
        Names of the nodes of each layer that has more than one node.
    layers : dict of str to LayerSchedule
        Schedule of each layer, by name of the layer.
    programs : dict of str to ProgramText
        Assembly texts that replace generated programs, by name of the program.

    Examples
    --------
    >>> network = compiler.compile("network.tflite", "n4")
    >>> text = network.schedule.to_json()  # as `mla compile --save-schedule` writes it
    >>> network = compiler.compile("network.tflite", "n4", schedule=compiler.Schedule.from_json(text))
    """

    fusions: tuple[tuple[str, ...], ...] = ()
    layers: dict[str, LayerSchedule] = field(default_factory=dict)
    programs: dict[str, ProgramText] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Schedule: {len(self.layers)} layers, {len(self.fusions)} fusions, {len(self.programs)} program texts>"

    def unpacked(self) -> "Schedule":
        """Return the schedule without compact formats of weights, whose programs are shorter."""
        layers = {name: replace(layer, packed_weights=False) for name, layer in self.layers.items()}
        return replace(self, layers=layers)

    def to_json(self) -> str:
        """Return the schedule as a JSON document."""
        layers = {
            name: {_KEYS[stable]: value for stable, value in items(layer)}
            for name, layer in self.layers.items()
        }
        return json.dumps({"schema_version": VERSION} | stored(self) | {"layers": layers}, indent=1)

    @staticmethod
    def from_json(text: str) -> "Schedule":
        """Restore a schedule from untrusted text.

        Raises
        ------
        InputError
            The text is not a valid schedule; the message names the position.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"schedule: not JSON: {error}") from None
        version = data.get("schema_version") if isinstance(data, dict) else None
        if type(version) is not int or version not in _FIELDS:
            raise InputError(f'schedule: must be an object whose "schema_version" is 1..{VERSION}')
        return Schedule.from_fields(data, version)

    @staticmethod
    def from_fields(data: dict[str, Any], version: int = 1) -> "Schedule":
        """Restore a schedule from the fields of a document; databases store documents of version 1.

        Raises
        ------
        InputError
            The fields are not a valid schedule; the message names the position.
        """
        fusions, layers, programs = data.get("fusions", []), data.get("layers", {}), data.get("programs", {})
        if not isinstance(fusions, list) or not all(_names(group) for group in fusions):
            raise InputError('schedule: "fusions" must be a list of lists, not empty, of names of nodes')
        for name, value in (("layers", layers), ("programs", programs)):
            if not isinstance(value, dict):
                raise InputError(f'schedule: "{name}" must be an object')
        return Schedule(
            tuple(tuple(group) for group in fusions),
            {name: layer_schedule(name, values, version) for name, values in layers.items()},
            {name: text_of(name, values) for name, values in programs.items()},
        )


#: Python names of a layer's fields by their names in documents, for each version.
_FIELDS: dict[int, dict[str, str]] = {
    1: {stable: item for item, stable in identity_of(LayerSchedule).parts.items()},
    2: dict(zip(_NAMES, identity_of(LayerSchedule).parts, strict=True)),
}
#: Names of a layer's fields in documents of the current version by their stable names.
_KEYS = dict(zip(identity_of(LayerSchedule).parts.values(), _NAMES, strict=True))


def _names(group: Any) -> bool:
    return isinstance(group, list) and group != [] and all(isinstance(name, str) for name in group)


def layer_schedule(name: str, values: Any, version: int = 1) -> LayerSchedule:
    """Restore the schedule of one layer from untrusted fields.

    Raises
    ------
    InputError
        The fields do not describe a layer's schedule; the message includes the layer's name.
    """
    known = _FIELDS[version]
    if not isinstance(values, dict) or not values.keys() <= known.keys():
        raise InputError(
            f"schedule: layer {name!r} must have fields among {', '.join(sorted(known))}, not {shown(values)}"
        )
    try:
        return LayerSchedule(**{known[key]: each for key, each in values.items()})
    except InputError as error:
        raise InputError(f"layer {name!r}: {error}") from None
