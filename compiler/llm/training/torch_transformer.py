"""PyTorch implementation of `compiler.llm.model.numpy_transformer`, for training."""

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  an extra
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from compiler.llm.model.numpy_transformer import Gpt, TransformerShape, rotary_frequencies

_EPSILON = 1e-5


class TorchTransformer(nn.Module):
    """PyTorch module with the weights and tensor names of `numpy_transformer.Gpt`.

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
        generator = torch.Generator().manual_seed(seed)
        weights = {}
        for name, size in shape.tensors.items():
            if len(size) == 1:
                weights[name] = torch.ones(size)
                continue
            # Projections into the residual stream have smaller initial weights in deeper models (GPT-2).
            deviation = 0.02 / ((2 * shape.layers) ** 0.5 if name.endswith(".out") else 1)
            weights[name] = torch.randn(size, generator=generator) * deviation
        self.weights = nn.ParameterDict(
            {name.replace(".", "/"): nn.Parameter(each) for name, each in weights.items()}
        )
        angles = np.arange(shape.context)[:, None] * rotary_frequencies(shape.width // shape.heads)
        self.register_buffer("cos", torch.tensor(np.cos(angles), dtype=torch.float32))
        self.register_buffer("sin", torch.tensor(np.sin(angles), dtype=torch.float32))

    def forward(self, tokens: Tensor, selected: Tensor | None = None) -> Tensor:
        """Return the logits of the next token.

        Parameters
        ----------
        tokens : (batch, length) int64 tensor
            Input tokens of each sequence.
        selected : (batch, length) bool tensor or None
            Positions for which logits are needed; None for all.

        Returns
        -------
        tensor
            (batch, length, vocabulary), or (selected positions, vocabulary) in row-major order.
        """
        x = self._weight("words")[tokens]
        length = tokens.shape[1]
        causal_mask = torch.full((length, length), -torch.inf, device=tokens.device).triu(1)
        for layer in range(self.shape.layers):
            x = x + self._attention(layer, self._rms_norm(x, f"{layer}.attention.norm"), causal_mask)
            gated = functional.linear(
                self._rms_norm(x, f"{layer}.gated.norm"), self._weight(f"{layer}.gated.in")
            )
            gate, value = gated.chunk(2, dim=-1)
            x = x + functional.linear(functional.silu(gate) * value, self._weight(f"{layer}.gated.out"))
        if selected is not None:
            x = x[selected]
        return functional.linear(self._rms_norm(x, "norm"), self._weight("words"))

    def gpt(self, *, profile: bool = True, known: int = 0) -> Gpt:
        """Return a numpy model with the current weights; `profile` and `known` are passed to `Gpt`."""
        weights = {name: self._weight(name).detach().cpu().numpy() for name in self.shape.tensors}
        return Gpt(self.shape, weights, profile=profile, known=known)

    def load_weights(self, model: Gpt) -> None:
        """Copy the weights of a numpy model."""
        with torch.no_grad():
            for name, array in model.weights.items():
                self._weight(name).copy_(torch.tensor(array))

    def _weight(self, name: str) -> Tensor:
        return self.weights[name.replace(".", "/")]

    def _rms_norm(self, x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, (self.shape.width,), self._weight(name), _EPSILON)

    def _attention(self, layer: int, x: Tensor, causal_mask: Tensor) -> Tensor:
        """Compute causal self-attention, faster on CPUs than PyTorch's implementation, mainly in the backward pass."""
        batch, length, width = x.shape
        split = functional.linear(x, self._split_rotary_pairs(layer))
        split = split.view(batch, length, 3, self.shape.heads, -1).permute(2, 0, 3, 1, 4)
        query, key = self._rotate(split[:2])
        scores = query * key.shape[-1] ** -0.5 @ key.transpose(-1, -2) + causal_mask.to(key.dtype)
        mixed = scores.softmax(dim=-1).to(split.dtype) @ split[2]
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        return functional.linear(mixed, self._weight(f"{layer}.attention.out"))

    def _split_rotary_pairs(self, layer: int) -> Tensor:
        """Return the query, key and value weights; in each head of queries and keys, even rows precede odd rows.

        The two elements of each rotary pair are then in different halves of the head. The products of queries and keys
        are unchanged.
        """
        weights = self._weight(f"{layer}.attention.in")
        width = self.shape.width
        pairs = weights[: 2 * width].view(2 * self.shape.heads, -1, 2, width)
        return torch.cat((pairs.transpose(1, 2).reshape(2 * width, width), weights[2 * width :]))

    def _rotate(self, x: Tensor) -> Tensor:
        cos, sin = (each[: x.shape[-2]].to(x.dtype) for each in (self.cos, self.sin))
        even, odd = x.chunk(2, dim=-1)
        return torch.cat((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
