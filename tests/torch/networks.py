"""Small networks of common kinds with seeded weights, created by functions that return (module, example)."""

import importlib
import itertools
from collections.abc import Callable
from typing import Any

torch: Any = importlib.import_module("torch")  # the type checker may not find torch
nn, F = torch.nn, torch.nn.functional

SEED = 7


class ResNetBlock(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, inputs: int = 8, outputs: int = 16, stride: int = 2):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.head = nn.Linear(outputs, 10)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)) + self.down(x))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(y, 1), 1))


class BasicBlock(nn.Module):
    """A residual block of ResNet-18, as in torchvision."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += shortcut
        return self.relu(y)


class ResNet18(nn.Module):
    """ResNet-18 of torchvision, with its layers, sizes and names of submodules."""

    def __init__(self, classes: int = 1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1, self.relu, self.maxpool = nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        widths = (64, 64, 128, 256, 512)
        for number, (before, after) in enumerate(itertools.pairwise(widths), 1):
            blocks = [BasicBlock(before, after, 1 if number == 1 else 2), BasicBlock(after, after, 1)]
            setattr(self, f"layer{number}", nn.Sequential(*blocks))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(512, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class VisionTransformer(nn.Module):
    """Patches, a class token, positions, a pre-norm block and a head, as in torchvision's ViT."""

    def __init__(self, width: int = 48, heads: int = 4, patch: int = 4, patches: int = 16):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.1 * torch.randn(1, patches + 1, width))
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, 10)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        x = x + self.mlp(self.ln_2(x))
        return self.head(x[:, 0])


class MobileNetBlock(nn.Module):
    """An inverted residual block."""

    def __init__(self, channels: int = 8, wide: int = 24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            nn.Conv2d(wide, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return x + self.body(x)


class Squeeze(nn.Module):
    """Squeeze and excitation, as in MobileNetV3 and EfficientNet."""

    def __init__(self, channels: int = 16):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=4)
        self.down, self.up = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x):
        y = F.silu(self.conv(x))
        return y * torch.sigmoid(self.up(F.relu(self.down(y.mean((2, 3), keepdim=True)))))


class Recurrent(nn.Module):
    """A recurrent layer whose last step is the only output."""

    def __init__(self, kind: type = nn.LSTM, layers: int = 1, both: bool = False, **options: Any):
        super().__init__()
        self.layers = kind(8, 16, layers, batch_first=True, bidirectional=both, **options)
        self.head = nn.Linear(32 if both else 16, 4)

    def forward(self, x):
        return self.head(self.layers(x)[0][:, -1])


class Stateful(nn.Module):
    """A recurrent layer with its states as inputs and outputs."""

    def __init__(self, kind: type):
        super().__init__()
        self.layers = kind(8, 12, 2)

    def forward(self, x, *states):
        (first, *others) = states
        return self.layers(x, states if others else first)


class Embedded(nn.Module):
    """The mean of embeddings of words."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(50, 24), nn.LayerNorm(24), nn.Linear(24, 6)

    def forward(self, words):
        return self.head(self.norm(self.table(words)).mean(1))


class Several(nn.Module):
    """A network with two inputs and named outputs."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(5, 8)

    def forward(self, image, context):
        y = F.leaky_relu(self.conv(image) + self.linear(context)[:, :, None, None], 0.1)
        return {"map": F.max_pool2d(y, 2), "scores": [y.amax((2, 3)), torch.softmax(y.mean((2, 3)), 1)]}


class Attention(nn.Module):
    """Cross-attention between two sequences."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, query, memory):
        return self.attention(query, memory, memory, need_weights=False)[0]


def _seeded(make: Callable[[], Any], *shapes: tuple[int, ...]) -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(SEED)
    module = make()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):  # as after training
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0, 0.2)
            nn.init.normal_(part.running_mean, 0, 0.2)
            nn.init.uniform_(part.running_var, 0.5, 2)
        if isinstance(part, nn.LayerNorm | nn.GroupNorm):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0, 0.2)
    return module, tuple(torch.randn(shape) for shape in shapes)


IMAGE = (1, 8, 10, 10)
WORDS = torch.randint(0, 50, (1, 12), generator=torch.Generator().manual_seed(SEED))

#: Networks by name.
NETWORKS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "resnet_block": lambda: _seeded(ResNetBlock, IMAGE),
    "mobilenet_block": lambda: _seeded(MobileNetBlock, IMAGE),
    "squeeze_excite": lambda: _seeded(Squeeze, (1, 16, 8, 8)),
    "encoder_layer": lambda: _seeded(
        lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (1, 12, 32)
    ),
    "encoder_layer_gelu": lambda: _seeded(
        lambda: nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True, norm_first=True),
        (1, 12, 32),
    ),
    "attention": lambda: _seeded(Attention, (1, 6, 16), (1, 9, 16)),
    "lstm": lambda: _seeded(Recurrent, (1, 5, 8)),
    "lstm_both_ways": lambda: _seeded(lambda: Recurrent(nn.LSTM, 2, True), (1, 4, 8)),
    "lstm_states": lambda: _seeded(lambda: Stateful(nn.LSTM), (5, 1, 8), (2, 1, 12), (2, 1, 12)),
    "gru": lambda: _seeded(lambda: Recurrent(nn.GRU, 2, True), (1, 4, 8)),
    "gru_states": lambda: _seeded(lambda: Stateful(nn.GRU), (5, 1, 8), (2, 1, 12)),
    "rnn": lambda: _seeded(lambda: Recurrent(nn.RNN, 2, True, nonlinearity="relu"), (1, 4, 8)),
    "conv1d": lambda: _seeded(
        lambda: nn.Sequential(
            nn.Conv1d(4, 16, 5, stride=2, padding=2),
            nn.GELU(),
            nn.Conv1d(16, 8, 3, dilation=2),
            nn.MaxPool1d(2),
        ),
        (1, 4, 40),
    ),
    "conv_transpose": lambda: _seeded(
        lambda: nn.Sequential(nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1), nn.Tanh()), IMAGE
    ),
    "group_norm": lambda: _seeded(
        lambda: nn.Sequential(nn.Conv2d(8, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.SiLU()), IMAGE
    ),
    "instance_norm": lambda: _seeded(
        lambda: nn.Sequential(nn.Conv2d(8, 12, 3), nn.InstanceNorm2d(12), nn.PReLU(12)), IMAGE
    ),
    "layer_norm": lambda: _seeded(
        lambda: nn.Sequential(nn.Linear(32, 48), nn.LayerNorm(48), nn.GELU("tanh"), nn.Linear(48, 8)),
        (1, 7, 32),
    ),
    "rms_norm": lambda: _seeded(lambda: nn.Sequential(nn.RMSNorm(32), nn.Linear(32, 8)), (1, 7, 32)),
    "pooling": lambda: _seeded(
        lambda: nn.Sequential(
            nn.MaxPool2d(3, 2, 1),
            nn.AvgPool2d(2, 1),
            nn.ZeroPad2d((1, 0, 2, 1)),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        ),
        IMAGE,
    ),
    "upsample": lambda: _seeded(
        lambda: nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU6(), nn.Upsample(scale_factor=2)), IMAGE
    ),
    "pixel_shuffle": lambda: _seeded(
        lambda: nn.Sequential(nn.Conv2d(8, 12, 3), nn.PixelShuffle(2), nn.PixelUnshuffle(2)), IMAGE
    ),
    "embedding": lambda: (_seeded(Embedded)[0], (WORDS,)),
    "several": lambda: _seeded(Several, (1, 3, 8, 8), (1, 5)),
    "batch": lambda: _seeded(lambda: nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()), (3, *IMAGE[1:])),
}
