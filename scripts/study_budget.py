"""Measurement of a cascade within an accuracy budget: cycles per request, changed labels and the cost of audits.

`python -m scripts.study_budget --json budget.json` compiles KWS for a budget of 0.5% on every other one of the labeled
samples in the folder of the models, measures the other samples on the simulated chip, and serves them repeatedly with
audits; then it exchanges the halves. For each half, it prints the cycles of a request with and without the cascade, the
share of fallbacks, the changed labels, and the cycles of a request when serving, audits included.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import compiler
from compiler.bench.tiny import model_path
from compiler.cli.exit_status import run_to_status
from compiler.options import AccuracyBudget
from compiler.runtime.compiled import CompiledNetwork
from compiler.serving.audit import AuditedServer
from compiler.serving.request import Request
from compiler.serving.server import Server, serving_bytes, version_bytes
from compiler.util.progress import progress
from cosim.rtl.rtl_device import RtlDevice
from hw.errors import InputError

NETWORK, SAMPLES = "kws_ref_model", "data/kws_300.npz"

Arrays = dict[str, NDArray]


@dataclass(frozen=True)
class BudgetRow:
    """Result with one half of the samples as calibration samples.

    Parameters
    ----------
    calibrated, measured : int
        Number of calibration samples, and of samples that were measured.
    threshold : int or None
        Least value of the largest output with which the narrow network's label is accepted; None without a cascade.
    expected, limit : float
        Share of changed labels that the compiler expects, and its upper limit.
    exact_cycles, cycles : float
        Mean cycles of a measured sample on the exact network, and on the cascade.
    fallbacks, changed : int
        Number of measured samples that the cascade computes exactly, and whose label it changes.
    right, right_before : int
        Number of measured samples that the cascade, and the exact network, label rightly.
    requests, audited : int
        Number of served requests, and of audits among them.
    served_cycles : float
        Mean cycles of a served request, audits included.
    upper : float
        Upper bound of the share of changed labels by the audits.
    """

    calibrated: int
    measured: int
    threshold: int | None
    expected: float
    limit: float
    exact_cycles: float
    cycles: float
    fallbacks: int
    changed: int
    right: int
    right_before: int
    requests: int
    audited: int
    served_cycles: float
    upper: float


def measured(
    network: CompiledNetwork, samples: Sequence[Arrays], text: str
) -> tuple[list[int], list[int], int]:
    """Return the labels and the cycles of samples on the simulated chip, and how many of them no guard held for."""
    labels, cycles = [], []
    with (
        compiler.open_device(network, "rtl", say=lambda _text: None) as device,
        progress(text, len(samples), "samples") as task,
    ):
        session = compiler.Session(device, network)
        for sample in samples:
            outputs, taken = session.measure(sample)
            (output,) = outputs.values()
            labels.append(int(output.argmax()))
            cycles.append(taken)
            task.advance(1)
        (counts,) = session.taken
    return labels, cycles, counts[1]


def served(
    exact: CompiledNetwork, cascade: CompiledNetwork, requests: Sequence[Arrays], budget: float
) -> tuple[float, AuditedServer]:
    """Serve requests on the simulated chip, and return the mean cycles and the server."""
    size = serving_bytes(exact, versions=1) + version_bytes(cascade)
    results = []
    with (
        RtlDevice(exact.config, size) as device,
        progress("serving", len(requests), "requests") as task,
    ):
        server = Server(device, exact)
        audited = AuditedServer(server, server.add(cascade)[0], budget)
        for inputs in requests:
            audited.submit(Request(inputs))
            results += audited.results()
            task.advance(1)
        results += audited.results(wait=True)
    return float(np.mean([result.cycles for result in results])), audited


def row(
    model: Path, data: dict[str, NDArray], first: int, budget: float, requests: int, target: str
) -> BudgetRow:
    """Calibrate on every other sample from `first` on, and measure the others."""
    exact = compiler.compile(model, target, database=False)
    (name,) = (tensor.name for tensor in exact.inputs)
    halves = [[{name: each[None]} for each in data["x"][start::2]] for start in (first, 1 - first)]
    with progress("compiling the cascade"):
        cascade = compiler.compile(
            model,
            target,
            calibration=halves[0],
            accuracy_budget=AccuracyBudget(share=budget),
            database=False,
        )
    assert cascade.quantization is not None and cascade.quantization.cascade is not None
    report, samples, labels = cascade.quantization.cascade, halves[1], data["y"][1 - first :: 2]
    before, exact_cycles, _ = measured(exact, samples, "exact network")
    found, cycles, fallbacks = measured(cascade, samples, "cascade")
    mean, server = served(exact, cascade, list(islice(cycle(samples), requests)), budget)
    return BudgetRow(
        calibrated=len(halves[0]),
        measured=len(samples),
        threshold=report.threshold,
        expected=report.expected,
        limit=report.limit,
        exact_cycles=float(np.mean(exact_cycles)),
        cycles=float(np.mean(cycles)),
        fallbacks=fallbacks,
        changed=sum(one != other for one, other in zip(found, before, strict=True)),
        right=int((np.array(found) == labels).sum()),
        right_before=int((np.array(before) == labels).sum()),
        requests=requests,
        audited=server.bound.audited,
        served_cycles=mean,
        upper=server.bound.upper,
    )


def main() -> int:
    """Measure both halves, and print the table."""
    parser = argparse.ArgumentParser(prog="study_budget", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--budget", type=float, default=0.5, help="budget in percent (default: %(default)s)")
    parser.add_argument(
        "--requests", type=int, default=700, help="number of served requests (default: %(default)s)"
    )
    parser.add_argument("--target", default="n16", help="name of the target (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the results as JSON to this file")
    args = parser.parse_args()
    model = model_path(NETWORK)
    path = model.parent / SAMPLES
    if not path.exists():
        raise InputError(f"{path}: the labeled samples of {NETWORK} are missing")
    with np.load(path) as file:
        data = dict(file)
    rows = [row(model, data, first, args.budget / 100, args.requests, args.target) for first in (0, 1)]
    for each in rows:
        print(
            f"calibrated on {each.calibrated}, threshold {each.threshold}: expected {each.expected:.3%} changed, limit "
            f"{each.limit:.3%}\n"
            f"  {each.measured} others: {each.cycles:,.0f} instead of {each.exact_cycles:,.0f} cycles, "
            f"{each.fallbacks} fallbacks, {each.changed} labels changed, {each.right} right "
            f"({each.right_before} before)\n"
            f"  {each.requests} requests: {each.served_cycles:,.0f} cycles, "
            f"{each.exact_cycles / each.served_cycles:.3f} times as fast, {each.audited} audited, at most "
            f"{each.upper:.2%} changed"
        )
    if args.json:
        args.json.write_text(json.dumps([asdict(each) for each in rows], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_to_status("study_budget", main))
