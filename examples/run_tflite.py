"""Compile a TFLite file and run it on the simulated chip.

    python examples/run_tflite.py network.tflite [n4|n8|n16|n32]

The script accepts .onnx files as well. The first run with a target builds its simulator, which takes minutes.
"""

import sys

import numpy as np

import compiler


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array of random values, from the whole range of an integer type or else normally distributed."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return rng.normal(size=shape).astype(dtype)


def main(model: str, target: str = "n4") -> None:
    """Print the shape and the position of the maximum of each output, and the cycles."""
    network = compiler.compile(model, target)
    print(network)

    # One random sample. Quantized models take the integers that are stored in the file's tensors.
    rng = np.random.default_rng(0)
    sample = {each.name: random_array(rng, each.shape, np.dtype(each.dtype)) for each in network.inputs}

    # The golden model needs no simulator and is faster.
    with compiler.open_device(network, "golden") as device:
        expected = compiler.Session(device, network).run(sample)

    # The RTL counts cycles; its outputs are bit-exact.
    with compiler.open_device(network, "rtl", say=print) as device:
        session = compiler.Session(device, network)
        outputs, cycles = session.measure(sample)
    for name, array in outputs.items():
        assert np.array_equal(array, expected[name])
        print(f"{name}: {array.dtype}{list(array.shape)}, maximum at {int(array.argmax())}")
    print(f"{cycles:,} cycles, {network.floor.cycles(network.config):,} at the roofline")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
