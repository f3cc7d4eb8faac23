"""A quantized network layer by layer, each fed onnxruntime's inputs: within a unit in the last place of its outputs."""

from pathlib import Path

import onnx

from scripts.networks.digits import MODEL, load_digits_split
from tests.support.onnx_layers import cut, differing

IMAGES = 4
#: Values that lie on a tie or next to one, of which onnxruntime sums the float32 products: a small part.
MOST_APART = 0.001


def test_digits(tmp_path: Path) -> None:
    values = apart = layers = 0
    for image in load_digits_split()[1].images[:IMAGES]:
        for layer in cut(onnx.load(MODEL), {"image": image[None]}):
            count, host = differing(layer, tmp_path)
            assert not host
            values, apart, layers = values + layer.wanted.size, apart + count, layers + 1
    assert layers == 7 * IMAGES
    assert apart <= MOST_APART * values, f"{apart} of {values} values"
