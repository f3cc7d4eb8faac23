"""Published architectures can be compiled and give correct outputs on the golden model (`make soak`)."""

import sys
import time
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from compiler.api import compile
from compiler.bench.architectures import NETWORKS, model_file
from compiler.frontends.model import read_model
from compiler.lowering.partition import BOUNDARY_REASON
from compiler.quantize import quantize
from compiler.quantize.ranges import random_samples
from compiler.reference import evaluate
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice

#: Multiply-accumulates of the four image classifiers.
MACS = {
    "resnet18": 1_814_073_344,
    "resnet50": 4_089_184_256,
    "mobilenet_v1": 568_740_352,
    "mobilenet_v2": 300_774_272,
}
#: Minimum SQNR of the output in dB: the measured value minus 3 dB.
LEAST = {
    "resnet18": 27,
    "resnet50": 24,
    "mobilenet_v1": 29,
    "mobilenet_v2": 29,
    "bert_layer": 27,
    "lstm": 29,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_published_networks_compile_and_run(capfd: pytest.CaptureFixture[str], name: str) -> None:
    graph = read_model(model_file(name))
    times = [time.monotonic()]
    made, report = quantize(graph, random_samples(graph, 0, 1))
    times.append(time.monotonic())
    network = compile(made, "n16")
    times.append(time.monotonic())
    (inputs,) = random_samples(graph, 1, 1)
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        found = Session(device, network).run(inputs)
    times.append(time.monotonic())
    seconds = [after - before for before, after in pairwise(times)]
    host = Counter(each.op for each in network.host if report.kept.get(each.node) != BOUNDARY_REASON)
    left = ", ".join(f"{op} ({count})" for op, count in host.items())
    with capfd.disabled():
        print(
            f"\n{name}: quantized in {seconds[0]:.0f} s, compiled in {seconds[1]:.0f}, run in {seconds[2]:.0f}; "
            f"{network.floor.macs:,} MACs; on the host beside its edges: {left or 'nothing'}",
            file=sys.stderr,
            flush=True,
        )
    wanted = evaluate(made, inputs)
    for each in report.outputs:
        # Softmax and normalizations may differ by one step, so later outputs may differ by a few.
        bound = each.max_abs if name == "bert_layer" else 0
        np.testing.assert_allclose(found[each.name], wanted[each.name], rtol=0, atol=bound)
    assert all((each.sqnr_db or 0) >= LEAST[name] for each in report.outputs)
    if name in MACS:
        assert (network.floor.macs, host) == (MACS[name], Counter())
