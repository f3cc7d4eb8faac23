"""Transformer inference in numpy, one token at a time.

Decoder layers with rotary position embedding (Su et al. 2021) and SwiGLU (Shazeer 2020), each with pre-RMSNorm
(Zhang and Sennrich 2019); the token embedding is tied to the output projection.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
_EPSILON = 1e-5
_BASE = 10_000.0
#: Minimum number of spare positions when the key-value cache is reallocated.
_ROOM = 64


@dataclass(frozen=True)
class TransformerShape:
    """Dimensions of a transformer.

    Parameters
    ----------
    words : int
        Vocabulary size in tokens.
    width, heads, layers, hidden : int
        Model width, number of attention heads, number of layers, and width of the feed-forward network.
    context : int
        Context length in tokens, including the next token.
    """

    words: int
    width: int = 128
    heads: int = 4
    layers: int = 6
    hidden: int = 384
    context: int = 512

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all weights; matrices are (outputs, inputs)."""
        width, hidden = self.width, self.hidden
        found: dict[str, tuple[int, ...]] = {"words": (self.words, width), "norm": (width,)}
        for number in range(self.layers):
            found |= {
                f"{number}.attention.norm": (width,),
                f"{number}.attention.in": (3 * width, width),
                f"{number}.attention.out": (width, width),
                f"{number}.gated.norm": (width,),
                f"{number}.gated.in": (2 * hidden, width),
                f"{number}.gated.out": (width, hidden),
            }
        return found


class Gpt:
    """Transformer with its weights.

    Parameters
    ----------
    shape : TransformerShape
        Dimensions of the model.
    weights : dict
        float32 arrays with the names of `TransformerShape.tensors`.
    profile : bool
        True if the model was trained on prompts that include the current cost of a layer, and expects them.
    """

    def __init__(self, shape: TransformerShape, weights: Mapping[str, Floats], *, profile: bool = True):
        self.shape, self.profile = shape, profile
        self.weights = {name: np.ascontiguousarray(weights[name], np.float32) for name in shape.tensors}
        angles = np.arange(shape.context)[:, None] * turns(shape.width // shape.heads)
        self.turn = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def read(self, words: Sequence[int]) -> "TransformerState":
        """Return the decoding state after a prompt.

        Raises
        ------
        ValueError
            The prompt is empty or longer than the context.
        """
        if not 0 < len(words) <= self.shape.context:
            raise ValueError(f"a model of {self.shape.context} words of context cannot read {len(words)}")
        state = TransformerState(self, 1)
        state.push(np.array([words]))
        return state


def turns(width: int) -> NDArray[np.float64]:
    """Return the rotary angles in radians per position for each pair of a head's dimensions."""
    return _BASE ** (-np.arange(0, width, 2) / width)


class TransformerState:
    """Decoding state of several continuations of equal length.

    Attributes
    ----------
    scores : (continuations, words) float32 array
        Logits of the next token of each continuation.
    length : int
        Number of tokens so far.
    """

    def __init__(self, model: Gpt, count: int):
        shape = model.shape
        self.model, self.length = model, 0
        # The key-value cache has spare positions and is reallocated when they are used up.
        self._keys, self._values = (
            np.empty((shape.layers, count, shape.heads, 0, shape.width // shape.heads), np.float32)
            for _ in range(2)
        )
        self.scores = np.zeros((count, shape.words), np.float32)

    def spread(self, count: int) -> "TransformerState":
        """Return a state with `count` copies of the single continuation."""
        state = TransformerState(self.model, count)
        state.length = self.length
        state._take(self._keys, self._values, np.zeros(count, int), _ROOM)
        state.scores[...] = self.scores
        return state

    def keep(self, which: Sequence[int]) -> None:
        """Select continuations by index and drop the others."""
        self._take(self._keys, self._values, which, _ROOM)
        self.scores = self.scores[which]

    def _take(self, keys: Floats, values: Floats, which: Sequence[int] | NDArray, more: int) -> None:
        """Select continuations of the key-value cache and reserve room for more positions."""
        layers, _, heads, _, width = keys.shape
        room, length = min(self.length + more, self.model.shape.context), self.length
        found = []
        for old in (keys, values):
            new = np.empty((layers, len(which), heads, room, width), np.float32)
            new[:, :, :, :length] = old[:, which, :, :length]
            found.append(new)
        self._keys, self._values = found

    def remembered(self, number: int) -> tuple[Floats, Floats]:
        """Return keys and values of a layer in the first continuation: (heads, tokens, width of a head)."""
        return self._keys[number, 0, :, : self.length], self._values[number, 0, :, : self.length]

    @property
    def full(self) -> bool:
        """True if the context has no room for another token."""
        return self.length == self.model.shape.context

    def push(self, words: NDArray[np.integer]) -> None:
        """Append tokens to every continuation; shape (continuations, tokens)."""
        weights = self.model.weights
        if self.length + words.shape[1] > self._keys.shape[3]:
            self._take(self._keys, self._values, range(len(words)), words.shape[1] + _ROOM)
        x: Floats = weights["words"][words]
        for number in range(self.model.shape.layers):
            x = x + self._attention(number, _normed(x, weights[f"{number}.attention.norm"]))
            gated = _normed(x, weights[f"{number}.gated.norm"]) @ weights[f"{number}.gated.in"].T
            gate, value = np.split(gated, 2, axis=-1)
            x = x + (gate / (1 + np.exp(-gate)) * value) @ weights[f"{number}.gated.out"].T
        self.length += words.shape[1]
        self.scores = _normed(x[:, -1], weights["norm"]) @ weights["words"].T

    def _attention(self, number: int, x: Floats) -> Floats:
        shape, weights = self.model.shape, self.model.weights
        count, new, _ = x.shape
        first, last = self.length, self.length + new
        split = (x @ weights[f"{number}.attention.in"].T).reshape(count, new, 3, shape.heads, -1)
        query, key, value = (split[:, :, part].swapaxes(1, 2) for part in range(3))
        turn = tuple(each[first:last] for each in self.model.turn)
        query, key = _turned(query, *turn), _turned(key, *turn)
        self._keys[number, :, :, first:last], self._values[number, :, :, first:last] = key, value
        keys, values = self._keys[number, :, :, :last], self._values[number, :, :, :last]
        scores = query @ keys.swapaxes(2, 3) / np.float32(np.sqrt(key.shape[-1]))
        scores[..., np.arange(first, last)[:, None] < np.arange(last)] = -np.inf
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ values
        return mixed.swapaxes(1, 2).reshape(count, new, -1) @ weights[f"{number}.attention.out"].T


def _normed(x: Floats, gain: Floats) -> Floats:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(_EPSILON)) * gain


def _turned(x: Floats, cos: Floats, sin: Floats) -> Floats:
    even, odd = x[..., ::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., ::2], out[..., 1::2] = even * cos - odd * sin, even * sin + odd * cos
    return out
