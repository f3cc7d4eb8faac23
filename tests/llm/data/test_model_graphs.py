"""Tests of the graphs of public models: file format, damaged files, token sequences, held-out networks."""

import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compiler.llm.data.held_out import held_out_keys
from compiler.llm.data.model_graphs import (
    MODEL_GRAPHS,
    GraphLayer,
    ModelGraphs,
    NetworkGraph,
    is_validation_family,
    pretraining_sequences,
    read_graphs,
    write_graphs,
)
from compiler.llm.tokens.integer_tokens import decode_number
from compiler.llm.tokens.vocabulary import LANGUAGE
from hw.errors import InputError

ORIGIN = {"repository": "a/b", "path": "c.py", "licence": "MIT", "traced": "b 1"}
CONV = GraphLayer("conv", (16, 16, 8), (8, 8, 16), (3, 3), (2, 2), residual=True)
PRODUCT = GraphLayer("matmul", (4, 300, 6), (4, 300, 6), groups=2)
SMALL = ModelGraphs({"f": ORIGIN}, [NetworkGraph("f", "b", (PRODUCT, CONV)), NetworkGraph("f", "a", (CONV,))])


@pytest.fixture(scope="module")
def shipped() -> ModelGraphs:
    return read_graphs()


def test_files_preserve_graphs_and_do_not_depend_on_the_order(tmp_path: Path) -> None:
    write_graphs(SMALL, tmp_path / "a.xz")
    write_graphs(ModelGraphs(SMALL.origins, SMALL.networks[::-1]), tmp_path / "b.xz")
    assert (tmp_path / "a.xz").read_bytes() == (tmp_path / "b.xz").read_bytes()
    assert read_graphs(tmp_path / "a.xz") == ModelGraphs(SMALL.origins, SMALL.networks[::-1])


def _line(text: str, **changes: Any) -> str:
    return json.dumps(json.loads(text) | changes)


def _layers(*layers: Any) -> Callable[[list[str]], list[str]]:
    return lambda lines: [lines[0], _line(lines[1], layers=list(layers))]


SIZES = list(CONV.sizes)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda _: [], ":1: damaged: not a file of model graphs"),
        (lambda _: ["[" * 100_000], ":1: damaged: not a file of model graphs"),
        (lambda lines: [_line(lines[0], version=2)], ":1: damaged: not a file of model graphs of version 1"),
        (lambda lines: [_line(lines[0], families=[])], "the origins of families are missing"),
        (lambda lines: [_line(lines[0], families={"f": {"path": "a"}})], "an origin must have repository"),
        (
            lambda lines: [_line(lines[0], families={"f": ORIGIN | {"path": 3}})],
            "an origin must have repository",
        ),
        (lambda lines: [*lines, lines[1]], "two networks of a family have the same name"),
        (lambda lines: [lines[0], "{}"], ":2: damaged: a network must have family"),
        (lambda lines: [lines[0], "nonsense"], ":2: damaged: a network must have family"),
        (lambda lines: [lines[0], _line(lines[1], family="g")], "has no origin"),
        (lambda lines: [lines[0], _line(lines[1], family=[])], "has no origin"),
        (lambda lines: [lines[0], _line(lines[1], name="a\x1b[0m")], "has no name"),
        (lambda lines: [lines[0], _line(lines[1], name="a" * 201)], "has no name"),
        (_layers(), "1 to 2,048 layers"),
        (_layers(*[CONV.as_json()] * 2049), "1 to 2,048 layers"),
        (_layers(["conv", SIZES]), "must have word, sizes and flags"),
        (_layers(["answer", SIZES, 0]), "unknown word"),
        (_layers([{}, SIZES, 0]), "unknown word"),
        (_layers(["conv", SIZES[1:], 0]), "must have 11 sizes"),
        (_layers(["conv", [0, *SIZES[1:]], 0]), "integers from 1 to"),
        (_layers(["conv", [True, *SIZES[1:]], 0]), "integers from 1 to"),
        (_layers(["conv", [1.5, *SIZES[1:]], 0]), "integers from 1 to"),
        (_layers(["conv", [1 << 24, *SIZES[1:]], 0]), "integers from 1 to"),
        (_layers(["conv", [*SIZES[:-1], 3], 0]), "divide its channels"),
        (_layers(["conv", SIZES, 4]), "unknown flags"),
        (_layers(["conv", SIZES, None]), "unknown flags"),
    ],
)
def test_damaged_files_are_rejected(tmp_path: Path, damage, message: str) -> None:
    write_graphs(ModelGraphs(SMALL.origins, SMALL.networks[:1]), tmp_path / "a.xz")
    lines = lzma.decompress((tmp_path / "a.xz").read_bytes()).decode().splitlines()
    (tmp_path / "a.xz").write_bytes(lzma.compress("\n".join(damage(lines)).encode()))
    with pytest.raises(InputError, match=message) as error:
        read_graphs(tmp_path / "a.xz")
    assert str(error.value).startswith(f"{tmp_path / 'a.xz'}:")


def test_damaged_bytes_are_rejected(tmp_path: Path) -> None:
    write_graphs(SMALL, tmp_path / "a.xz")
    data = (tmp_path / "a.xz").read_bytes()
    seed = 3
    rng = random.Random(seed)
    for number in range(40):
        damaged = bytearray(data[: rng.randrange(len(data))] if number % 2 else data)
        for _ in range(4 * bool(damaged)):
            damaged[rng.randrange(len(damaged))] ^= 1 + rng.randrange(255)
        (tmp_path / "b.xz").write_bytes(damaged)
        with pytest.raises(InputError):
            read_graphs(tmp_path / "b.xz")
    with pytest.raises(InputError, match="cannot be read"):
        read_graphs(tmp_path / "missing.xz")


def test_large_files_are_rejected(tmp_path: Path) -> None:
    with lzma.open(tmp_path / "a.xz", "wb", preset=0) as file:
        for _ in range(129):
            file.write(bytes(1 << 20))
    with pytest.raises(InputError, match="more than 134,217,728 bytes"):
        read_graphs(tmp_path / "a.xz")


def test_tokens_state_the_sizes() -> None:
    tokens = CONV.tokens()
    rest = iter(tokens[1:])
    assert tokens[0] == "conv" and [decode_number(rest) for _ in range(11)] == SIZES
    # 16 * 16 * 8 bytes, 8 * 8 * 16 bytes, 3 * 3 * 8 * 16 weights, 1152 * 64 / 16**2 products per lane pair.
    assert list(rest) == ["residual", "level 33", "level 30", "level 31", "level 25"]
    assert PRODUCT.macs == 2 * 4 * 300 * 6 and PRODUCT.parameters == 0
    transposed = GraphLayer("convtranspose", (4, 4, 8), (8, 8, 16), (2, 2), (2, 2))
    assert transposed.macs == 4 * 4 * 2 * 2 * 8 * 16


def test_windows_contain_whole_layers() -> None:
    network = NetworkGraph("f", "a", (CONV, PRODUCT) * 20)
    whole = [token for window in network.windows(10_000) for token in window]
    windows = list(network.windows(100))
    assert [token for window in windows for token in window] == whole
    assert len(windows) > 5 and all(len(window) <= 100 and window[0] == "layer" for window in windows)
    assert whole[-1] == "end" and whole.count("layer") == 40
    (sequences,) = pretraining_sequences(LANGUAGE, [network, network], 100).values()
    assert len(sequences) < len(windows) and len(set(sequences)) == len(sequences)


def test_shipped_graphs_have_origins_and_both_sets(shipped: ModelGraphs) -> None:
    families = {network.family for network in shipped.networks}
    assert MODEL_GRAPHS.stat().st_size <= 1 << 20
    assert families == set(shipped.origins) and len(families) >= 60
    validation = {family for family in families if is_validation_family(family)}
    assert 5 <= len(validation) <= len(families) // 4
    assert len({network.layers for network in shipped.networks}) == len(shipped.networks)
    words = {layer.word for network in shipped.networks for layer in network.layers}
    assert words >= {
        "conv",
        "depthwise",
        "matmul",
        "pool",
        "elementwise",
        "softmax",
        "norm",
        "reduce",
        "move",
    }


def test_shipped_graphs_fit_the_vocabulary(shipped: ModelGraphs) -> None:
    for family, sequences in pretraining_sequences(LANGUAGE, shipped.networks[::10], 512).items():
        assert sequences, family
        for sequence in sequences:
            assert 0 < len(sequence) <= 512 and LANGUAGE.tokens[sequence[0]] == "layer"


def test_no_held_out_network_is_shipped(shipped: ModelGraphs) -> None:
    names = (
        "mobilenet",
        "resnet50",
        "resnet8",
        "ds_cnn",
        "bert-tiny",
        "bert-mini",
        "vit_tiny",
        "tinystories",
    )
    for network in shipped.networks:
        assert not network.is_held_out, network.name
        assert not any(name in f"{network.family} {network.name}".lower() for name in names)


def test_networks_of_held_out_layers_are_recognized() -> None:
    first = GraphLayer("conv", (56, 56, 64), (56, 56, 64), (1, 1))
    assert "conv 56x56x64 to 64, 1x1 / 1" in held_out_keys()
    assert NetworkGraph("f", "a", (first, CONV, first)).is_held_out
    assert not NetworkGraph("f", "a", (first, CONV)).is_held_out
    assert not NetworkGraph("f", "a", (PRODUCT,)).is_held_out
    assert NetworkGraph("f", "MobileNetV2 35", (CONV,)).is_held_out
