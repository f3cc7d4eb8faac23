"""What a model must answer: fresh inputs, and their outputs by a program that no candidate has a part in."""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from compiler.quantize.samples import random_samples
from compiler.runtime.compiled import CompiledNetwork

Arrays = dict[str, NDArray]
#: So many questions are remembered: methods that are compared ask the same ones.
_REMEMBERED = 64


@dataclass(frozen=True)
class GoldenIO:
    """Inputs of a model and the outputs they must give."""

    inputs: Arrays
    outputs: Arrays

    def answered_by(self, outputs: Arrays) -> bool:
        """Whether these are the outputs, bit by bit."""
        return all(np.array_equal(outputs[name], array) for name, array in self.outputs.items())


class GoldenModelReference:
    """Questions by number, answered on the golden model by the first program of a model.

    Parameters
    ----------
    network : Network
        As the static compiler makes it.
    seed : int
        Of the random inputs.
    """

    def __init__(self, network: CompiledNetwork, seed: int = 0):
        self.network, self.seed = network, seed
        self._known: OrderedDict[int, GoldenIO] = OrderedDict()
        self._lock = Lock()

    def question(self, number: int) -> GoldenIO:
        """The same for the same number."""
        with self._lock:
            if number not in self._known:
                self._known[number] = self._make(number)
                while len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
            return self._known[number]

    def _make(self, number: int) -> GoldenIO:
        assert self.network.graph is not None
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        inputs = random_samples(self.network.graph, seed, 1)[0]
        return GoldenIO(inputs, self.network(**inputs))
