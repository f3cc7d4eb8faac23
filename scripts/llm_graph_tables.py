"""Published networks that no package contains, as tables of their sizes: control, recommendation, sequences, images."""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  an extra
from torch import nn  # pyright: ignore[reportMissingImports]

from compiler.llm.data.model_graphs import GraphLayer
from scripts.llm_graph_sources import Source
from scripts.llm_graph_tracing import trace

#: Layer of a table: a word with its sizes. conv and up (transposed convolution): channels, kernel, stride, padding;
#: pool: kernel, stride; dense: channels; lstm, gru and rnn: channels, number of layers.
Row = tuple[Any, ...]

#: Fractions of the published width, and words whose first size is no width.
_SCALES, _UNSCALED = (1, 2, 4), ("pool", "shuffle")


def table_sources() -> Iterator[Source]:
    """Yield the networks of all tables, at several sizes of the input and several widths."""
    for family, (repository, path, licence, shapes, rows) in TABLES.items():
        origin = {"repository": repository, "path": path, "licence": licence, "traced": "table of sizes"}
        for scale in _SCALES:
            scaled = _scaled(rows, scale)
            width = "" if scale == 1 else f", width / {scale}"
            for shape in shapes:
                title = f"{'x'.join(map(str, shape))}{width}"
                yield Source(family, title, origin, partial(_table, shape, scaled))


def _scaled(rows: Sequence[Row], scale: int) -> list[Row]:
    """Divide all widths but the last one, which is the number of results."""
    last = max(number for number, row in enumerate(rows) if len(row) > 1 and row[0] not in _UNSCALED)
    return [
        (row[0], max(row[1] // scale, 1), *row[2:])
        if len(row) > 1 and row[0] not in _UNSCALED and number != last
        else row
        for number, row in enumerate(rows)
    ]


def _table(shape: Sequence[int], rows: Sequence[Row]) -> list[GraphLayer]:
    """Trace the network of a table; an image has channels, height and width, a sequence has steps and channels."""
    with torch.device("meta"):
        module, x = _Table(shape, rows).eval(), torch.empty(1, *shape)
    return trace(module, x, inputs=[x])


class _Table(nn.Module):
    def __init__(self, shape: Sequence[int], rows: Sequence[Row]):
        super().__init__()
        self.parts = nn.ModuleList()
        x = torch.empty(1, *shape, device="meta")
        for word, *sizes in rows:
            part = _PARTS[word](x, *sizes)
            self.parts.append(part)
            x = part(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
        return x


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], x: torch.Tensor, width: int, layers: int):
        super().__init__()
        sizes = [x.shape[2], *[width] * layers]
        self.cells = nn.ModuleList(kind(*pair) for pair in itertools.pairwise(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for cell in self.cells:
            state, found = None, []
            for step in range(x.shape[1]):
                state = cell(x[:, step], state)
                found.append(state[0] if isinstance(state, tuple) else state)
            x = torch.stack(found, 1)
        return x


class _Residual(nn.Module):
    def __init__(self, x: torch.Tensor, width: int, kernel: int, count: int):
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, kernel, padding=kernel // 2),
                nn.ReLU(),
                nn.Conv2d(width, width, kernel, padding=kernel // 2),
            )
            for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = x + part(x)
        return x


_PARTS: dict[str, Any] = {
    "conv": lambda x, c, k, s=1, p=0: nn.Conv2d(x.shape[1], c, k, s, p),
    "depthwise": lambda x, c, k, s=1, p=0: nn.Conv2d(x.shape[1], x.shape[1], k, s, p, groups=x.shape[1]),
    "up": lambda x, c, k, s=1, p=0: nn.ConvTranspose2d(x.shape[1], c, k, s, p),
    "pool": lambda x, k, s: nn.MaxPool2d(k, s),
    "dense": lambda x, c: nn.Linear(x.shape[-1], c),
    "flat": lambda x: nn.Flatten(),
    "last": lambda x: _Last(),
    "enlarge": lambda x: nn.Upsample(scale_factor=2),
    "shuffle": lambda x, s: nn.PixelShuffle(s),
    "residual": lambda x, c, k, n: _Residual(x, c, k, n),
    "lstm": lambda x, c, n: _Recurrent(nn.LSTMCell, x, c, n),
    "gru": lambda x, c, n: _Recurrent(nn.GRUCell, x, c, n),
    "rnn": lambda x, c, n: _Recurrent(nn.RNNCell, x, c, n),
    "norm": lambda x: nn.InstanceNorm2d(x.shape[1]),
    "relu": lambda x: nn.ReLU(),
    "leaky": lambda x: nn.LeakyReLU(0.2),
    "prelu": lambda x: nn.PReLU(x.shape[1]),
    "tanh": lambda x: nn.Tanh(),
    "sigmoid": lambda x: nn.Sigmoid(),
    "softmax": lambda x: nn.Softmax(-1),
}


class _Last(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, -1]


def _dense(*widths: int, last: str = "") -> list[Row]:
    rows: list[Row] = []
    for width in widths:
        rows += [("dense", width), ("relu",)]
    return [*rows[:-1], *([(last,)] if last else [])]


_BSD, _MIT, _UNKNOWN = "BSD-3-Clause", "MIT", "not stated"

#: Tables by family: repository, path, licence, shapes of the input, and rows.
TABLES: dict[str, tuple[str, str, str, Sequence[Sequence[int]], list[Row]]] = {
    "dqn": (
        "DLR-RM/stable-baselines3",
        "stable_baselines3/common/torch_layers.py",
        _MIT,
        [(4, 84, 84), (1, 84, 84), (3, 64, 64), (4, 64, 64), (3, 96, 96), (12, 84, 84)],
        [
            ("conv", 32, 8, 4),
            ("relu",),
            ("conv", 64, 4, 2),
            ("relu",),
            ("conv", 64, 3),
            ("relu",),
            ("flat",),
            ("dense", 512),
            ("relu",),
            ("dense", 18),
        ],
    ),
    "actor": (
        "DLR-RM/stable-baselines3",
        "stable_baselines3/common/torch_layers.py",
        _MIT,
        [(4,), (8,), (17,), (24,), (111,), (376,)],
        [*_dense(256, 256, 6), ("tanh",)],
    ),
    "critic": (
        "DLR-RM/stable-baselines3",
        "stable_baselines3/common/torch_layers.py",
        _MIT,
        [(10,), (23,), (28,), (119,), (393,)],
        _dense(400, 300, 1),
    ),
    "dlrm/bottom": (
        "facebookresearch/dlrm",
        "bench/dlrm_s_criteo_kaggle.sh",
        _MIT,
        [(13,), (4, 13), (16, 13), (64, 13)],
        _dense(512, 256, 64, 16),
    ),
    "dlrm/top": (
        "facebookresearch/dlrm",
        "bench/dlrm_s_criteo_kaggle.sh",
        _MIT,
        [(367,), (4, 367), (16, 367), (64, 367)],
        _dense(512, 256, 1, last="sigmoid"),
    ),
    "collaborative filtering": (
        "hexiangnan/neural_collaborative_filtering",
        "MLP.py",
        _UNKNOWN,
        [(64,), (8, 64), (32, 64)],
        _dense(32, 16, 8, 1, last="sigmoid"),
    ),
    "variational autoencoder": (
        "pytorch/examples",
        "vae/main.py",
        _BSD,
        [(784,), (4, 784), (16, 784)],
        _dense(400, 20, 400, 784, last="sigmoid"),
    ),
    "lstm language model": (
        "pytorch/examples",
        "word_language_model/main.py",
        _BSD,
        [(4, 200), (8, 200), (16, 200), (35, 200)],
        [("lstm", 200, 2), ("dense", 10000)],
    ),
    "gru language model": (
        "pytorch/examples",
        "word_language_model/main.py",
        _BSD,
        [(4, 200), (8, 200), (16, 200), (35, 200)],
        [("gru", 200, 2), ("dense", 10000)],
    ),
    "rnn language model": (
        "pytorch/examples",
        "word_language_model/main.py",
        _BSD,
        [(4, 200), (8, 200), (16, 200), (35, 200)],
        [("rnn", 200, 2), ("dense", 10000)],
    ),
    "time sequence": (
        "pytorch/examples",
        "time_sequence_prediction/train.py",
        _BSD,
        [(4, 1), (8, 1), (16, 1)],
        [("lstm", 51, 2), ("dense", 1)],
    ),
    "sub-pixel super-resolution": (
        "pytorch/examples",
        "super_resolution/model.py",
        _BSD,
        [(1, 24, 24), (1, 32, 32), (1, 48, 48), (1, 64, 64), (1, 96, 96), (1, 224, 224)],
        [
            ("conv", 64, 5, 1, 2),
            ("relu",),
            ("conv", 64, 3, 1, 1),
            ("relu",),
            ("conv", 32, 3, 1, 1),
            ("relu",),
            ("conv", 9, 3, 1, 1),
            ("shuffle", 3),
        ],
    ),
    "srcnn": (
        "yjn870/SRCNN-pytorch",
        "models.py",
        _UNKNOWN,
        [(1, 33, 33), (1, 64, 64), (1, 96, 96), (1, 128, 128), (3, 64, 64)],
        [("conv", 64, 9, 1, 4), ("relu",), ("conv", 32, 5, 1, 2), ("relu",), ("conv", 1, 5, 1, 2)],
    ),
    "fsrcnn": (
        "yjn870/FSRCNN-pytorch",
        "models.py",
        _UNKNOWN,
        [(1, 16, 16), (1, 24, 24), (1, 32, 32), (1, 48, 48), (1, 64, 64), (1, 96, 96)],
        [
            ("conv", 56, 5, 1, 2),
            ("prelu",),
            ("conv", 12, 1),
            ("prelu",),
            *[("conv", 12, 3, 1, 1), ("prelu",)] * 4,
            ("conv", 56, 1),
            ("prelu",),
            ("up", 1, 9, 2, 4),
        ],
    ),
    "style transfer": (
        "pytorch/examples",
        "fast_neural_style/neural_style/transformer_net.py",
        _BSD,
        [(3, 64, 64), (3, 96, 96), (3, 128, 128), (3, 224, 224), (3, 256, 256)],
        [
            ("conv", 32, 9, 1, 4),
            ("norm",),
            ("relu",),
            ("conv", 64, 3, 2, 1),
            ("norm",),
            ("relu",),
            ("conv", 128, 3, 2, 1),
            ("norm",),
            ("relu",),
            ("residual", 128, 3, 5),
            ("enlarge",),
            ("conv", 64, 3, 1, 1),
            ("norm",),
            ("relu",),
            ("enlarge",),
            ("conv", 32, 3, 1, 1),
            ("norm",),
            ("relu",),
            ("conv", 3, 9, 1, 4),
        ],
    ),
    "dcgan generator": (
        "pytorch/examples",
        "dcgan/main.py",
        _BSD,
        [(100, 1, 1), (64, 1, 1), (128, 1, 1)],
        [
            ("up", 512, 4),
            ("relu",),
            ("up", 256, 4, 2, 1),
            ("relu",),
            ("up", 128, 4, 2, 1),
            ("relu",),
            ("up", 64, 4, 2, 1),
            ("relu",),
            ("up", 3, 4, 2, 1),
            ("tanh",),
        ],
    ),
    "dcgan discriminator": (
        "pytorch/examples",
        "dcgan/main.py",
        _BSD,
        [(3, 64, 64), (1, 64, 64)],
        [
            ("conv", 64, 4, 2, 1),
            ("leaky",),
            ("conv", 128, 4, 2, 1),
            ("leaky",),
            ("conv", 256, 4, 2, 1),
            ("leaky",),
            ("conv", 512, 4, 2, 1),
            ("leaky",),
            ("conv", 1, 4),
            ("sigmoid",),
        ],
    ),
}
