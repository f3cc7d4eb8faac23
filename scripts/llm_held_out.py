"""Writes which layers the language model is not trained with: those of the networks that it is judged by.

`python -m scripts.llm_held_out` writes `compiler/llm/corpus/held_out.json`.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from compiler.bench.models import NETWORKS, model_path
from compiler.bench.published import model_file
from compiler.cache.source import Source
from compiler.hpm.points import Op
from compiler.llm.corpus.held_out import key_of
from compiler.lower.layer import ConvLayer, DepthwiseLayer, Image, Layer, PoolLayer
from compiler.options import Options
from compiler.pipeline import Prepared
from hw.config import load_target

FILE = Path(__file__).parents[1] / "compiler" / "llm" / "corpus" / "held_out.json"
PUBLISHED = ("mobilenet_v1", "mobilenet_v2", "resnet50")


def main() -> int:
    """Write the file."""
    paths = [*map(model_path, NETWORKS), *map(model_file, PUBLISHED)]
    keys: set[str] = set()
    for source in map(Source, paths):
        prepared = Prepared(source.graph, load_target("n16"), Options(rounding=source.rounding))
        for stage in prepared.lowered(prepared.fusions):
            keys |= {key for layer in stage.layers for key in _keys(layer)}
    FILE.write_text(json.dumps(sorted(keys), indent=1) + "\n", "utf-8")
    print(f"{len(keys)} layers of {len(paths)} networks")
    return 0


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
    return key_of(Op(kind, y.c, window, stride), (x.h, x.w, x.c))


if __name__ == "__main__":
    sys.exit(main())
