"""Best known schedules of the measured layers, and retrieval of those of the most similar layers."""

import json
import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from compiler.ir.identity import identity, restored, stored
from compiler.llm.tokens.layer_prompt import PromptSubject
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.layer_space import LayerSpace
from hw.errors import InputError, WorkError, reason_of

#: File of the training data, written by `python -m scripts.llm_corpus`.
KNOWN_LAYERS = Path(__file__).parents[1] / "data" / "known_layers.xz"
#: Weights of the differences between layers, by place in their features: logarithms of latency and bytes per cycle, of
#: the six sizes of input and output, of kernel and strides, and of groups. Other lanes or another kind: not similar.
_WEIGHTS = (0.25, 0.5, *[1.0] * 6, *[2.0] * 4, 0.5)
_MAX_BYTES = 1 << 26


@identity("KnownLayer", "network", "layer", "word", "lanes", "features", "schedules")
@dataclass(frozen=True)
class KnownLayer:
    """Measured layer with its best schedules.

    Parameters
    ----------
    network : str
        Configuration and number of the measured network.
    layer : int
        Index of the layer in the network.
    word : str
        Word of the layer's kind.
    lanes : int
        Number of lanes of the machine.
    features : list of float
        Latency, bytes per cycle and sizes of the layer (`features_of`).
    schedules : list of dict
        Fields of the schedules that differ from the defaults, by stable name; best schedule first.
    """

    network: str
    layer: int
    word: str
    lanes: int
    features: list[float]
    schedules: list[dict]


def features_of(subject: PromptSubject) -> list[float]:
    """Return the features of a layer by which layers are compared."""
    return [float(subject.spot.dram.latency), float(subject.spot.beat), *map(float, subject.sizes)]


def write_known_layers(layers: Iterable[KnownLayer], path: Path) -> None:
    """Write a file of known layers.

    Raises
    ------
    WorkError
        The file cannot be written.
    """
    text = "".join(json.dumps(stored(layer), separators=(",", ":")) + "\n" for layer in layers)
    try:
        path.write_bytes(lzma.compress(text.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME))
    except OSError as error:
        raise WorkError(f"{path}: cannot be written: {reason_of(error)}") from None


@cache
def read_known_layers(path: Path = KNOWN_LAYERS) -> "KnownLayers":
    """Read a file of known layers.

    Raises
    ------
    InputError
        The file cannot be read or is damaged.
    """
    try:
        with lzma.open(path) as file:
            lines = file.read(_MAX_BYTES).decode("utf-8").splitlines()
        return KnownLayers([restored(KnownLayer, json.loads(line)) for line in lines])
    except (OSError, EOFError, lzma.LZMAError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as known layers: {reason_of(error)}") from None


class KnownLayers:
    """Known layers, found by similarity.

    Parameters
    ----------
    layers : sequence of KnownLayer
        Layers to find.
    """

    def __init__(self, layers: Sequence[KnownLayer]):
        self.layers = layers
        self._schedules: dict[int, list[LayerSchedule]] = {}

    @cached_property
    def _groups(self) -> dict[tuple[str, int], tuple[list[int], np.ndarray]]:
        """Indices and scaled features of the layers of each kind and number of lanes."""
        indices: dict[tuple[str, int], list[int]] = {}
        for number, layer in enumerate(self.layers):
            indices.setdefault((layer.word, layer.lanes), []).append(number)
        return {
            key: (own, _scaled([self.layers[number].features for number in own]))
            for key, own in indices.items()
        }

    def nearest(self, subject: PromptSubject, count: int, without: str = "") -> list[LayerSchedule]:
        """Return the best schedules of the most similar layers, nearest layers first, each schedule once.

        Fields that concern neighboring layers have the values of the layer's current schedule.

        Parameters
        ----------
        subject : PromptSubject
            Layer to which the schedules are to be applied.
        count : int
            Maximum number of schedules.
        without : str
            Name of a network whose layers are left out.
        """
        indices, features = self._groups.get((subject.word, subject.spot.config.n), ([], np.zeros((0, 0))))
        if not indices:
            return []
        distances = np.abs(features - _scaled([features_of(subject)])).sum(axis=1)
        space = LayerSpace(subject.layer, subject.spot)
        found: dict[LayerSchedule, None] = {}
        for at in distances.argsort(kind="stable"):
            number = indices[at]
            if len(found) >= count:
                break
            if self.layers[number].network != without:
                for schedule in self._restored(number):
                    found[space.with_context(schedule, subject.schedule)] = None
        return list(found)[:count]

    def with_known(self, subject: PromptSubject, count: int, without: str = "") -> PromptSubject:
        """Return a layer's description with the best schedules of similar layers; parameters as for `nearest`."""
        return replace(subject, known=tuple(self.nearest(subject, count, without))) if count else subject

    def _restored(self, number: int) -> list[LayerSchedule]:
        if number not in self._schedules:
            self._schedules[number] = [
                restored(LayerSchedule, each) for each in self.layers[number].schedules
            ]
        return self._schedules[number]


def _scaled(features: Sequence[Sequence[float]]) -> np.ndarray:
    return np.log2(1 + np.array(features)) * _WEIGHTS
