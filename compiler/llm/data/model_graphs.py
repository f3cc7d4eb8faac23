"""Graphs of public models as sequences of layers in the words of prompts, for pre-training of the language model.

`model_graphs.xz` is a compressed file of JSON lines. The first line has the format, its version, and for each family
its origin: repository, path, licence and tool. Each other line is one network: `family`, `name` and `layers`. A layer
is `[word, sizes, flags]`: the word of a layer kind; height, width and channels of input and output, height and width of
kernel and stride, and groups; the sum of 1 (another tensor is added) and 2 (a table follows). For products of two
computed matrices, the sizes are rows, inner size and columns, twice, and `groups` is the number of products.
The file contains operators and sizes only, no weights and no code.
"""

import json
import lzma
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from compiler.cache.digest import name
from compiler.layers.registry import LAYER_KINDS
from compiler.llm.data.held_out import held_out_keys, key_of
from compiler.llm.tokens.layer_prompt import LayerSizes, layer_tokens
from compiler.llm.tokens.vocabulary import Vocabulary
from compiler.tuning.calibration.calibration_networks import CalibrationOp
from compiler.util.files import parsed_line
from hw.errors import InputError, WorkError, reason_of

MODEL_GRAPHS = Path(__file__).with_name("model_graphs.xz")
FORMAT = "mla-model-graphs"
VERSION = 1
#: Bounds of files, which may come from untrusted sources: decompressed bytes, layers per network, and values of sizes.
_MAX_BYTES, MAX_LAYERS, MAX_SIZE = 1 << 27, 2048, (1 << 24) - 1
_MAX_TEXT = 200
_SIZES = 11
_RESIDUAL, _TABLE = 1, 2
_WORDS = frozenset(kind.word for kind in LAYER_KINDS)
#: Number of lanes for which the level of multiply-accumulates is stated.
_LANES = 16
#: Reciprocal of the fraction of families that are used for validation.
_VALIDATION_PERIOD = 8
#: Maximum fraction of the convolutions and pools of a network that may be held-out layers.
_MAX_HELD_OUT = 0.5
#: Names of held-out networks: a network whose name contains one of them is not a training network.
_HELD_OUT_NAMES = (
    "mobilenet",
    "resnet50",
    "resnet8",
    "ds_cnn",
    "bert-tiny",
    "bert-mini",
    "vit_tiny",
    "tinystories",
)
#: Layer kinds that keys of held-out layers name, and the kinds of operators in those keys.
_KEYED = {
    "conv": ("conv", "dense"),
    "depthwise": ("depthwise",),
    "pool": ("max_pool", "avg_pool"),
    "reduce": ("avg_pool",),
}

Image = tuple[int, int, int]


@dataclass(frozen=True)
class GraphLayer:
    """Layer of a public model.

    Parameters
    ----------
    word : str
        Word of the layer kind in prompts.
    x, y : (int, int, int)
        Height, width and channels of input and output; for products, rows, inner size and columns.
    kernel, strides : (int, int)
        Height and width of kernel and stride.
    groups : int
        Number of groups of a convolution or normalization, or number of products.
    residual, table : bool
        True if another tensor is added to the result, and True if a lookup table follows.
    """

    word: str
    x: Image
    y: Image
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    groups: int = 1
    residual: bool = False
    table: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes in the order of prompts."""
        return (*self.x, *self.y, *self.kernel, *self.strides, self.groups)

    @property
    def parameters(self) -> int:
        """Number of weights."""
        if self.word not in {"conv", "depthwise", "convtranspose"}:
            return 0
        inputs = 1 if self.word == "depthwise" else self.x[2] // self.groups
        return prod(self.kernel) * inputs * self.y[2]

    @property
    def macs(self) -> int:
        """Number of multiply-accumulates."""
        if self.word == "matmul":
            return prod(self.x) * self.groups
        image = self.x if self.word == "convtranspose" else self.y
        return self.parameters * image[0] * image[1]

    def tokens(self) -> list[str]:
        """Return the tokens of the layer as in a prompt for int8 tensors."""
        if self.word == "matmul":
            rows, inner, columns = self.x
            bytes_ = (self.groups * rows * inner, self.groups * rows * columns)
        else:
            bytes_ = (prod(self.x), prod(self.y))
        flags = (self.residual, self.table, False)
        return layer_tokens(
            self.word, LayerSizes(self.sizes, flags, bytes_, self.parameters, self.macs), _LANES
        )

    def as_json(self) -> list[Any]:
        """Return the layer as a JSON value."""
        return [self.word, list(self.sizes), _RESIDUAL * self.residual + _TABLE * self.table]

    @classmethod
    def from_json(cls, data: Any) -> "GraphLayer":
        """Read a layer from a JSON value.

        Raises
        ------
        ValueError
            The value is not a layer.
        """
        if not isinstance(data, list) or len(data) != 3:
            raise ValueError("a layer must have word, sizes and flags")
        word, sizes, flags = data
        if not isinstance(word, str) or word not in _WORDS:
            raise ValueError("a layer has an unknown word")
        if not isinstance(sizes, list) or len(sizes) != _SIZES:
            raise ValueError(f"a layer must have {_SIZES} sizes")
        if not all(type(each) is int and 0 < each <= MAX_SIZE for each in sizes):
            raise ValueError(f"sizes of a layer must be integers from 1 to {MAX_SIZE:,}")
        if type(flags) is not int or not 0 <= flags <= _RESIDUAL + _TABLE:
            raise ValueError("a layer has unknown flags")
        if word in {"conv", "convtranspose"} and (sizes[2] % sizes[10] or sizes[5] % sizes[10]):
            raise ValueError("the groups of a convolution must divide its channels")
        x, y, kernel, strides = sizes[:3], sizes[3:6], sizes[6:8], sizes[8:10]
        return cls(
            word,
            (x[0], x[1], x[2]),
            (y[0], y[1], y[2]),
            (kernel[0], kernel[1]),
            (strides[0], strides[1]),
            sizes[10],
            bool(flags & _RESIDUAL),
            bool(flags & _TABLE),
        )


@dataclass(frozen=True)
class NetworkGraph:
    """Public model as a sequence of layers in the order of execution.

    Parameters
    ----------
    family : str
        Family of the model; networks of a family share their source.
    name : str
        Name and input size of the model, unique within the family.
    layers : tuple of GraphLayer
        Layers of the model, at least one.
    """

    family: str
    name: str
    layers: tuple[GraphLayer, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the model as a JSON value."""
        return {
            "family": self.family,
            "name": self.name,
            "layers": [layer.as_json() for layer in self.layers],
        }

    @property
    def is_held_out(self) -> bool:
        """True if the model is one of the held-out networks, or most of its layers are held out."""
        text = f"{self.family} {self.name}".lower()
        if any(each in text for each in _HELD_OUT_NAMES):
            return True
        keyed = [layer for layer in self.layers if layer.word in _KEYED]
        found = sum(_is_held_out(layer) for layer in keyed)
        return found > _MAX_HELD_OUT * len(keyed)

    def windows(self, most: int) -> Iterator[list[str]]:
        """Yield the tokens of consecutive layers; the last window ends with `end`.

        Parameters
        ----------
        most : int
            Maximum number of tokens in a window, more than those of any single layer.
        """
        window: list[str] = []
        for layer in self.layers:
            tokens = ["layer", *layer.tokens()]
            if window and len(window) + len(tokens) + 1 > most:
                yield window
                window = []
            window += tokens
        yield [*window, "end"]


@dataclass(frozen=True)
class ModelGraphs:
    """Public models with the origin of each family.

    Parameters
    ----------
    origins : dict
        Properties of the origin by family: `repository`, `path`, `licence` and `traced`.
    networks : sequence of NetworkGraph
        Models of these families.
    """

    origins: dict[str, dict[str, str]]
    networks: Sequence[NetworkGraph]


ORIGIN = ("repository", "path", "licence", "traced")


def is_validation_family(family: str) -> bool:
    """Return whether all networks of a family are used for validation instead of training."""
    return int(name("validation family", family)[:8], 16) % _VALIDATION_PERIOD == 0


def read_graphs(path: Path = MODEL_GRAPHS) -> ModelGraphs:
    """Read public models from a file.

    Raises
    ------
    InputError
        The file cannot be read or is damaged.
    """
    try:
        with lzma.open(path) as file:
            data = file.read(_MAX_BYTES + 1)
        lines = data.decode("utf-8").splitlines()
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {reason_of(error)}") from None
    if len(data) > _MAX_BYTES:
        raise InputError(f"{path}: more than {_MAX_BYTES:,} bytes of graphs")
    origins, networks = {}, []
    for number, line in enumerate(lines or [""], 1):
        try:
            if number == 1:
                origins = _origins(line)
            else:
                networks.append(_network(parsed_line(line), origins))
        except ValueError as error:
            raise InputError(f"{path}:{number}: damaged: {error}") from None
    if len({(each.family, each.name) for each in networks}) != len(networks):
        raise InputError(f"{path}: two networks of a family have the same name")
    return ModelGraphs(origins, networks)


def write_graphs(graphs: ModelGraphs, path: Path) -> None:
    """Write public models, sorted by family and name so that equal contents give equal files.

    Raises
    ------
    WorkError
        The file cannot be written.
    """
    header = {"format": FORMAT, "version": VERSION, "families": dict(sorted(graphs.origins.items()))}
    ordered = sorted(graphs.networks, key=lambda each: (each.family, each.name))
    lines = [header, *(each.as_json() for each in ordered)]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    try:
        path.write_bytes(lzma.compress(text.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME))
    except OSError as error:
        raise WorkError(f"{path}: cannot be written: {error.strerror}") from None


def pretraining_sequences(
    vocabulary: Vocabulary, networks: Iterable[NetworkGraph], most: int
) -> dict[str, list[tuple[int, ...]]]:
    """Return the distinct token sequences for next-token training by family.

    Parameters
    ----------
    vocabulary : Vocabulary
        Vocabulary of the language model.
    networks : iterable of NetworkGraph
        Public models to convert.
    most : int
        Maximum number of tokens in a sequence.
    """
    found: dict[str, dict[tuple[int, ...], None]] = {}
    for network in networks:
        family = found.setdefault(network.family, {})
        family.update((tuple(vocabulary.encode(window)), None) for window in network.windows(most))
    return {family: list(sequences) for family, sequences in found.items()}


def _is_held_out(layer: GraphLayer) -> bool:
    kernel = layer.x[:2] if layer.word == "reduce" else layer.kernel
    stride = layer.x[0] if layer.word == "reduce" else layer.strides[0]
    ops = (CalibrationOp(kind, layer.y[2], kernel[0], stride) for kind in _KEYED[layer.word])
    return any(key_of(op, layer.x) in held_out_keys() for op in ops)


def _origins(line: str) -> dict[str, dict[str, str]]:
    header = parsed_line(line)
    if (header.get("format"), header.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"not a file of model graphs of version {VERSION}")
    families = header.get("families")
    if not isinstance(families, dict):
        raise ValueError("the origins of families are missing")
    for family, origin in families.items():
        complete = isinstance(origin, dict) and tuple(sorted(origin)) == tuple(sorted(ORIGIN))
        if not complete or not all(_is_text(each) for each in (family, *origin.values())):
            raise ValueError(f"an origin must have {', '.join(ORIGIN)}")
    return families


def _network(data: dict[str, Any], origins: dict[str, dict[str, str]]) -> NetworkGraph:
    if data.keys() != {"family", "name", "layers"}:
        raise ValueError("a network must have family, name and layers")
    family, title, layers = data["family"], data["name"], data["layers"]
    if not _is_text(family) or family not in origins:
        raise ValueError("the family of a network has no origin")
    if not _is_text(title):
        raise ValueError("a network has no name")
    if not isinstance(layers, list) or not 0 < len(layers) <= MAX_LAYERS:
        raise ValueError(f"a network must have 1 to {MAX_LAYERS:,} layers")
    return NetworkGraph(family, title, tuple(map(GraphLayer.from_json, layers)))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_TEXT and value.isprintable()
