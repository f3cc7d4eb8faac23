"""TFLite operators on the accelerator make what LiteRT makes of them, with either rounding, for random shapes."""

from pathlib import Path

import numpy as np
import pytest

from tests.compiler import tflite_cases as cases
from tests.compiler.tflite_cases import Case
from tests.compiler.tflite_models import Draft, check

TRIALS = 5
BYTES, SIGNED = ("int8", "uint8"), ("int8",)
CASES: dict[str, tuple[Case, tuple[str, ...]]] = {
    "concatenation": (cases.concatenation, BYTES),
    "leaky_relu": (cases.leaky_relu, BYTES),
    "prelu": (cases.prelu, BYTES),
    "gelu": (cases.gelu, BYTES),
    "abs": (cases.function("ABS"), SIGNED),
    "log": (cases.function("LOG", low=True), SIGNED),
    "sqrt": (cases.function("SQRT", low=True), SIGNED),
    "rsqrt": (cases.function("RSQRT", low=True), SIGNED),
    "relu": (cases.function("RELU"), BYTES),
    "relu6": (cases.function("RELU6"), BYTES),
    "relu_n1_to_1": (cases.function("RELU_N1_TO_1"), BYTES),
    "hard_swish": (cases.function("HARD_SWISH"), BYTES),
    "logistic": (cases.function("LOGISTIC", 1 / 256, 0), BYTES),
    "tanh": (cases.function("TANH", 1 / 128, 128), BYTES),
    "exp": (cases.function("EXP", 0.5), SIGNED),
    "batch_matmul": (cases.batch_matmul, SIGNED),
    "pad": (cases.pad("PAD"), BYTES),
    "padv2": (cases.pad("PADV2"), BYTES),
    "mirror_pad": (cases.mirror_pad, BYTES),
    "transpose": (cases.transpose, BYTES),
    "slice": (cases.part, BYTES),
    "strided_slice": (cases.strided_slice, BYTES),
    "strided_ellipsis": (cases.strided_ellipsis, BYTES),
    "split": (cases.split, BYTES),
    "split_v": (cases.split_v, BYTES),
    "pack": (cases.pack, BYTES),
    "unpack": (cases.unpack, BYTES),
    "gather": (cases.gather, BYTES),
    "resize": (cases.resize, BYTES),
    "transpose_conv": (cases.transpose_conv, BYTES),
    "depthwise": (cases.depthwise, BYTES),
    "space_to_batch": (cases.space_to_batch, BYTES),
    "depth_to_space": (cases.depth_to_space, BYTES),
    "softmax": (cases.softmax, BYTES),
    "requantize": (cases.requantize, BYTES),
    "add": (cases.binary("ADD"), BYTES),
    "sub": (cases.binary("SUB"), BYTES),
    "mul": (cases.binary("MUL"), BYTES),
    "maximum": (cases.extreme("MAXIMUM"), BYTES),
    "minimum": (cases.extreme("MINIMUM"), BYTES),
    "mean": (cases.reduction("MEAN"), BYTES),
    "sum": (cases.reduction("SUM"), BYTES),
    "reduce_max": (cases.reduction("REDUCE_MAX", same=True), BYTES),
    "reduce_min": (cases.reduction("REDUCE_MIN", same=True), BYTES),
}


#: LiteRT's reference sum reads signed values as unsigned ones.
LEFT_OUT = {("sum", "int8", "reference")}
COMBINATIONS = [
    (name, dtype, rounding)
    for name, (_, types) in CASES.items()
    for dtype in types
    for rounding in ("reference", "xnnpack")
    if (name, dtype, rounding) not in LEFT_OUT
]


def most_off(name: str, rounding: str) -> int:
    """What results may differ by.

    LiteRT's default kernel between int8 and uint8 rounds otherwise in vectors than at their end.
    """
    return int(name == "softmax" or (name, rounding) == ("requantize", "xnnpack"))


@pytest.mark.parametrize(("name", "dtype", "rounding"), COMBINATIONS)
def test_on_the_accelerator(
    name: str, dtype: str, rounding: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    for _ in range(TRIALS):
        draft = Draft(rng, dtype)
        CASES[name][0](draft)
        network = check(draft, tmp_path, rounding, within=most_off(name, rounding))
        assert [node.reason for node in network.host] == []
