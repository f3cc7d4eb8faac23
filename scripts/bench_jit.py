"""Measurement of the latency from a candidate's schedule to its programs on a running chip.

`python -m scripts.bench_jit [--json FILE]` serves a convolution and the small trained networks on the simulated N=16
chip, changes the schedule of one layer, and measures the time to compile the candidate, and to add it to the server as
in `mla serve --adapt`: the chip fetches its programs while they are being proved safe. Each of the five candidates
changes one layer, preferably to a schedule that has not been compiled before. The target applies to a computer with two
idle cores.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from compiler.bench.tiny import model_path
from compiler.cache.model_source import ModelSource
from compiler.cli.exit_status import run_to_status
from compiler.options import DEFAULT_DRAM, CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.schedule.schedule import Schedule
from compiler.serving.server import VERSIONS, Server, serving_bytes
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.layer_space import spaces_of
from compiler.util.progress import building, progress
from compiler.util.tables import Column, figures, format_table
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.errors import InputError

SINGLE, LAYER = "14x14x64", CalibrationNetwork((14, 14, 64), (CalibrationOp("conv", 64, 3),))
NETWORKS = ("ad01_int8", "kws_ref_model", "pretrainedResnet_quant", "vww_96_int8")
#: Target in milliseconds from schedule to loaded program.
BAR = 20.0
#: Number of candidates per network, of whose times medians are reported.
CANDIDATES = 5
_STAGES = ("compile", "add")


@dataclass(frozen=True)
class Times:
    """Times of one candidate in milliseconds."""

    layer: str
    compile: float
    add: float

    @property
    def total(self) -> float:
        """Total time from the schedule to the loaded programs."""
        return self.compile + self.add


def candidates(prepared: ModelCompiler, first: Schedule, seed: int) -> Iterator[tuple[str, Schedule]]:
    """Yield layers in random order, each with a schedule of the network that changes only that layer."""
    rng = random.Random(seed)
    spaces = spaces_of(prepared.config, prepared.lowered(first.fusions), DEFAULT_DRAM, frozenset())
    seen = set(map(str, first.layers.values()))
    while True:
        for name in rng.sample(sorted(spaces), len(spaces)):
            layer = spaces[name].draw(rng, first.layers[name])
            if layer == first.layers[name] or str(layer) in seen:
                layer = spaces[name].change(rng, first.layers[name])
            if layer != first.layers[name]:
                seen.add(str(layer))
                yield name, replace(first, layers=first.layers | {name: layer})


def measure(source: ModelSource, seed: int = 1) -> list[Times]:
    """Measure candidates of a network while the server runs its first version."""
    config = load_target("n16")
    prepared = ModelCompiler(source.graph, config, CompileOptions(rounding=source.rounding))
    network = prepared.network()
    out: list[Times] = []
    size = serving_bytes(network, versions=2 * VERSIONS)
    with RtlDevice(config, size, monitor=building) as device:
        server = Server(device, network)
        for layer, schedule in candidates(prepared, network.schedule, seed):
            times = _times(prepared, server, layer, schedule)
            out += [times] if times else []
            if len(out) == CANDIDATES:
                return out
    raise AssertionError("there is always another candidate")


def _times(prepared: ModelCompiler, server: Server, layer: str, schedule: Schedule) -> Times | None:
    """Measure one candidate; return None if it does not compile or results in the current programs."""
    began = time.perf_counter()
    try:
        network = prepared.network(schedule)
    except InputError:
        return None
    compiled = time.perf_counter()
    if [code.parts for code in network.codes] == [code.parts for code in server.current.network.codes]:
        return None
    adding = time.perf_counter()
    version, resident = server.add(network)
    loaded = time.perf_counter()
    assert resident
    server.drop(version)
    took = (compiled - began, loaded - adding)
    return Times(layer, *(1000 * seconds for seconds in took))


def main() -> int:
    """Print the table; return status 1 if the target is missed."""
    parser = argparse.ArgumentParser(
        description="Measure the time in milliseconds from a candidate's schedule to its loaded programs."
    )
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help="networks to measure (default: a convolution and four networks)",
    )
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="also write the times of every candidate to this file"
    )
    args = parser.parse_args()
    document, rows, met = {}, [], True
    for name in args.names or (SINGLE, *NETWORKS):
        with progress(f"measuring {name}"):
            times = measure(ModelSource(LAYER.graph() if name == SINGLE else model_path(name)))
        document[name] = [vars(each) | {"total": each.total} for each in times]
        row = [median(getattr(each, stage) for each in times) for stage in (*_STAGES, "total")]
        rows.append([name, *(f"{value:.1f}" for value in row)])
        met = met and row[-1] < BAR
    if args.json:
        args.json.write_text(json.dumps({"bar": BAR, "milliseconds": document}, indent=1) + "\n")
    print(format_table([Column("milliseconds"), *figures(*_STAGES, "total")], rows))
    print(f"target: {BAR:.0f} ms in total: {'met' if met else 'not met'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(run_to_status("bench_jit", main))
