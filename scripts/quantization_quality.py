"""Quality of float models after quantization on samples that calibration has not seen."""

import argparse
import tempfile
import time
from collections.abc import Sequence
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

#: Number of samples of calibration and of measurement, and seed of both.
CALIBRATION, MEASURED, SEED = 16, 48, 100


@dataclass(frozen=True)
class Quality:
    """Quality of one quantized network on samples that calibration has not seen.

    Parameters
    ----------
    sqnr_db : float
        Signal-to-noise ratio of the output in dB.
    top1 : float or None
        Share of the rows whose largest element has the same index; None if rows have one element.
    seconds : float
        Duration of quantization in seconds.
    """

    sqnr_db: float
    top1: float | None
    seconds: float

    def __str__(self) -> str:
        top = "" if self.top1 is None else f", {self.top1:.1%}"
        return f"{self.sqnr_db:.1f} dB{top}"


def float_graph(network: FloatNetwork) -> Graph:
    """Return the graph of a network, whose file is read as a user's file is."""
    if isinstance(network.model, Graph):
        return network.model
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        onnx.save(network.model, path)
        return simplify(read_model(path))


def quality(network: FloatNetwork, *, int16: Sequence[str] = (), measured: int = MEASURED) -> Quality:
    """Quantize a network with its samples, and compare it with the float model on others.

    Parameters
    ----------
    network : FloatNetwork
        The network and its samples.
    int16 : sequence of str
        Nodes whose activations become int16.
    measured : int
        Number of samples of the comparison.
    """
    graph = float_graph(network)
    (name,) = graph.inputs
    shape = graph.tensors[name].shape
    given = network.samples(np.random.default_rng(SEED), CALIBRATION + measured)
    samples = [{name: each.reshape(shape)} for each in given]
    start = time.perf_counter()
    quantized, _ = quantize(graph, samples[:CALIBRATION], int16=int16)
    seconds = time.perf_counter() - start
    errors = OutputErrors()
    for sample in samples[CALIBRATION:]:
        (wanted,) = evaluate(graph, sample).values()
        (found,) = evaluate(quantized, sample).values()
        errors.add(wanted, found)
    return Quality(errors.sqnr_db or np.inf, errors.top1, seconds)


def main() -> None:
    """Print the quality of the given networks, or of all, with int8 activations and with int16 activations."""
    parser = argparse.ArgumentParser(description="measure the quality of float models after quantization")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"one of {', '.join(FLOAT_NETWORKS)}")
    parser.add_argument("--measured", type=int, default=MEASURED, help="number of samples that are measured")
    args = parser.parse_args()
    print("| network | int8 | int16 | quantized to int8 in |")
    print("| --- | --: | --: | --: |")
    for name in args.names or FLOAT_NETWORKS:
        network = FLOAT_NETWORKS[name]()
        narrow, wide = (quality(network, int16=each, measured=args.measured) for each in ((), ("all",)))
        print(f"| {name} | {narrow} | {wide} | {narrow.seconds:.1f} s |", flush=True)


if __name__ == "__main__":
    main()
