"""Cost of quantized weights in a trained language model, stories260K: its negative log-likelihood.

The text is sampled by the model itself at temperature 1: that of seed 0 for calibration, that of seed 1 to
measure, that of other seeds for the tuning of all matrices together. Quantized are all matrices of the layers
and of the classifier, in groups of 32; the table of embeddings, of which each token reads one row, is rounded
to 8 bits, and the gains of the norms remain float32.
"""

import argparse
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compiler.quantize.bits import bit_steps
from compiler.quantize.weights import (
    MAX_BITS,
    MIN_BITS,
    GroupWeights,
    Real,
    WeightReader,
    activation_scales,
    output_error,
    quantize_groups,
    tune_groups,
)

Values = NDArray[np.floating]
#: Name of a matrix and its layer; the layer of the classifier is -1.
Key = tuple[str, int]

#: Number of stories of the calibration and of the measurement, and number of tokens of each.
STORIES, TOKENS = 32, 256
#: Seeds of the stories of the tuning, stories of each seed and tokens of each story; passes over these stories.
_TUNING_SEEDS, _TUNING_STORIES, _TUNING_TOKENS, _PASSES = range(2, 10), 304, 128, 2
#: Stories that are evaluated at a time, and of one step of the tuning.
_TOGETHER = 8
_EPSILON = 1e-5
CLASSIFIER: Key = ("classifier", -1)
#: Largest number of outputs whose errors compensate each other.
_MAX_COUPLED = 256
#: Name of quantizations with different numbers of bits.
PER_LAYER = "bits per layer"
#: Products of one scale.
GROUP = 32


@dataclass(frozen=True)
class Llama:
    """Model of the Llama architecture, in the order of llama2.c's file format.

    Parameters
    ----------
    heads, kv_heads : int
        Number of heads of the queries, and of the keys and values.
    embedding : (tokens, width) float32 array
        Vector of each token.
    norms : dict
        Gains of the normalizations: `attention` and `hidden` as (layers, width), `final` as (1, width).
    matrices : dict
        Weights by key, as (outputs, inputs).
    """

    heads: int
    kv_heads: int
    embedding: Values
    norms: Mapping[str, Values]
    matrices: Mapping[Key, Values]

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.norms["attention"])


def read_llama(path: Path) -> Llama:
    """Read a file of llama2.c with a shared classifier: seven int32, then float32 weights."""
    raw = path.read_bytes()
    width, hidden, layers, heads, kv_heads, tokens, _ = struct.unpack("<7i", raw[:28])
    rest = np.frombuffer(raw, np.float32, offset=28)

    def take(*shape: int) -> Values:
        nonlocal rest
        count = int(np.prod(shape))
        part, rest = rest[:count].reshape(shape).copy(), rest[count:]
        return part

    narrow = width // heads * kv_heads
    embedding, norms = take(tokens, width), {"attention": take(layers, width)}
    stacks = {"wq": take(layers, width, width), "wk": take(layers, narrow, width)}
    stacks |= {"wv": take(layers, narrow, width), "wo": take(layers, width, width)}
    norms["hidden"] = take(layers, width)
    stacks |= {"w1": take(layers, hidden, width), "w2": take(layers, width, hidden)}
    stacks["w3"] = take(layers, hidden, width)
    norms["final"] = take(1, width)
    matrices = {(name, layer): stack[layer] for name, stack in stacks.items() for layer in range(layers)}
    return Llama(heads, kv_heads, embedding, norms, {**matrices, CLASSIFIER: embedding})


def _norm(x: Values, gain: Values) -> Values:
    return np.asarray(gain * x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(_EPSILON)))


def _norm_gradient(dy: Values, x: Values, gain: Values) -> Values:
    inverse = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(_EPSILON))
    scaled = dy * gain
    return np.asarray(inverse * scaled - x * (inverse**3 * (scaled * x).mean(-1, keepdims=True)))


def _rotated(x: Values, first: int = 0, sign: int = 1) -> Values:
    """Rotate pairs of elements of (..., positions, head) by the angles of the positions, from `first` on."""
    size = x.shape[-1]
    angles = np.outer(np.arange(first, first + x.shape[-2]), 10000.0 ** (-np.arange(0, size, 2) / size))
    cos, sin = np.cos(angles).astype(np.float32), (sign * np.sin(angles)).astype(np.float32)
    y, even, odd = np.empty_like(x), x[..., 0::2], x[..., 1::2]
    y[..., 0::2], y[..., 1::2] = even * cos - odd * sin, even * sin + odd * cos
    return y


def _softmax(x: Values) -> Values:
    power = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(power / power.sum(-1, keepdims=True))


def _silu(x: Values) -> Values:
    return np.asarray(x / (1 + np.exp(-x)))


class _Run:
    """Evaluation of a model on stories, which keeps the values that the gradients need.

    Parameters
    ----------
    model : Llama
        Model to evaluate.
    tokens : (stories, positions) int array
        Tokens that the model reads.
    cache : list or None
        Keys and values of earlier positions by layer, which are extended; None for whole stories.
    """

    def __init__(self, model: Llama, tokens: NDArray, cache: list[tuple[Values, Values]] | None = None):
        self.model, self.kept = model, []
        x, positions = model.embedding[tokens], tokens.shape[1]
        first = cache[0][0].shape[2] if cache else 0
        mask = np.triu(np.full((positions, positions), -np.inf, np.float32), 1)
        for layer in range(model.layers):
            w = {name: matrix for (name, own), matrix in model.matrices.items() if own == layer}
            h = _norm(x, model.norms["attention"][layer])
            q = _rotated(self.split(h @ w["wq"].T, model.heads), first)
            k = _rotated(self.split(h @ w["wk"].T, model.kv_heads), first)
            v = self.split(h @ w["wv"].T, model.kv_heads)
            if cache is not None:
                if len(cache) > layer:
                    old = cache[layer]
                    k, v = np.concatenate([old[0], k], 2), np.concatenate([old[1], v], 2)
                    cache[layer] = k, v
                else:
                    cache.append((k, v))
            repeat = model.heads // model.kv_heads
            k, v = np.repeat(k, repeat, 1), np.repeat(v, repeat, 1)
            p = _softmax(q @ k.swapaxes(2, 3) * np.float32(q.shape[-1] ** -0.5) + mask)
            o = self.joined(p @ v)
            middle = x + o @ w["wo"].T
            h2 = _norm(middle, model.norms["hidden"][layer])
            a, b = h2 @ w["w1"].T, h2 @ w["w3"].T
            u = _silu(a) * b
            self.kept.append((w, x, h, q, k, v, p, o, middle, h2, a, b, u))
            x = middle + u @ w["w2"].T
        self.last, self.h = x, _norm(x, model.norms["final"][0])
        self.probabilities = _softmax(self.h @ model.matrices[CLASSIFIER].T)

    def split(self, x: Values, heads: int) -> Values:
        """Return (stories, positions, width) as (stories, heads, positions, head)."""
        return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

    def joined(self, x: Values) -> Values:
        """Reverse `split`."""
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)

    def gradients(self, wanted: Values) -> Iterator[tuple[Key, Values, Values]]:
        """Yield key, operand and gradient of the result of each product.

        The loss is the cross entropy with the wanted probabilities of the tokens that follow, (stories, positions,
        tokens), summed over all positions.
        """
        model, dz = self.model, self.probabilities - wanted
        yield CLASSIFIER, self.h, dz
        dx = _norm_gradient(dz @ model.matrices[CLASSIFIER], self.last, model.norms["final"][0])
        for layer in reversed(range(model.layers)):
            w, x, h, q, k, v, p, o, middle, h2, a, b, u = self.kept[layer]
            yield ("w2", layer), u, dx
            du, gate = dx @ w["w2"], 1 / (1 + np.exp(-a))
            da, db = du * b * gate * (1 + a * (1 - gate)), du * a * gate
            yield ("w1", layer), h2, da
            yield ("w3", layer), h2, db
            dx = dx + _norm_gradient(da @ w["w1"] + db @ w["w3"], middle, model.norms["hidden"][layer])
            yield ("wo", layer), o, dx
            do = self.split(dx @ w["wo"], model.heads)
            dp = do @ v.swapaxes(2, 3)
            ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * np.float32(q.shape[-1] ** -0.5)
            dq = self.joined(_rotated(ds @ k, sign=-1))
            dk, dv = (
                self.joined(each)
                for each in (
                    _rotated(self._summed(ds.swapaxes(2, 3) @ q), sign=-1),
                    self._summed(p.swapaxes(2, 3) @ do),
                )
            )
            for name, gradient in (("wq", dq), ("wk", dk), ("wv", dv)):
                yield (name, layer), h, gradient
            back = dq @ w["wq"] + dk @ w["wk"] + dv @ w["wv"]
            dx = dx + _norm_gradient(back, x, model.norms["attention"][layer])

    def _summed(self, x: Values) -> Values:
        """Add the gradients of the heads that share keys and values."""
        return x.reshape(x.shape[0], self.model.kv_heads, -1, *x.shape[2:]).sum(2)


def sampled(model: Llama, seed: int, stories: int = STORIES, tokens: int = TOKENS) -> NDArray:
    """Return stories, sampled at temperature 1 after the start token, as (stories, tokens) array."""
    rng, text, cache = np.random.default_rng(seed), np.ones((stories, 1), np.int64), []
    for _ in range(tokens - 1):
        chances = _Run(model, text[:, -1:], cache).probabilities[:, 0].cumsum(-1)
        drawn = (chances < rng.random((stories, 1)) * chances[:, -1:]).sum(-1, keepdims=True)
        text = np.concatenate([text, drawn], 1)
    return text


def loss(model: Llama, text: NDArray) -> float:
    """Return the mean negative log-likelihood of a token in nats."""
    total = 0.0
    for start in range(0, len(text), _TOGETHER):
        part = text[start : start + _TOGETHER]
        found = np.take_along_axis(_Run(model, part[:, :-1]).probabilities, part[:, 1:, None], -1)
        total -= float(np.log(found.astype(np.float64)).sum())
    return total / text[:, 1:].size


def readers(model: Llama, text: NDArray) -> dict[Key, WeightReader]:
    """Return the matrices with the moments of their operands and of the gradients of their results."""
    sums: dict[Key, tuple[Real, Real]] = {}
    certain = np.eye(len(model.embedding), dtype=np.float32)
    for start in range(0, len(text), _TOGETHER):
        part = text[start : start + _TOGETHER]
        for key, x, dy in _Run(model, part[:, :-1]).gradients(certain[part[:, 1:]]):
            rows = [each.reshape(-1, each.shape[-1]).astype(np.float64) for each in (x, dy)]
            found = [each.T @ each for each in rows]
            old = sums.get(key)
            sums[key] = (found[0], found[1]) if old is None else (old[0] + found[0], old[1] + found[1])
    count = text[:, 1:].size
    return {key: WeightReader(model.matrices[key], a / count, g / count) for key, (a, g) in sums.items()}


def _made(reader: WeightReader, bits: int, *, whole: bool = True) -> GroupWeights:
    """Quantize a matrix; without `whole`, errors of several outputs do not compensate each other (faster).

    Those of the classifier do not in either case: the gradients of its many outputs are almost independent.
    """
    gradients = reader.gradients if whole and len(reader.weights) <= _MAX_COUPLED else None
    return quantize_groups(reader.weights, bits, group=GROUP, moments=reader.moments, gradients=gradients)


def scaled(model: Llama, found: Mapping[Key, WeightReader]) -> tuple[Llama, dict[Key, WeightReader]]:
    """Fold factors for the activations into the gains of the norms and, for w2, into the rows of w3."""
    norms = {name: gains.copy() for name, gains in model.norms.items()}
    changed = dict(found)

    def factors(keys: list[Key]) -> Real:
        own = activation_scales(
            [found[key] for key in keys], lambda each: _made(each, 4, whole=False).dequantized()
        )
        changed.update({key: changed[key].scaled(own) for key in keys})
        return own

    for layer in range(model.layers):
        norms["attention"][layer] /= factors([("wq", layer), ("wk", layer), ("wv", layer)])
        norms["hidden"][layer] /= factors([("w1", layer), ("w3", layer)])
        own, rows = factors([("w2", layer)]), changed["w3", layer]
        assert rows.gradients is not None
        changed["w3", layer] = replace(
            rows, weights=rows.weights / own[:, None], gradients=rows.gradients * np.outer(own, own)
        )
    norms["final"][0] /= factors([CLASSIFIER])
    matrices = {key: each.weights.astype(np.float32) for key, each in changed.items()}
    return replace(model, norms=norms, matrices=matrices), changed


def chosen_bits(found: Mapping[Key, WeightReader], mean: float) -> dict[Key, int]:
    """Return the bits of each matrix with the least expected loss and at most `mean` bits for a weight.

    The expected loss of a matrix is half of `output_error` with the moments of the gradients (those of the
    text's own tokens, which the model sampled, are the Fisher information).
    """
    sizes = {key: each.weights.size for key, each in found.items()}
    noise = {
        str(key): [
            output_error(
                _made(each, bits, whole=False).dequantized() - each.weights, each.moments, each.gradients
            )
            for bits in range(MIN_BITS, MAX_BITS + 1)
        ]
        for key, each in found.items()
    }
    by_text = {str(key): key for key in found}
    bits, total = dict.fromkeys(found, MAX_BITS), MAX_BITS * sum(sizes.values())
    costs = {str(key): [size * each for each in range(MIN_BITS, MAX_BITS + 1)] for key, size in sizes.items()}
    for text, count in bit_steps(noise, costs):
        if total <= mean * sum(sizes.values()):
            break
        total -= (bits[by_text[text]] - count) * sizes[by_text[text]]
        bits[by_text[text]] = count
    return bits


def with_weights(model: Llama, matrices: Mapping[Key, Values]) -> Llama:
    """Return the model with quantized weights, and embeddings of 8 bits with a scale for each token."""
    step = np.abs(model.embedding).max(1, keepdims=True) / 127
    return replace(model, embedding=np.rint(model.embedding / step) * step, matrices=matrices)


def _real(made: Mapping[Key, GroupWeights]) -> dict[Key, Values]:
    return {key: each.dequantized() for key, each in made.items()}


def tuned(
    model: Llama, folded: Llama, made: Mapping[Key, GroupWeights], text: NDArray
) -> dict[Key, GroupWeights]:
    """Return quantized weights of `folded`, tuned for the probabilities that the float model gives the tokens."""
    rng = np.random.default_rng(0)
    order = np.concatenate([rng.permutation(len(text)) for _ in range(_PASSES)])
    batches = [text[order[i : i + _TOGETHER], :-1] for i in range(0, len(order), _TOGETHER)]
    rest = iter(batches)

    def gradients(matrices: Mapping[Key, Values]) -> dict[Key, Values]:
        batch = next(rest)
        run, sums = _Run(with_weights(folded, matrices), batch), {}
        for key, x, dy in run.gradients(_Run(model, batch).probabilities):
            sums[key] = dy.reshape(-1, dy.shape[-1]).T @ x.reshape(-1, x.shape[-1])
        return sums

    return tune_groups(made, folded.matrices, gradients, steps=len(batches))


def costs(path: Path, stories: int = STORIES) -> Iterator[tuple[str, float, float]]:
    """Yield each quantization's name, its mean number of bits, and its cost relative to the float loss."""
    model = read_llama(path)
    texts = [sampled(model, seed, stories) for seed in (0, 1)]
    exact = loss(model, texts[1])
    yield "float32", 32.0, 0.0
    for bits in (4, 5):
        plain = {key: quantize_groups(each, bits, group=GROUP) for key, each in model.matrices.items()}
        yield f"nearest, {bits} bits", bits, loss(with_weights(model, _real(plain)), texts[1]) / exact - 1
    folded, found = scaled(model, readers(model, texts[0]))
    more = [sampled(model, seed, _TUNING_STORIES, _TUNING_TOKENS) for seed in _TUNING_SEEDS]
    for name, mean in (("4 bits", 4.0), (PER_LAYER, 4.3), ("5 bits", 5.0)):
        bits_of = chosen_bits(found, mean) if name == PER_LAYER else dict.fromkeys(found, int(mean))
        made = {key: _made(each, bits_of[key]) for key, each in found.items()}
        sizes = {key: each.weights.size for key, each in found.items()}
        share = sum(bits_of[key] * size for key, size in sizes.items()) / sum(sizes.values())
        yield f"compensated, {name}", share, loss(with_weights(folded, _real(made)), texts[1]) / exact - 1
        made = tuned(model, folded, made, np.concatenate(more))
        yield f"tuned, {name}", share, loss(with_weights(folded, _real(made)), texts[1]) / exact - 1


def main() -> None:
    """Print the costs of all quantizations."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = Path(os.environ.get("MLA_MODELS", ".")) / "stories260K.bin"
    parser.add_argument("--model", type=Path, default=default, help="file in llama2.c's format")
    parser.add_argument(
        "--stories", type=int, default=STORIES, help="stories to calibrate with, and to measure"
    )
    args = parser.parse_args()
    for name, bits, cost in costs(args.model, args.stories):
        print(f"{name:32} {bits:5.2f} bits {cost:+.2%}", flush=True)


if __name__ == "__main__":
    main()
