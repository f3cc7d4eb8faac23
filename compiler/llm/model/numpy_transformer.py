"""Transformer inference in numpy, one token at a time.

The decoder layers have rotary position embedding (Su et al. 2021), SwiGLU (Shazeer 2020) and pre-RMSNorm (Zhang and
Sennrich 2019); the token embedding is tied to the output projection.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.util.lru_cache import LruCache

Floats = NDArray[np.floating[Any]]
_EPSILON = 1e-5
_ROTARY_BASE = 10_000.0
#: Minimum number of spare positions when the key-value cache is reallocated.
_SPARE_POSITIONS = 64
#: Maximum number of prompts whose decoding states are cached, because several answers are drawn to each.
_MAX_PROMPTS = 16


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
        for layer in range(self.layers):
            found |= {
                f"{layer}.attention.norm": (width,),
                f"{layer}.attention.in": (3 * width, width),
                f"{layer}.attention.out": (width, width),
                f"{layer}.gated.norm": (width,),
                f"{layer}.gated.in": (2 * hidden, width),
                f"{layer}.gated.out": (width, hidden),
            }
        return found


class Gpt:
    """Transformer with its weights.

    Parameters
    ----------
    shape : TransformerShape
        Dimensions of the model.
    weights : dict
        Float32 arrays with the names of `TransformerShape.tensors`.
    profile : bool
        True if the model expects prompts that include the current cost of a layer.
    known : int
        Number of known schedules of similar layers that the model expects in prompts about schedules.
    """

    def __init__(
        self,
        shape: TransformerShape,
        weights: Mapping[str, Floats],
        *,
        profile: bool = True,
        known: int = 0,
    ):
        self.shape, self.profile, self.known = shape, profile, known
        self.weights = {name: np.ascontiguousarray(weights[name], np.float32) for name in shape.tensors}
        angles = np.arange(shape.context)[:, None] * rotary_frequencies(shape.width // shape.heads)
        self._prompts: LruCache[TransformerState] = LruCache(_MAX_PROMPTS)
        self.rotary = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def read(self, tokens: Sequence[int]) -> "TransformerState":
        """Return the decoding state after a prompt; the states of recent prompts are cached.

        Raises
        ------
        ValueError
            The prompt is empty or longer than the context.
        """
        if not 0 < len(tokens) <= self.shape.context:
            raise ValueError(f"a prompt must have 1..{self.shape.context} tokens, not {len(tokens)}")
        key = tuple(tokens)
        state = self._prompts.get(key)
        if state is None:
            state = TransformerState(self, 1)
            state.push(np.array([tokens]))
            self._prompts.put(key, state)
        return state.fork(1)


def rotary_frequencies(width: int) -> NDArray[np.float64]:
    """Return the rotary angle per position, in radians, for each pair of dimensions of a head."""
    return _ROTARY_BASE ** (-np.arange(0, width, 2) / width)


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
        # The key-value cache has spare positions and is reallocated when none is left.
        self._keys, self._values = (
            np.empty((shape.layers, count, shape.heads, 0, shape.width // shape.heads), np.float32)
            for _ in range(2)
        )
        self.scores = np.zeros((count, shape.words), np.float32)

    def fork(self, count: int) -> "TransformerState":
        """Return a state with `count` copies of the single continuation."""
        state = TransformerState(self.model, count)
        state.length = self.length
        state._select_cache(self._keys, self._values, np.zeros(count, int), _SPARE_POSITIONS)
        state.scores[...] = self.scores
        return state

    def select(self, indices: Sequence[int]) -> None:
        """Select continuations by index and drop the others."""
        self._select_cache(self._keys, self._values, indices, _SPARE_POSITIONS)
        self.scores = self.scores[indices]

    def _select_cache(
        self, keys: Floats, values: Floats, indices: Sequence[int] | NDArray, spare: int
    ) -> None:
        """Select continuations of the key-value cache, and reserve `spare` further positions."""
        layers, _, heads, _, width = keys.shape
        room, length = min(self.length + spare, self.model.shape.context), self.length
        found = []
        for old in (keys, values):
            new = np.empty((layers, len(indices), heads, room, width), np.float32)
            new[:, :, :, :length] = old[:, indices, :, :length]
            found.append(new)
        self._keys, self._values = found

    def cached_keys_values(self, layer: int) -> tuple[Floats, Floats]:
        """Return keys and values of a layer in the first continuation, shape (heads, tokens, width of a head)."""
        return self._keys[layer, 0, :, : self.length], self._values[layer, 0, :, : self.length]

    @property
    def full(self) -> bool:
        """True if the context has no room for another token."""
        return self.length == self.model.shape.context

    def push(self, tokens: NDArray[np.integer]) -> None:
        """Append tokens to every continuation; shape (continuations, tokens)."""
        weights = self.model.weights
        if self.length + tokens.shape[1] > self._keys.shape[3]:
            self._select_cache(
                self._keys, self._values, range(len(tokens)), tokens.shape[1] + _SPARE_POSITIONS
            )
        x: Floats = weights["words"][tokens]
        for layer in range(self.model.shape.layers):
            x = x + self._attention(layer, _rms_norm(x, weights[f"{layer}.attention.norm"]))
            gated = _rms_norm(x, weights[f"{layer}.gated.norm"]) @ weights[f"{layer}.gated.in"].T
            gate, value = np.split(gated, 2, axis=-1)
            x = x + (gate / (1 + np.exp(-gate)) * value) @ weights[f"{layer}.gated.out"].T
        self.length += tokens.shape[1]
        self.scores = _rms_norm(x[:, -1], weights["norm"]) @ weights["words"].T

    def _attention(self, layer: int, x: Floats) -> Floats:
        shape, weights = self.model.shape, self.model.weights
        count, new, _ = x.shape
        first, last = self.length, self.length + new
        split = (x @ weights[f"{layer}.attention.in"].T).reshape(count, new, 3, shape.heads, -1)
        query, key, value = (split[:, :, part].swapaxes(1, 2) for part in range(3))
        rotary = tuple(each[first:last] for each in self.model.rotary)
        query, key = _rotate(query, *rotary), _rotate(key, *rotary)
        self._keys[layer, :, :, first:last], self._values[layer, :, :, first:last] = key, value
        keys, values = self._keys[layer, :, :, :last], self._values[layer, :, :, :last]
        scores = query @ keys.swapaxes(2, 3) / np.float32(np.sqrt(key.shape[-1]))
        if new > 1:
            scores[..., np.arange(first, last)[:, None] < np.arange(last)] = -np.inf
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ values
        return mixed.swapaxes(1, 2).reshape(count, new, -1) @ weights[f"{layer}.attention.out"].T


def _rms_norm(x: Floats, gain: Floats) -> Floats:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(_EPSILON)) * gain


def _rotate(x: Floats, cos: Floats, sin: Floats) -> Floats:
    even, odd = x[..., ::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., ::2], out[..., 1::2] = even * cos - odd * sin, even * sin + odd * cos
    return out
