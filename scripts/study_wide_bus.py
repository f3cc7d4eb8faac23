"""Cycles of networks on a machine with a bus of 2 * n bytes, compared with those of the same machine with n bytes.

`python -m scripts.study_wide_bus` compiles networks for a target, for the same target with `bus_bytes = 2 * n`, and for
the latter with a DRAM of n bytes per cycle, and runs them on the RTL; all outputs are compared with those of the golden
model of the first. Beside the measured gain in speed, it prints the one that the timeline of the commands
(`compiler/cost/timeline.py`) predicts. Results are appended to a file, and networks that it contains are not measured
again.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import compiler
from compiler.cost.timeline import timeline_cycles
from compiler.ir.graph import Graph
from compiler.options import DramTiming
from compiler.pipeline import CompilationTrace
from compiler.quantize.ranges import random_samples
from compiler.runtime.device import open_device
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from hw.config import DEFAULT_TARGET, MlaConfig, load_target
from hw.errors import InputError, WorkError
from scripts.jsonl_log import JsonlLog
from scripts.study_design_options import SUITE, find_model

_SEED, _LATENCY = 0, 100


def machines(config: MlaConfig) -> dict[str, tuple[MlaConfig, float]]:
    """Return the machines to compare by name: configuration, and DRAM bandwidth in bytes per cycle."""
    wide = replace(config, bus_bytes=2 * config.n)
    return {"narrow": (config, config.n), "wide": (wide, 2 * config.n), "slow memory": (wide, config.n)}


def study(model: Path | Graph, config: MlaConfig) -> dict[str, Any]:
    """Run a network on all machines; return cycles, and cycles according to the timeline, as JSON fields.

    Raises
    ------
    InputError
        The model cannot be compiled.
    WorkError
        An output differs from the golden model's.
    """
    expected: dict[str, np.ndarray] = {}
    taken: dict[str, int] = {}
    predicted: dict[str, float] = {}
    for name, (machine, rate) in machines(config).items():
        dram, trace = DramTiming(_LATENCY, rate), CompilationTrace()
        network = compiler.compile(model, machine, dram=dram, record=trace)
        (inputs,) = random_samples(trace.graphs["imported"], _SEED, 1)
        if not expected:
            with GoldenDevice(machine, dram_bytes(network)) as golden:
                expected = Session(golden, network).run(inputs)
        with open_device(network, "rtl", 1, _LATENCY, rate, _log) as device:
            session = Session(device, network)
            outputs, taken[name] = session.measure(inputs)
        predicted[name] = timeline_cycles(machine, trace.streams, dram)
        _log(f"{name}: {taken[name]:,} cycles, {predicted[name]:,.0f} predicted")
        for output, array in expected.items():
            if not np.array_equal(array, outputs[output]):
                raise WorkError(f"{network.name}: output {output!r} differs from the golden model's")
    return {"cycles": taken, "predicted": predicted}


def table(rows: Sequence[Mapping[str, Any]], config: MlaConfig) -> str:
    """Return the results as a Markdown table."""
    n = config.n
    heads = (
        "network",
        f"bus of {n} bytes",
        f"{2 * n} bytes",
        "gain",
        "predicted",
        f"DRAM of {n} bytes per cycle, gain",
    )
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " --: |" * (len(heads) - 1)]
    gains = []
    for row in rows:
        cycles, predicted = row["cycles"], row["predicted"]
        gains.append(
            [
                cycles["narrow"] / cycles["wide"],
                predicted["narrow"] / predicted["wide"],
                cycles["narrow"] / cycles["slow memory"],
            ]
        )
        cells = [f"{cycles['narrow']:,}", f"{cycles['wide']:,}", *(f"{gain - 1:.1%}" for gain in gains[-1])]
        lines.append(f"| {row['network']} | " + " | ".join(cells) + " |")
    means = [f"{geometric_mean(column) - 1:.1%}" for column in zip(*gains, strict=True)]
    lines.append("| geometric mean | | | " + " | ".join(means) + " |")
    return "\n".join(lines)


def _log(text: str) -> None:
    print(f"study: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Measure the networks that are not in the file, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--networks",
        nargs="+",
        default=SUITE,
        help="networks of `mla bench`, the decoder, or model files (default: %(default)s)",
    )
    parser.add_argument(
        "--target", default=DEFAULT_TARGET, help="target with a bus of n bytes (default: %(default)s)"
    )
    parser.add_argument(
        "--file", type=Path, default=Path("build/wide_bus.jsonl"), help="results (default: %(default)s)"
    )
    args = parser.parse_args()
    try:
        config, log = load_target(args.target), JsonlLog(args.file)
        known = {(each["target"], each["network"]): each for each in log.read()}
        for name in args.networks:
            if (args.target, name) not in known:
                _log(name)
                with TemporaryDirectory() as folder:
                    found = study(find_model(name, Path(folder)), config)
                known[args.target, name] = {"target": args.target, "network": name} | found
                log.add(known[args.target, name])
    except (InputError, WorkError) as error:
        _log(str(error))
        return 2
    print(table([known[args.target, name] for name in args.networks], config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
