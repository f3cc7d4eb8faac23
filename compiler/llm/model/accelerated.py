"""Runs the model on the accelerator: int8 programs, with the key-value cache in device DRAM.

The host performs embedding lookup, writes the new row of each layer to the key-value cache, and samples from the
scores. Everything else runs on the accelerator, one token at a time.
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compiler.api import compile
from compiler.ir.tensor import Quantization
from compiler.llm.model.export import export
from compiler.llm.model.numpy_transformer import Floats, Gpt
from compiler.options import USUAL, DramTiming
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from cosim.device import Device
from hw.config import MlaConfig

#: Number of positions per text used for calibration.
_LOOKS = 8
_INT8 = ":int8"
#: Tokens between progress messages.
_TOLD = 16

#: Opens a device with the given bytes of DRAM.
Opener = Callable[[MlaConfig, int], Device]


class ChipGpt:
    """Language model that runs on the accelerator.

    Parameters
    ----------
    model : Gpt
        Model to run.
    config : MlaConfig
        Hardware configuration.
    opener : callable
        Opens the device for a configuration and a DRAM size in bytes.
    places : int
        Context length in tokens.
    texts : sequence of sequences of int
        Token sequences for calibration, representative of prompts and answers.
    continuations : int
        Maximum number of simultaneous continuations; each has its own key-value cache.
    dram : DramTiming
        DRAM timing assumed when compiling.
    say : callable
        Called occasionally with a progress message.

    Attributes
    ----------
    words, cycles : int
        Tokens processed so far, and cycles they took.
    """

    def __init__(
        self,
        model: Gpt,
        config: MlaConfig,
        opener: Opener,
        places: int,
        texts: Sequence[Sequence[int]],
        continuations: int = 1,
        dram: DramTiming = USUAL,
        say: Callable[[str], None] = lambda _text: None,
    ):
        self.model, self.places, self.words, self.cycles, self._say = model, places, 0, 0, say
        self.network = compiled(model, config, places, texts, dram)
        host, stage, _ = self.network.stages
        assert host.graph is not None
        self._tables: dict[str, tuple[NDArray, bool]] = {}
        for node in host.graph.nodes.values():
            if node.op == "gather":
                table = host.graph.tensors[node.inputs[0]].data
                assert table is not None
                self._tables[node.outputs[0]] = table, node.inputs[1] == "word"
        self._scales = {each.name: each.quantization for each in (*stage.inputs, *stage.outputs)}
        self.device = opener(config, dram_bytes(self.network, continuations))
        self._session = Session(self.device, self.network, continuations)

    def close(self) -> None:
        """Close the device; may be called repeatedly."""
        self.device.close()

    def read(self, words: Sequence[int]) -> "ChipState":
        """Return the state after a prompt.

        Raises
        ------
        ValueError
            The prompt is empty or longer than the context.
        """
        if not 0 < len(words) <= self.places:
            raise ValueError(f"a model of {self.places} places cannot read {len(words)} words")
        state = ChipState(self, [0])
        for _, name in self._cache():
            self._session.held(name)[...] = self._zero(name)
        state.push(np.array([words]))
        return state

    def copied(self, sample: int, to: int) -> None:
        """Copy the key-value cache of one continuation to another."""
        for _, name in self._cache():
            self._session.held(name, to)[...] = self._session.held(name, sample)

    def step(self, word: int, place: int, sample: int) -> Floats:
        """Process one token of a continuation, append to its cache, and return the logits of the next token."""
        for name, (table, by_word) in self._tables.items():
            held = self._session.held(name, sample)
            held[...] = table[word if by_word else place].reshape(held.shape)
        self.cycles += self._session.again(sample)
        self.words += 1
        if self.words % _TOLD == 0:
            self._say(f"{self.words} words read or written by the machine, {self.cycles:,} cycles")
        for made, kept in self._cache():
            row = _rescaled(self._session.held(made, sample)[:, 0], self._scales[made], self._scales[kept])
            held = self._session.held(kept, sample)
            (held.swapaxes(1, 2) if "transposed" in kept else held)[:, place] = row
        scores = f"scores{_INT8}"
        return _real(self._session.held(scores, sample).reshape(-1), self._scales[scores])

    def _cache(self) -> Iterable[tuple[str, str]]:
        """Yield pairs of output name and cache input name for each new row."""
        for number in range(self.model.shape.layers):
            yield f"key {number}{_INT8}", f"keys {number}:transposed{_INT8}"
            yield f"value {number}{_INT8}", f"values {number}{_INT8}"

    def _zero(self, name: str) -> int:
        quantization = self._scales[name]
        assert quantization is not None
        return quantization.zero_point[0]


class ChipState:
    """Continuations of equal length on the accelerator; interface of `numpy_transformer.TransformerState`."""

    def __init__(self, chip: ChipGpt, samples: Sequence[int]):
        self.chip, self.length = chip, 0
        self._samples = list(samples)
        self.scores: Floats = np.zeros((len(self._samples), chip.model.shape.words), np.float32)

    def spread(self, count: int) -> "ChipState":
        """Return a state with `count` copies of the single continuation."""
        state = ChipState(self.chip, range(count))
        state.length = self.length
        for sample in range(1, count):
            self.chip.copied(self._samples[0], sample)
        state.scores[...] = self.scores
        return state

    def keep(self, which: Sequence[int]) -> None:
        """Select continuations by index and drop the others."""
        self._samples = [self._samples[each] for each in which]
        self.scores = self.scores[which]

    @property
    def full(self) -> bool:
        """True if the context has no room for another token."""
        return self.length == self.chip.places

    def push(self, words: NDArray[np.integer]) -> None:
        """Append tokens to every continuation; shape (continuations, tokens)."""
        for column in words.T:
            for at, (word, sample) in enumerate(zip(column.tolist(), self._samples, strict=True)):
                self.scores[at] = self.chip.step(word, self.length, sample)
            self.length += 1


def compiled(
    model: Gpt, config: MlaConfig, places: int, texts: Sequence[Sequence[int]], dram: DramTiming = USUAL
) -> CompiledNetwork:
    """Compile the model as an int8 network for one token, calibrated on the given texts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "next_word.onnx"
        path.write_bytes(export(model, places).SerializeToString())
        samples = [sample for text in texts for sample in _samples(model, text[:places], places)]
        return compile(path, config, calibration=samples, dram=dram)


def _samples(model: Gpt, text: Sequence[int], places: int) -> Iterable[Mapping[str, NDArray]]:
    """Yield the inputs of the network at some positions of a text."""
    step = max(len(text) // _LOOKS, 1)
    for place in range(len(text) - 1, -1, -step):
        state = model.read(text[: place + 1])
        sample = {"word": np.array([text[place]]), "place": np.array([place])}
        for number in range(model.shape.layers):
            for kind, rows in zip(("keys", "values"), state.remembered(number), strict=True):
                kept = np.zeros((model.shape.heads, places, rows.shape[-1]), np.float32)
                kept[:, :place] = rows[:, :place]
                sample[f"{kind} {number}"] = kept
        yield sample


def _real(array: NDArray, quantization: Quantization | None) -> Floats:
    assert quantization is not None
    return (array.astype(np.float32) - quantization.zero_point[0]) * np.float32(quantization.scale[0])


def _rescaled(array: NDArray, made: Quantization | None, kept: Quantization | None) -> NDArray[np.int8]:
    """Requantize an array from one scale to another."""
    assert kept is not None
    levels = np.rint(_real(array, made) / np.float32(kept.scale[0])) + kept.zero_point[0]
    return np.clip(levels, -128, 127).astype(np.int8)
