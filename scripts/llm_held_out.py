"""Generator of the list of layers that are held out from training: all layers of the evaluation networks.

`python -m scripts.llm_held_out` writes `compiler/llm/data/held_out.json`.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from compiler.bench.architectures import model_file
from compiler.bench.tiny import NETWORKS, model_path
from compiler.cache.model_source import ModelSource
from compiler.layers.base import Image, Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.depthwise import DepthwiseLayer
from compiler.layers.pool import PoolLayer
from compiler.llm.data.held_out import key_of, keys_of
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from hw.config import load_target

FILE = Path(__file__).parents[1] / "compiler" / "llm" / "data" / "held_out.json"
PUBLISHED = ("mobilenet_v1", "mobilenet_v2", "resnet50")


@dataclass(frozen=True)
class TransformerSizes:
    """Sizes of a published transformer: width, width of the hidden layer, heads, and numbers of tokens at a time."""

    width: int
    hidden: int
    heads: int
    tokens: tuple[int, ...]


#: Transformers whose layers are held out, each with the lengths of its inputs; 1 is a step of decoding.
TRANSFORMERS = {
    "BERT-tiny": TransformerSizes(128, 512, 2, (1, 16)),
    "BERT-mini": TransformerSizes(256, 1024, 4, (1, 8)),
    "ViT-Ti": TransformerSizes(192, 768, 3, (1, 64)),
    "TinyStories-1M": TransformerSizes(64, 256, 16, (1, 32)),
}


def main() -> int:
    """Write the list of held-out layers."""
    paths = [*map(model_path, NETWORKS), *map(model_file, PUBLISHED)]
    keys: set[str] = set()
    for source in map(ModelSource, paths):
        prepared = ModelCompiler(source.graph, load_target("n16"), CompileOptions(rounding=source.rounding))
        for stage in prepared.lowered(prepared.fusions):
            keys |= {key for layer in stage.layers for key in _keys(layer)}
    keys |= {key for sizes in TRANSFORMERS.values() for point in layers_of(sizes) for key in keys_of(point)}
    FILE.write_text(json.dumps(sorted(keys), indent=1) + "\n", "utf-8")
    print(f"{len(keys)} layers of {len(paths) + len(TRANSFORMERS)} networks")
    return 0


def layers_of(sizes: TransformerSizes) -> Iterator[CalibrationNetwork]:
    """Yield the layers of a transformer, each as a network."""
    width, hidden = sizes.width, sizes.hidden
    ops = (
        *((width, CalibrationOp("dense", size)) for size in (width, hidden)),
        (hidden, CalibrationOp("dense", width)),
        (width, CalibrationOp("attention", groups=sizes.heads)),
        (width, CalibrationOp("norm")),
        (hidden, CalibrationOp("gelu")),
    )
    for tokens in sizes.tokens:
        for channels, op in ops:
            yield CalibrationNetwork((tokens, 1, channels), (op,))


def _keys(layer: Layer) -> Iterator[str]:
    x, y = layer.shapes[layer.x], layer.shapes[layer.y]
    if isinstance(layer, PoolLayer):
        kinds, window = ("max_pool", "avg_pool"), layer.kernel[0]
    elif isinstance(layer, DepthwiseLayer):
        kinds, window = ("depthwise",), layer.weights.shape[0]
    elif isinstance(layer, ConvLayer):
        kinds, window = ("conv", "dense"), layer.weights.shape[1]
    else:
        return
    stride = layer.strides[0]
    for kind in kinds if window == 1 or "dense" not in kinds else kinds[:1]:
        yield _key(kind, x, y, window, stride)


def _key(kind: str, x: Image, y: Image, window: int, stride: int) -> str:
    return key_of(CalibrationOp(kind, y.c, window, stride), (x.h, x.w, x.c))


if __name__ == "__main__":
    sys.exit(main())
