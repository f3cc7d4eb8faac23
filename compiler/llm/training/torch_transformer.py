"""PyTorch twin of `compiler.llm.model.numpy_transformer`, for training."""

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  an extra
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from compiler.llm.model.numpy_transformer import Gpt, TransformerShape, turns

_EPSILON = 1e-5


class TorchTransformer(nn.Module):
    """Transformer with the weights and names of `numpy_transformer.Gpt`.

    Parameters
    ----------
    shape : TransformerShape
        Dimensions of the model.
    seed : int
        Random seed of the initial weights.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: TransformerShape, seed: int = 0):
        super().__init__()
        self.shape = shape
        chance = torch.Generator().manual_seed(seed)
        weights = {}
        for name, size in shape.tensors.items():
            if len(size) == 1:
                weights[name] = torch.ones(size)
                continue
            # Projections into the residual stream start smaller in deeper models (GPT-2).
            deviation = 0.02 / ((2 * shape.layers) ** 0.5 if name.endswith(".out") else 1)
            weights[name] = torch.randn(size, generator=chance) * deviation
        self.weights = nn.ParameterDict(
            {name.replace(".", "/"): nn.Parameter(each) for name, each in weights.items()}
        )
        angles = np.arange(shape.context)[:, None] * turns(shape.width // shape.heads)
        self.register_buffer("cos", torch.tensor(np.cos(angles), dtype=torch.float32))
        self.register_buffer("sin", torch.tensor(np.sin(angles), dtype=torch.float32))

    def forward(self, words: Tensor, counted: Tensor | None = None) -> Tensor:
        """Return the logits of the next token.

        Parameters
        ----------
        words : (batch, places) int64 tensor
            Input tokens.
        counted : (batch, places) bool tensor or None
            Positions for which logits are needed; None for all.

        Returns
        -------
        tensor
            (batch, places, vocabulary), or (selected places, vocabulary) in row-major order.
        """
        x = self._of("words")[words]
        places = words.shape[1]
        later = torch.full((places, places), -torch.inf, device=words.device).triu(1)
        for number in range(self.shape.layers):
            x = x + self._attention(number, self._normed(x, f"{number}.attention.norm"), later)
            gated = functional.linear(self._normed(x, f"{number}.gated.norm"), self._of(f"{number}.gated.in"))
            gate, value = gated.chunk(2, dim=-1)
            x = x + functional.linear(functional.silu(gate) * value, self._of(f"{number}.gated.out"))
        if counted is not None:
            x = x[counted]
        return functional.linear(self._normed(x, "norm"), self._of("words"))

    def gpt(self, *, profile: bool = True) -> Gpt:
        """Return the current weights as a numpy model; `profile` as in `Gpt`."""
        weights = {name: self._of(name).detach().cpu().numpy() for name in self.shape.tensors}
        return Gpt(self.shape, weights, profile=profile)

    def take(self, model: Gpt) -> None:
        """Copy the weights of a numpy model."""
        with torch.no_grad():
            for name, array in model.weights.items():
                self._of(name).copy_(torch.tensor(array))

    def _of(self, name: str) -> Tensor:
        return self.weights[name.replace(".", "/")]

    def _normed(self, x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, (self.shape.width,), self._of(name), _EPSILON)

    def _attention(self, number: int, x: Tensor, later: Tensor) -> Tensor:
        """Attention written out: on CPUs this is faster than PyTorch's own, mainly in the backward pass."""
        batch, places, width = x.shape
        split = functional.linear(x, self._halved(number))
        split = split.view(batch, places, 3, self.shape.heads, -1).permute(2, 0, 3, 1, 4)
        query, key = self._turned(split[:2])
        scores = query * key.shape[-1] ** -0.5 @ key.transpose(-1, -2) + later.to(key.dtype)
        mixed = scores.softmax(dim=-1).to(split.dtype) @ split[2]
        mixed = mixed.transpose(1, 2).reshape(batch, places, width)
        return functional.linear(mixed, self._of(f"{number}.attention.out"))

    def _halved(self, number: int) -> Tensor:
        """Return the query, key and value matrix with even rows before odd rows in each head of queries and keys.

        Rotary pairs are then two contiguous halves; the products of queries and keys are
        unchanged.
        """
        weights = self._of(f"{number}.attention.in")
        width = self.shape.width
        turned = weights[: 2 * width].view(2 * self.shape.heads, -1, 2, width)
        return torch.cat((turned.transpose(1, 2).reshape(2 * width, width), weights[2 * width :]))

    def _turned(self, x: Tensor) -> Tensor:
        cos, sin = (each[: x.shape[-2]].to(x.dtype) for each in (self.cos, self.sin))
        even, odd = x.chunk(2, dim=-1)
        return torch.cat((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
