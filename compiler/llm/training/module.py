"""The transformer of compiler.llm.gpt in PyTorch, to be trained."""

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  an extra
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from compiler.llm.gpt import Gpt, Shape, turns

_EPSILON = 1e-5


class Module(nn.Module):
    """The same weights by the same names.

    Parameters
    ----------
    shape : Shape
        Sizes.
    seed : int
        Of the weights to begin with.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, seed: int = 0):
        super().__init__()
        self.shape = shape
        chance = torch.Generator().manual_seed(seed)
        weights = {}
        for name, size in shape.tensors.items():
            if len(size) == 1:
                weights[name] = torch.ones(size)
                continue
            # What is added to the stream starts smaller, the more layers there are (GPT-2).
            deviation = 0.02 / ((2 * shape.layers) ** 0.5 if name.endswith(".out") else 1)
            weights[name] = torch.randn(size, generator=chance) * deviation
        self.weights = nn.ParameterDict(
            {name.replace(".", "/"): nn.Parameter(each) for name, each in weights.items()}
        )
        angles = np.arange(shape.context)[:, None] * turns(shape.width // shape.heads)
        self.register_buffer("cos", torch.tensor(np.cos(angles), dtype=torch.float32))
        self.register_buffer("sin", torch.tensor(np.sin(angles), dtype=torch.float32))

    def forward(self, words: Tensor) -> Tensor:
        """Scores of each next word: (batch, places) int64 to (batch, places, words)."""
        x = self._of("words")[words]
        for number in range(self.shape.layers):
            x = x + self._attention(number, self._normed(x, f"{number}.attention.norm"))
            gated = functional.linear(self._normed(x, f"{number}.gated.norm"), self._of(f"{number}.gated.in"))
            gate, value = gated.chunk(2, dim=-1)
            x = x + functional.linear(functional.silu(gate) * value, self._of(f"{number}.gated.out"))
        return functional.linear(self._normed(x, "norm"), self._of("words"))

    def gpt(self) -> Gpt:
        """The weights as they are now, to be run."""
        weights = {name: self._of(name).detach().cpu().numpy() for name in self.shape.tensors}
        return Gpt(self.shape, weights)

    def take(self, model: Gpt) -> None:
        """Have the weights of a model."""
        with torch.no_grad():
            for name, array in model.weights.items():
                self._of(name).copy_(torch.tensor(array))

    def _of(self, name: str) -> Tensor:
        return self.weights[name.replace(".", "/")]

    def _normed(self, x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, (self.shape.width,), self._of(name), _EPSILON)

    def _attention(self, number: int, x: Tensor) -> Tensor:
        batch, places, width = x.shape
        split = functional.linear(x, self._of(f"{number}.attention.in"))
        query, key, value = split.view(batch, places, 3, self.shape.heads, -1).permute(2, 0, 3, 1, 4)
        query, key = self._turned(query), self._turned(key)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, places, width)
        return functional.linear(mixed, self._of(f"{number}.attention.out"))

    def _turned(self, x: Tensor) -> Tensor:
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
