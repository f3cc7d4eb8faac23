"""Given the same inputs, each layer of a quantized network differs from onnxruntime by at most one unit."""

from pathlib import Path

import onnx

from scripts.networks.digits import MODEL, load_digits_split
from tests.support.onnx_layers import cut, differing

IMAGES = 4
#: Largest fraction of values that may differ because onnxruntime rounds float32 sums.
MOST_DIFFERENT = 0.001


def test_layers_of_the_digits_network_equal_onnxruntime(tmp_path: Path) -> None:
    values = different = layers = 0
    for image in load_digits_split()[1].images[:IMAGES]:
        for layer in cut(onnx.load(MODEL), {"image": image[None]}):
            count, host = differing(layer, tmp_path)
            assert not host
            values, different, layers = values + layer.wanted.size, different + count, layers + 1
    assert layers == 7 * IMAGES
    assert different <= MOST_DIFFERENT * values, f"{different} of {values} values"
