"""Attention operators, rotary embeddings and their neighbors give the same results as onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.lowering.partition import BOUNDARY_REASON
from compiler.onnx_backend import prepare
from tests.support.onnx_models import check, model, node, ops, reference

MS = {"domain": "com.microsoft"}
B, S, T, H, D = 2, 5, 7, 4, 6
Arrays = dict[str, np.ndarray]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Return seeded, normally distributed float32 values around zero."""
    return np.random.default_rng(seed + 7 * sum(shape)).normal(size=shape).astype(np.float32)


def int32(*values: int) -> np.ndarray:
    """Return int32 values, such as lengths or masks."""
    return np.array(values, np.int32)


def tables(length: int, half: int) -> list[np.ndarray]:
    """Return the cosines and sines of rotary embeddings."""
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(half) / half)
    return [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]


HEADS = {"q_num_heads": H, "kv_num_heads": H}
SHARED = {"q_num_heads": H, "kv_num_heads": 2}
KEPT = np.random.default_rng(3).integers(0, 2, (B, 1, S, T)).astype(bool) | (np.arange(T) == 2)
WEIGHTS = [normal(8, 3 * H * D) / 3, normal(3 * H * D)]
#: Operator, attributes, run-time inputs, constants (both None where omitted) and number of outputs.
CASES: dict[str, tuple[str, dict[str, Any], list[Any], list[Any], int]] = {
    "4d": (
        "Attention",
        {},
        [normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2)],
        [],
        1,
    ),
    "3d": (
        "Attention",
        {**HEADS, "scale": 0.3},
        [normal(B, S, H * D), normal(B, T, H * D, seed=1), normal(B, T, H * D, seed=2)],
        [],
        1,
    ),
    "causal": (
        "Attention",
        {"is_causal": 1},
        [normal(B, H, S, D), normal(B, H, S, D, seed=1), normal(B, H, S, D, seed=2)],
        [],
        1,
    ),
    "groups": (
        "Attention",
        SHARED,
        [normal(B, S, H * D), normal(B, T, 2 * D, seed=1), normal(B, T, 2 * D, seed=2)],
        [],
        1,
    ),
    "mask": (
        "Attention",
        {},
        [normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2)],
        [normal(S, T)],
        1,
    ),
    "boolean mask": (
        "Attention",
        {},
        [normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), KEPT],
        [],
        1,
    ),
    "soft cap": (
        "Attention",
        {"softcap": 2.0},
        [normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2)],
        [],
        1,
    ),
    "past": (
        "Attention",
        {},
        [
            normal(B, H, S, D),
            normal(B, H, S, D, seed=1),
            normal(B, H, S, D, seed=2),
            None,
            normal(B, H, 3, D, seed=3),
            normal(B, H, 3, D, seed=4),
        ],
        [],
        3,
    ),
    "causal, decoding": (
        "Attention",
        {**SHARED, "is_causal": 1, "softcap": 3.0},
        [
            normal(B, 1, H * D),
            normal(B, 1, 2 * D, seed=1),
            normal(B, 1, 2 * D, seed=2),
            None,
            normal(B, 2, 6, D, seed=3),
            normal(B, 2, 6, D, seed=4),
        ],
        [],
        3,
    ),
    "causal, past": (
        "Attention",
        {"is_causal": 1},
        [
            normal(B, H, S, D),
            normal(B, H, S, D, seed=1),
            normal(B, H, S, D, seed=2),
            None,
            normal(B, H, 3, D, seed=3),
            normal(B, H, 3, D, seed=4),
        ],
        [],
        3,
    ),
    "causal, more keys": (
        "Attention",
        {"is_causal": 1},
        [normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2)],
        [],
        1,
    ),
    "multi-head": (
        "MultiHeadAttention",
        {**MS, "num_heads": H},
        [normal(B, S, H * D), normal(B, T, H * D, seed=1), normal(B, T, H * D, seed=2)],
        [normal(3 * H * D), int32(*[1] * (B * T - 2), 0, 0).reshape(B, T), normal(B, H, S, T)],
        1,
    ),
    "multi-head lengths": (
        "MultiHeadAttention",
        {**MS, "num_heads": H},
        [normal(B, S, H * D), normal(B, T, H * D, seed=1), normal(B, T, H * D, seed=2), None, int32(T, 4)],
        [],
        1,
    ),
    "packed weights": ("Attention", {**MS, "num_heads": H}, [normal(B, S, 8)], WEIGHTS, 1),
    "packed weights, masked": (
        "Attention",
        {**MS, "num_heads": H, "unidirectional": 1},
        [normal(B, S, 8)],
        [*WEIGHTS, int32(*[1] * (B * S - 2), 0, 0).reshape(B, S)],
        1,
    ),
    "packed weights, past": (
        "Attention",
        {**MS, "num_heads": H, "unidirectional": 1},
        [normal(B, S, 8), *WEIGHTS, None, normal(2, B, H, 3, D)],
        [],
        2,
    ),
    "group query": (
        "GroupQueryAttention",
        {**MS, "num_heads": H, "kv_num_heads": 2},
        [normal(B, S, H * 8), normal(B, S, 2 * 8, seed=1), normal(B, S, 2 * 8, seed=2)],
        [None, None, int32(S - 1, S - 1), int32(S)],
        3,
    ),
    "group query, rotary": (
        "GroupQueryAttention",
        {**MS, "num_heads": H, "kv_num_heads": 2, "do_rotary": 1, "local_window_size": 2},
        [normal(1, S, (H + 2 * 2) * 16)],
        [None, None, None, None, int32(S - 1), int32(S), *tables(9, 8)],
        3,
    ),
    "group query, past": (
        "GroupQueryAttention",
        {**MS, "num_heads": H, "kv_num_heads": 2, "do_rotary": 1, "rotary_interleaved": 1, "softcap": 3.0},
        [
            normal(1, 1, H * 16),
            normal(1, 1, 2 * 16, seed=1),
            normal(1, 1, 2 * 16, seed=2),
            normal(1, 2, S, 16, seed=3),
            normal(1, 2, S, 16, seed=4),
        ],
        [int32(S), int32(S + 1), *tables(9, 8)],
        3,
    ),
    "rotary": (
        "RotaryEmbedding",
        {},
        [normal(B, H, S, D)],
        [*tables(S, 3), np.arange(S)[None].repeat(B, 0)],
        1,
    ),
    "rotary, interleaved": (
        "RotaryEmbedding",
        {"interleaved": 1, "num_heads": H, "rotary_embedding_dim": 4},
        [normal(B, S, H * D)],
        [*tables(S, 2), np.arange(S)[None].repeat(B, 0)],
        1,
    ),
    "rotary of com.microsoft": (
        "RotaryEmbedding",
        MS,
        [normal(B, S, H * D)],
        [np.array([2]), *tables(9, 3)],
        1,
    ),
    "skip": (
        "SkipLayerNormalization",
        MS,
        [normal(B, S, 8), normal(B, S, 8, seed=1)],
        [normal(8), normal(8)],
        1,
    ),
    "skip, RMS": (
        "SkipSimplifiedLayerNormalization",
        MS,
        [normal(B, S, 8), normal(B, S, 8, seed=1)],
        [normal(8)],
        1,
    ),
    "bias": ("BiasGelu", MS, [normal(B, S, 8)], [normal(8)], 1),
    "fused": ("FusedMatMul", {**MS, "alpha": 0.5, "transB": 1}, [normal(B, S, 8)], [normal(3, 8)], 1),
}
#: Cases whose masks are inputs: the host converts them to numbers.
HOST_MASKS = ("boolean mask", "multi-head lengths")


def built(name: str) -> tuple[Any, Arrays]:
    """Return the model of a case and its inputs."""
    op, attributes, given, constants, outputs = CASES[name]
    inputs = {f"x{i}": value for i, value in enumerate(given) if value is not None}
    fixed = {f"c{i}": value for i, value in enumerate(constants) if value is not None}
    names = [f"x{i}" if value is not None else "" for i, value in enumerate(given)]
    names += [f"c{i}" if value is not None else "" for i, value in enumerate(constants)]
    call = node(op, "", " ".join(f"y{i}" for i in range(outputs)), **attributes)
    call.input.extend(names)
    return model([call], inputs, [f"y{i}" for i in range(outputs)], fixed, opset=23), inputs


@pytest.mark.parametrize("name", CASES)
def test_operator_equals_onnxruntime(name: str, tmp_path: Path) -> None:
    made, inputs = built(name)
    graph = check(tmp_path, made, inputs)
    assert ("onnx" in ops(graph)) == (name in HOST_MASKS)


@pytest.mark.parametrize("name", CASES)
def test_operator_runs_on_the_accelerator(name: str) -> None:
    """The host computes only masks that are inputs, and quantized results are within 5% of the range."""
    made, inputs = built(name)
    with prepare(made, "MLA:n8", calibration=[inputs]) as ready:
        if name not in HOST_MASKS:
            assert not [each for each in ready.network.host if each.reason != BOUNDARY_REASON]
        found = ready.run(inputs)
    for got, value in zip(found, reference(made, inputs).values(), strict=True):
        assert np.abs(got - value).max() < 0.05 * np.abs(value).max()


def test_decoder_block_needs_no_host() -> None:
    """A block with rotary positions, grouped queries and a gated network runs on the accelerator, to at least 25 dB."""
    length, heads, size = 12, 4, 16
    width = heads * size
    held = {
        name: normal(width, n, seed=i) / 8
        for i, (name, n) in enumerate(
            {"wq": width, "wk": width // 2, "wv": width // 2, "wo": width, "wu": 2 * width}.items()
        )
    }
    held |= {"wd": normal(2 * width, width) / 11, "g": np.ones(width, np.float32), "l": int32(length - 1)}
    held |= {"t": int32(length), **dict(zip(("cos", "sin"), tables(length, size // 2), strict=True))}
    nodes = [
        node("SimplifiedLayerNormalization", "x g", "n", axis=-1),
        *(node("MatMul", f"n w{name}", name) for name in "qkv"),
        node(
            "GroupQueryAttention",
            "q k v - - l t cos sin",
            "a p r",
            num_heads=heads,
            kv_num_heads=2,
            do_rotary=1,
            **MS,
        ),
        node("MatMul", "a wo", "o"),
        node("SkipSimplifiedLayerNormalization", "o x g", "m - - s", **MS),
        node("MatMul", "m wu", "u"),
        node("Sigmoid", "u", "gate"),
        node("Mul", "u gate", "h"),
        node("MatMul", "h wd", "d"),
        node("Add", "s d", "y"),
    ]
    x = {"x": normal(1, length, width)}
    made = model(nodes, x, ["y"], held)
    with prepare(made, "MLA:n8", calibration=[x], strict=True) as ready:
        (found,) = ready.run(x)
    wanted = reference(made, x)["y"]
    assert 10 * np.log10((wanted**2).sum() / ((found - wanted) ** 2).sum()) > 25
