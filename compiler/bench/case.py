"""What a suite measures, and what it says about it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.bench.measure import Measurement, measure
from compiler.kernels.library import Library

#: Independent reference of GEMM and convolution.
REFERENCE = "numpy int64"


#: Digits of a size: no machine holds more, and a number of thousands of them cannot even be read.
_MOST_DIGITS = 12


def sizes(pattern: str, name: str) -> list[int] | None:
    """The groups of a case's name that are sizes; None if the name is not of the form or a size is 0 or beyond all.

    Parameters
    ----------
    pattern : str
        Regular expression of the form, one group for each size.
    """
    match = re.fullmatch(pattern, name)
    texts = match.groups() if match else ()
    if not texts or any(len(text) > _MOST_DIGITS for text in texts):
        return None
    values = [int(text) for text in texts]
    return values if all(values) else None


@dataclass(frozen=True)
class Work:
    """Work put into the ring: where its result will be, and what it must be."""

    y: int
    expected: np.ndarray
    enqueue: Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of a table.

    Parameters
    ----------
    name : str
        As the user writes it.
    macs : int
        Multiply-accumulates of the operator's definition.
    traffic : int
        Bytes of inputs, weights and outputs, each once.
    dram_bytes : int
        DRAM it needs.
    prepare : callable
        Puts inputs drawn from a generator into DRAM.
    """

    name: str
    macs: int
    traffic: int
    dram_bytes: int
    prepare: Callable[[Library, np.random.Generator], Work]


def run_case(
    library: Library, case: Case, rng: np.random.Generator, bytes_per_cycle: float
) -> tuple[dict[str, Any], Measurement]:
    """Measure a case; the result in the shape of the JSON document, and the measurement itself."""
    mark = library.driver.memory.mark()
    work = case.prepare(library, rng)
    taken = measure(library.driver, work.enqueue)
    result = library.driver.fetch(work.y, work.expected.shape)
    library.driver.memory.release(mark)
    difference = int(np.abs(result.astype(np.int64) - work.expected).max())
    peak = library.config.n**2
    return {
        "name": case.name,
        "cycles": taken.cycles,
        "macs": case.macs,
        "utilization": None if taken.cycles is None else case.macs / (taken.cycles * peak),
        "floor_cycles": max(-(-case.macs // peak), int(-(-case.traffic // bytes_per_cycle))),
        "exact": difference == 0,
        "reference": REFERENCE,
        "max_abs_diff": difference,
        "where": taken.where,
    }, taken
