"""Tracing of PyTorch modules without weights: the operators that a module executes, with the sizes of their tensors.

Modules are built and called on PyTorch's meta device, on which tensors have shapes but no elements. The result is a
sequence of layers as the compiler would lower them: normalizations and activations that directly follow a convolution
become part of it, and attention becomes two products with a softmax in between.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  an extra
from torch.utils._python_dispatch import TorchDispatchMode  # pyright: ignore[reportMissingImports]

from compiler.llm.data.model_graphs import GraphLayer

Image = tuple[int, int, int]

#: Activations that limit values, and activations that become a lookup table.
_CLIPS = {"relu", "relu_", "hardtanh", "hardtanh_", "clamp", "clamp_", "clamp_min", "clamp_min_", "threshold"}
_TABLES = {
    *("silu", "silu_", "gelu", "gelu_", "sigmoid", "sigmoid_", "tanh", "tanh_", "hardswish", "hardswish_"),
    *(
        "hardsigmoid",
        "hardsigmoid_",
        "mish",
        "mish_",
        "elu",
        "elu_",
        "softplus",
        "exp",
        "erf",
        "log_sigmoid_forward",
    ),
    *(
        "sqrt",
        "rsqrt",
        "reciprocal",
        "abs",
        "neg",
        "sin",
        "cos",
        "log",
        "square",
        "leaky_relu",
        "leaky_relu_",
        "pow",
    ),
    *(
        "log1p",
        "selu",
        "celu",
        "log2",
        "sign",
        "floor",
        "round",
        "expm1",
        "softsign",
        "logit",
        "sinh",
        "atan",
    ),
}
_BINARY = {"mul", "mul_", "add", "add_", "sub", "sub_", "div", "div_", "maximum", "minimum", "rsub"}
_MOVES = {
    *(
        "cat",
        "stack",
        "constant_pad_nd",
        "reflection_pad1d",
        "reflection_pad2d",
        "replication_pad2d",
        "roll",
        "flip",
    ),
    *(
        "index_select",
        "index",
        "gather",
        "repeat",
        "im2col",
        "col2im",
        "unfold_copy",
        "pixel_shuffle",
        "pixel_unshuffle",
        "channel_shuffle",
        "affine_grid_generator",
    ),
}
_ALIASES = {
    "_to_copy",
    "detach",
    "lift_fresh",
    "alias",
    "_unsafe_view",
    "contiguous",
    "copy_",
    "where",
    "masked_fill",
}
_ALIASES |= {
    "native_dropout",
    "dropout",
    "masked_fill_",
    "_fake_quantize",
    "bernoulli",
    "nan_to_num",
    "view",
    "clone",
}
_ALIASES |= {
    "_reshape_alias",
    "reshape",
    "as_strided",
    "as_strided_",
    "split_with_sizes_copy",
    "tril",
    "triu",
    "expand_copy",
}
_REDUCTIONS = {"mean", "sum", "amax", "amin", "max", "min"}
#: Layers whose results pass through the unit that applies tables, limits and additions.
_EPILOGUE = {"conv", "depthwise", "convtranspose"}
_BINARY_EPILOGUE = {*_EPILOGUE, "elementwise", "matmul", "pool"}


class UnsupportedGraphError(ValueError):
    """A network has an operator that has no word in the language model's prompts."""


@dataclass
class _Event:
    """Executed operator before fusion: kind, operands and results as numbers of values, and its layer if any."""

    kind: str
    operands: tuple[int, ...]
    result: int
    layer: GraphLayer | None = None
    image: Image | None = None


@dataclass(eq=False)
class _Recorder(TorchDispatchMode):
    """Records operators on tensors that depend on the inputs; values are versions of storages."""

    events: list[_Event] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__()
        self._kept: list[Any] = []
        self._value: dict[int, int] = {}
        self._images: dict[int, Image] = {}
        self._count = 0

    def begin(self, inputs: Iterable[torch.Tensor]) -> None:
        """Declare the inputs of the network."""
        for tensor in inputs:
            self._define(tensor, _image(tensor.shape))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Execute an operator and record it."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        outputs = list(_tensors([result]))
        operands = list(_tensors(args))
        self._kept += outputs
        live = [each for each in operands if self._known(each) is not None]
        if not live or not outputs:
            return result
        first = outputs[0]
        if not (first.is_floating_point() or first.is_complex()):
            for each in outputs:
                self._define(each, None)
            return result
        self._record(name, args, kwargs or {}, operands, live, outputs)
        return result

    def _record(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        operands: list[torch.Tensor],
        live: list[torch.Tensor],
        outputs: list[torch.Tensor],
    ) -> None:
        y = outputs[0]
        numbers = tuple(self._number(each) for each in live)
        same = self._known(y)
        if (
            same is not None
            and not name.endswith("_")
            and y.untyped_storage()._cdata in {each.untyped_storage()._cdata for each in live}
        ):
            return  # a view
        if name == "embedding":
            for each in outputs:
                self._define(each, _image(y.shape))
            return
        if name.startswith("_scaled_dot_product") or name == "scaled_dot_product_attention":
            self._attention(args, numbers, outputs)
            return
        if name in _ALIASES:
            for each in outputs:
                self._alias(each, numbers[0], live[0].numel())
            return
        if name == "copy" or name.startswith(("split", "chunk", "unbind")):
            for each in outputs:
                self._alias(each, numbers[0], live[0].numel())
            return
        kind, layer, image = self._layer(name, args, kwargs, operands, live, y)
        event = _Event(kind, numbers, -1, layer, image)
        for each in outputs:
            self._define(each, image)
        event.result = self._number(y)
        if len(outputs) > 1:  # further results (indices, statistics) are the same value
            for each in outputs[1:]:
                self._value[each.untyped_storage()._cdata] = event.result
        self.events.append(event)

    def _layer(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        operands: list[torch.Tensor],
        live: list[torch.Tensor],
        y: torch.Tensor,
    ) -> tuple[str, GraphLayer | None, Image]:
        """Return the kind of an operator, its layer and the image of its result."""
        x = live[0]
        image = self._image_of(x) if x.numel() == y.numel() else _image(y.shape)
        if name in {"convolution", "_convolution"}:
            layer = self._convolution(args, y)
            return layer.word, layer, layer.y
        if name in {"addmm", "mm", "bmm", "baddbmm", "matmul", "linear", "addbmm", "mv", "dot"}:
            layer = self._product(name, args)
            return layer.word, layer, layer.y
        if name in {
            "native_batch_norm",
            "_native_batch_norm_legit_no_training",
            "cudnn_batch_norm",
            "batch_norm",
        }:
            return "scale", None, image
        if name == "_native_batch_norm_legit":
            return "norm", GraphLayer("norm", image, image), image
        if name in {"native_layer_norm", "_fused_rms_norm", "rms_norm"}:
            size = prod(args[1])
            rows = (y.numel() // size, 1, size)
            return "norm", GraphLayer("norm", rows, rows), image
        if name == "native_group_norm":
            return "norm", GraphLayer("norm", image, image, groups=int(args[7 - 1])), image
        if name in {"_softmax", "_log_softmax", "softmax", "_safe_softmax"}:
            size = x.shape[args[1]] if x.ndim else 1
            lead = x.shape[-2] if x.ndim > 2 and args[1] in {-1, x.ndim - 1} else 1
            rows = (x.numel() // size // lead, lead, size)
            return "softmax", GraphLayer("softmax", rows, rows), image
        if name in {"max_pool2d_with_indices", "avg_pool2d", "max_pool2d"}:
            kernel = _pair(args[1])
            strides = _pair(args[2]) if len(args) > 2 and args[2] else kernel
            layer = GraphLayer("pool", _image(x.shape), _image(y.shape), kernel, strides)
            return "pool", layer, layer.y
        if name in {
            "_adaptive_avg_pool2d",
            "adaptive_max_pool2d",
            "adaptive_avg_pool2d",
            "_adaptive_avg_pool1d",
        }:
            return self._adaptive(x, y)
        if name in _REDUCTIONS:
            return self._reduction(name, args, kwargs, x, y)
        if name == "_prelu_kernel":
            return "prelu", GraphLayer("prelu", image, image), image
        if name in _CLIPS:
            return "clip", None, image
        if name in _TABLES:
            if name == "pow" and len(args) > 1 and args[1] == 2:
                return "square", None, image
            return ("rsqrt" if name == "rsqrt" else "table"), None, image
        if name in _BINARY:
            whole = [each for each in live if each.numel() == y.numel()]
            image = self._image_of(whole[0]) if whole else image
            if len(live) == 2:
                return name.rstrip("_"), None, image
            other = [each for each in operands if each is not live[0]]
            return ("scale" if not other or other[0].numel() <= y.numel() else name), None, image
        if name in {"addcmul", "addcmul_", "lerp", "addcdiv"}:
            return "mul", None, image
        if name.startswith(("upsample", "_upsample")) or name in _MOVES or name == "grid_sampler_2d":
            before = self._image_of(x) if x.numel() != y.numel() else image
            after = _image(y.shape)
            return "move", GraphLayer("move", _same_channels(before, after, x), after), after
        self.unknown[name] += 1
        raise UnsupportedGraphError(name)

    def _convolution(self, args: Sequence[Any], y: torch.Tensor) -> GraphLayer:
        x, weights, _, strides, _, _, transposed, _, groups = args[:9]
        if self._known(weights) is not None or x.ndim > 4:
            raise UnsupportedGraphError("convolution with computed weights or over three dimensions")
        kernel = _pair(list(weights.shape[2:]), 1)
        x_image, y_image = _image(x.shape, channels_first=True), _image(y.shape, channels_first=True)
        depthwise = groups > 1 and groups == x_image[2] and not transposed
        word = "convtranspose" if transposed else "depthwise" if depthwise else "conv"
        groups = 1 if depthwise else groups
        return GraphLayer(word, x_image, y_image, kernel, _pair(list(strides), 1), groups)

    def _product(self, name: str, args: Sequence[Any]) -> GraphLayer:
        a, b = args[1:3] if name in {"addmm", "baddbmm", "addbmm"} else args[:2]
        if a.ndim == 1 or b.ndim == 1:
            raise UnsupportedGraphError("product with a vector")
        if self._known(a) is None:
            a, b = b.transpose(-1, -2), a.transpose(-1, -2)
        rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
        count = prod(a.shape[:-2])
        if self._known(b) is None:
            return GraphLayer("conv", (rows * count, 1, inner), (rows * count, 1, columns))
        sizes = (rows, inner, columns)
        return GraphLayer("matmul", sizes, sizes, groups=count)

    def _adaptive(self, x: torch.Tensor, y: torch.Tensor) -> tuple[str, GraphLayer, Image]:
        before, after = _image(x.shape, channels_first=True), _image(y.shape, channels_first=True)
        if after[:2] == (1, 1):
            return "reduce", GraphLayer("reduce", before, after), after
        strides = (max(before[0] // after[0], 1), max(before[1] // after[1], 1))
        kernel = (before[0] - (after[0] - 1) * strides[0], before[1] - (after[1] - 1) * strides[1])
        if min(kernel) < 1:
            raise UnsupportedGraphError("adaptive pool that enlarges")
        return "pool", GraphLayer("pool", before, after, kernel, strides), after

    def _reduction(
        self, name: str, args: Sequence[Any], kwargs: dict[str, Any], x: torch.Tensor, y: torch.Tensor
    ) -> tuple[str, GraphLayer, Image]:
        dims = args[1] if len(args) > 1 else kwargs.get("dim", range(x.ndim))
        dims = [dims] if isinstance(dims, int) else list(dims if dims is not None else range(x.ndim))
        axes = {each % max(x.ndim, 1) for each in dims}
        if x.ndim == 4 and axes == {2, 3}:
            before, after = _image(x.shape), (1, 1, x.shape[1])
        elif x.ndim - 1 in axes:
            after = (max(y.numel(), 1), 1, 1)
            before = (after[0], 1, x.numel() // after[0])
        else:
            before = (x.numel() // x.shape[-1], 1, x.shape[-1])
            after = (y.numel() // x.shape[-1], 1, x.shape[-1])
        last = name == "mean" and axes == {x.ndim - 1}
        return ("mean" if last else "reduce"), GraphLayer("reduce", before, after), after

    def _attention(self, args: Sequence[Any], numbers: tuple[int, ...], outputs: list[torch.Tensor]) -> None:
        query, key, value = args[:3]
        count, rows, inner = prod(query.shape[:-2]), query.shape[-2], query.shape[-1]
        columns, width = key.shape[-2], value.shape[-1]
        scores = (rows, inner, columns)
        image = (count, rows, columns)
        mixed = (rows, columns, width)
        made = [
            ("matmul", GraphLayer("matmul", scores, scores, groups=count)),
            ("softmax", GraphLayer("softmax", image, image)),
            ("matmul", GraphLayer("matmul", mixed, mixed, groups=count)),
        ]
        for kind, layer in made:
            self._count += 1
            self.events.append(_Event(kind, numbers, self._count, layer, layer.y))
            numbers = (self._count, *numbers[2:])
        for each in outputs:
            self._value[each.untyped_storage()._cdata] = self._count
        self._images[self._count] = (rows, count, width)

    def _known(self, tensor: torch.Tensor) -> int | None:
        return self._value.get(tensor.untyped_storage()._cdata)

    def _number(self, tensor: torch.Tensor) -> int:
        return self._value[tensor.untyped_storage()._cdata]

    def _image_of(self, tensor: torch.Tensor) -> Image:
        image = self._images.get(self._number(tensor))
        return image if image is not None and prod(image) == tensor.numel() else _image(tensor.shape)

    def _define(self, tensor: torch.Tensor, image: Image | None) -> None:
        self._count += 1
        self._value[tensor.untyped_storage()._cdata] = self._count
        if image is not None:
            self._images[self._count] = image

    def _alias(self, tensor: torch.Tensor, number: int, size: int) -> None:
        """Give a tensor the number of another one: a copy with the same elements, or a part."""
        self._value[tensor.untyped_storage()._cdata] = number
        if tensor.numel() == size and number not in self._images:
            self._images[number] = _image(tensor.shape)


def trace(
    module: Callable[..., Any], *args: Any, inputs: Sequence[torch.Tensor], **kwargs: Any
) -> list[GraphLayer]:
    """Return the layers that a module executes.

    Parameters
    ----------
    module : callable
        Module on the meta device, in inference mode.
    *args, **kwargs : Any
        Arguments of the call.
    inputs : sequence of tensor
        Input tensors among the arguments, on the meta device.

    Raises
    ------
    UnsupportedGraphError
        An operator has no word.
    """
    recorder = _Recorder()
    recorder.begin(inputs)
    with torch.no_grad(), recorder:
        module(*args, **kwargs)
    return _fused(recorder.events)


def _fused(events: list[_Event]) -> list[GraphLayer]:
    """Return the layers of events after fusion of scales, activations and additions into the layers before them."""
    uses = Counter(number for event in events for number in set(event.operands))
    layers: list[GraphLayer] = []
    made: dict[int, int] = {}  # value -> index of the layer that produces it
    squares: dict[int, int] = {}  # value -> value whose mean of squares it is derived from
    for event in events:
        first = event.operands[0]
        before = layers[made[first]] if first in made else None
        single = uses[first] == 1
        if event.kind == "square":
            squares[event.result] = first
            continue
        if event.kind in {"mean", "rsqrt", "scale"} and first in squares:
            squares[event.result] = squares[first]
            continue
        if event.kind == "mul":
            norm = next((each for each in event.operands if each in squares), None)
            if norm is not None and squares[norm] in event.operands and event.image:
                h, w, c = event.image
                made[event.result] = len(layers)
                layers.append(GraphLayer("norm", (h * w, 1, c), (h * w, 1, c)))
                continue
        if event.kind == "scale" and before is not None:
            made[event.result] = made[first]
            continue
        if event.kind in {"clip", "table", "rsqrt"} and before is not None and single:
            room = not before.table and not (event.kind != "clip" and before.residual)
            if before.word in _BINARY_EPILOGUE and room and event.kind == "clip":
                made[event.result] = made[first]
                continue
            if before.word in _EPILOGUE and room:
                layers[made[first]] = replace(before, table=True)
                made[event.result] = made[first]
                continue
        if event.kind == "add" and len(event.operands) == 2 and event.image is not None:
            free = [
                each
                for each in event.operands
                if each in made
                and uses[each] == 1
                and layers[made[each]].word in _EPILOGUE
                and not layers[made[each]].residual
                and not layers[made[each]].table
                and prod(layers[made[each]].y) == prod(event.image)
            ]
            if free and event.operands[0] != event.operands[1]:
                chosen = max(free, key=made.__getitem__)
                layers[made[chosen]] = replace(layers[made[chosen]], residual=True)
                made[event.result] = made[chosen]
                continue
        layer = event.layer
        if layer is None:
            image = event.image or (1, 1, 1)
            layer = GraphLayer("elementwise", image, image, table=event.kind in {"table", "rsqrt"})
        made[event.result] = len(layers)
        layers.append(layer)
    return layers


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from _tensors(each)


def _image(shape: Sequence[int], *, channels_first: bool = False) -> Image:
    """Return height, width and channels of a tensor; the batch is part of the height."""
    sizes = [int(each) for each in shape]
    if len(sizes) == 4:
        n, c, h, w = sizes
        return n * h, w, c
    if len(sizes) == 3 and channels_first:
        n, c, w = sizes
        return n, w, c
    if not sizes:
        return 1, 1, 1
    return prod(sizes[:-1]), 1, sizes[-1]


def _same_channels(before: Image, after: Image, x: torch.Tensor) -> Image:
    return before if prod(before) == x.numel() else _image(x.shape)


def _pair(value: Any, missing: int | None = None) -> tuple[int, int]:
    values = [value, value] if isinstance(value, int) else [int(each) for each in value]
    if len(values) == 1:
        values = [missing if missing is not None else values[0], *values]
    return values[0], values[1]
