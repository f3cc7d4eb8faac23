"""Batch sizes chosen on line against fixed ones, for requests that arrive in three phases.

`python -m scripts.study_batching MODEL --target n16 --sizes 1,2,4,8`: rare requests, bursts, and more requests than can
be served one by one. For each phase, a table lists the throughput and the 99th percentile of the latency.
"""

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.api import compile
from compiler.cli.exit_status import run_to_status
from compiler.ir.graph import random_input
from compiler.passes.index_bounds import index_bounds
from compiler.runtime.compiled import CompiledNetwork
from compiler.serving.request import Request, RequestResult
from compiler.serving.server import Server, TimedServer, serving_bytes
from compiler.util.tables import Column, figures, format_table
from cosim.rtl.rtl_device import RtlDevice

#: Frequency of the clock in MHz.
CLOCK = 100.0


class Phase(NamedTuple):
    """Phase of a stream: its name, and times of arrival in milliseconds."""

    name: str
    arrivals: list[float]


def phases(rng: random.Random, unit: float) -> list[Phase]:
    """Return phases of arrivals, given the milliseconds of a single request.

    There are pauses between the phases, in which all waiting requests are served.
    """
    gaps = {
        "rare": [rng.uniform(2, 4) for _ in range(24)],
        "bursts": [0.01 if number % 8 else 4.0 for number in range(48)],
        "overload": [rng.uniform(0.2, 0.3) for _ in range(60)],
    }
    now, out = 0.0, []
    for name, each in gaps.items():
        now += 40 * unit
        times = [float(time) for time in now + unit * np.cumsum(each)]
        out.append(Phase(name, times))
        now = times[-1]
    return out


def served(
    network: CompiledNetwork, samples: Sequence[Mapping[str, NDArray]], arrivals: Sequence[float]
) -> list[RequestResult]:
    """Return the results of requests on the RTL, one sample for each time of arrival."""
    with RtlDevice(network.config, serving_bytes(network, 1, 1)) as device:
        server = TimedServer(Server(device, network, 1), CLOCK)
        results = []
        for sample, arrival in zip(samples, arrivals, strict=True):
            server.submit(Request(sample, arrival=arrival))
            results += server.results()
        return results + server.results(wait=True)


class PhaseFigures(NamedTuple):
    """Requests per second, and 99th percentile of the latency in milliseconds."""

    rate: float
    p99: float


def phase_figures(results: Sequence[RequestResult]) -> PhaseFigures:
    """Return throughput and latency of the requests of a phase."""
    times = [result.time for result in results if result.time]
    seconds = (times[-1].finish_ms - times[0].arrival_ms) / 1e3
    latencies = [time.latency_ms for time in times]
    return PhaseFigures(len(times) / seconds, float(np.percentile(latencies, 99, method="inverted_cdf")))


def by_phase(results: Sequence[RequestResult], parts: Sequence[Phase]) -> list[PhaseFigures]:
    """Return the figures of each phase."""
    out, first = [], 0
    for part in parts:
        out.append(phase_figures(results[first : first + len(part.arrivals)]))
        first += len(part.arrivals)
    return out


def main(model: Path, target: str, sizes: tuple[int, ...], seed: int) -> int:
    """Run the stream with each batch size and with sizes chosen on line, and print the table."""
    network = compile(model, target, batches=sizes)
    rng = np.random.default_rng(seed)
    parts = phases(random.Random(seed), network.smaller[0].floor.cycles(network.config) / (CLOCK * 1e3))
    arrivals = [arrival for part in parts for arrival in part.arrivals]
    bounds = index_bounds(network)
    samples = [{each.name: random_input(rng, each, bounds) for each in network.sample} for _ in arrivals]
    networks = {"on line": network} | {f"size {each}": compile(model, target, batch=each) for each in sizes}
    rows = []
    for name, each in networks.items():
        found = by_phase(served(each, samples, arrivals), parts)
        rows.append([name, *(f"{value:,.0f}, {p99:.3f} ms" for value, p99 in found)])
    print(format_table([Column("batch size"), *figures(*(part.name for part in parts))], rows))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="study_batching", description=__doc__)
    parser.add_argument("model", metavar="MODEL", type=Path)
    parser.add_argument("--target", metavar="T", default="n16")
    parser.add_argument("--sizes", metavar="B,B,...", default="1,2,4,8")
    parser.add_argument("--seed", metavar="S", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    chosen = tuple(int(size) for size in given.sizes.split(","))
    sys.exit(run_to_status("study_batching", lambda: main(given.model, given.target, chosen, given.seed)))
