"""Quality of float models after quantization on samples that calibration has not seen."""

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from compiler.bench.float_networks import FLOAT_NETWORKS, FloatNetwork
from compiler.frontends.model import read_model
from compiler.ir.graph import Graph
from compiler.passes import simplify
from compiler.quantize import quantize
from compiler.quantize.report import OutputErrors
from compiler.reference import evaluate

#: Number of samples of calibration and of measurement.
CALIBRATION, MEASURED = 16, 48


@dataclass(frozen=True)
class Quality:
    """Quality of one quantized network.

    Parameters
    ----------
    sqnr_db, calibrated_db : float
        Signal-to-noise ratio of the output on fresh samples, and as reported on samples of calibration.
    top1 : float or None
        Share of the rows whose largest element has the same index.
    seconds : float
        Duration of quantization in seconds.
    """

    sqnr_db: float
    calibrated_db: float
    top1: float | None
    seconds: float


def float_graph(network: FloatNetwork) -> Graph:
    """Return the graph of a network, whose file is read as a user's file is."""
    if isinstance(network.model, Graph):
        return network.model
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        onnx.save(network.model, path)
        return simplify(read_model(path))


def quality(network: FloatNetwork, *, measured: int = MEASURED) -> Quality:
    """Quantize a network with its samples, and compare it with the float model on others."""
    graph = float_graph(network)
    (name,) = graph.inputs
    shape = graph.tensors[name].shape

    def samples(seed: int, count: int) -> list[dict[str, np.ndarray]]:
        return [{name: each.reshape(shape)} for each in network.samples(np.random.default_rng(seed), count)]

    start = time.perf_counter()
    quantized, report = quantize(graph, samples(100, CALIBRATION), rounding="onnxruntime")
    seconds = time.perf_counter() - start
    errors = OutputErrors()
    for sample in samples(200, measured):
        (wanted,) = evaluate(graph, sample).values()
        (found,) = evaluate(quantized, sample, rounding="onnxruntime").values()
        errors.add(wanted, found)
    return Quality(errors.sqnr_db or np.inf, report.outputs[0].sqnr_db or np.inf, errors.top1, seconds)


def main() -> None:
    """Print the quality of the given networks, or of all."""
    parser = argparse.ArgumentParser(description="measure the quality of float models after quantization")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"one of {', '.join(FLOAT_NETWORKS)}")
    parser.add_argument("--measured", type=int, default=MEASURED, help="number of samples that are measured")
    args = parser.parse_args()
    print("| network | fresh samples | same top 1 | calibration | quantized in |")
    print("| --- | --: | --: | --: | --: |")
    for name in args.names or FLOAT_NETWORKS:
        found = quality(FLOAT_NETWORKS[name](), measured=args.measured)
        top = "" if found.top1 is None else f"{found.top1:.1%}"
        print(
            f"| {name} | {found.sqnr_db:.1f} dB | {top} | {found.calibrated_db:.1f} dB | {found.seconds:.1f} s |",
            flush=True,
        )


if __name__ == "__main__":
    main()
