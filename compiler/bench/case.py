"""Benchmark cases and their measurement."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.options import DEFAULT_DRAM, DramTiming
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.run_report import Run, document, run_samples
from compiler.runtime.session import Session, dram_bytes
from cosim.device import Device
from cosim.golden import GoldenDevice

#: Opens a device for a network.
OpenDevice = Callable[[CompiledNetwork], Device]

#: Maximum digits of a size; larger sizes fit no device, and very long numbers cannot be parsed.
_MOST_DIGITS = 12


def sizes(pattern: str, name: str) -> list[int] | None:
    """Return the sizes in the name of a case; None if the name is malformed or a size is 0 or too large.

    Parameters
    ----------
    pattern : str
        Regular expression with one group per size.
    """
    match = re.fullmatch(pattern, name)
    texts = match.groups() if match else ()
    if not texts or any(len(text) > _MOST_DIGITS for text in texts):
        return None
    values = [int(text) for text in texts]
    return values if all(values) else None


@dataclass(frozen=True)
class Work:
    """Model with one input sample and its expected outputs.

    Parameters
    ----------
    model : Graph or path
        Model as accepted by `compiler.compile`.
    inputs : dict of arrays
        Input arrays by name.
    expected : dict of arrays or None
        Expected outputs by name; None to use the outputs of the golden model for the same programs.
    within : dict
        Maximum error of each output that need not be exact, by name.
    apart : int
        Largest error of a single layer if it gets the same inputs as in the reference.
    """

    model: Graph | Path
    inputs: Mapping[str, NDArray]
    expected: Mapping[str, NDArray] | None
    within: Mapping[str, int] = field(default_factory=dict)
    apart: int = 0


@dataclass(frozen=True)
class Case:
    """One line of a benchmark table.

    Parameters
    ----------
    name : str
        Name as given by the user.
    reference : str
        Name of the reference, which shares no code with the compiler.
    prepare : callable
        Function that creates the work from a random generator.
    rounding : str or None
        Rounding mode as accepted by `compiler.compile`.
    """

    name: str
    reference: str
    prepare: Callable[[np.random.Generator], Work]
    rounding: str | None = None


def run_case(
    case: Case,
    target: Any,
    rng: np.random.Generator,
    open_device: OpenDevice,
    say: Callable[[str], None],
    *,
    dram: DramTiming = DEFAULT_DRAM,
    batch: int = 1,
) -> tuple[dict[str, Any], Run]:
    """Compile and measure a case, and return its JSON result and the run.

    Progress messages are passed to `say`.
    """
    work = case.prepare(rng)
    network = compile(work.model, target, rounding=case.rounding, dram=dram, batch=batch)
    with open_device(network) as device:
        run = run_samples(device, network, [work.inputs] * batch, say, steadily=False)
    found = document(network, run, dram.bytes_per_cycle)
    expected = work.expected
    if expected is None:
        with GoldenDevice(network.config, dram_bytes(network)) as golden:
            expected = Session(golden, network).run(work.inputs)
    first = {name: array[: len(array) // batch] for name, array in run.outputs.items()}
    difference, exact = _difference(first, expected, work.within)
    kept = (
        "cycles",
        "macs",
        "utilization",
        "floor_cycles",
        "load_cycles",
        "energy_uj",
        "energy_parts_uj",
        "dram_bytes_read",
        "dram_bytes_written",
        "where",
    )
    return {
        "name": case.name,
        **{key: found[key] for key in kept},
        "floor_layerwise_cycles": _limit(network, found, dram),
        "host_ops": found["host_ops"],
        "exact": exact,
        "reference": case.reference,
        "max_abs_diff": max(int(difference), work.apart),
    }, run


def _limit(network: CompiledNetwork, found: Mapping[str, Any], dram: DramTiming) -> int:
    """Return the sum of the layers' lower bounds, at the DRAM bandwidth if it is less than one beat per cycle."""
    if dram.beat(network.config.beat_bytes) == 1:
        return found["floor_layerwise_cycles"]
    return sum(info.floor.cycles(network.config, dram.bytes_per_cycle) for info in network.infos)


def _difference(
    outputs: Mapping[str, NDArray], expected: Mapping[str, NDArray], within: Mapping[str, int]
) -> tuple[float, bool]:
    """Return the largest difference from the expected outputs, and whether all differences are within their bounds."""
    most, exact = 0.0, True
    for name, wanted in expected.items():
        found = outputs[name].reshape(wanted.shape).astype(np.float64)
        difference = float(np.abs(found - wanted).max())
        most = max(most, difference)
        exact &= difference <= within.get(name, 0)
    return most, exact
