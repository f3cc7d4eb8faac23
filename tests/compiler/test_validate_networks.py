"""The static validator on compiled networks: a sample of each, on every target."""

import pytest

from compiler.api import Network, compile
from compiler.validate import Call, validate
from tests.compiler.networks import NETWORKS, model

_BASE, _ALIGN = 1 << 16, 64


def calls_of(network: Network) -> tuple[list[Call], list[tuple[int, int, int]]]:
    """Macro-instructions of one sample, and the DRAM they may touch."""
    sizes = [network.code.memory]
    sizes += [network.graph.tensors[name].bytes for name in (*network.graph.inputs, *network.graph.outputs)]
    operands, at = [], _BASE
    for size in sizes:
        operands.append(at)
        at += -(-size // _ALIGN) * _ALIGN
    return [Call(program, tuple(operands)) for program in network.code.programs], [(_BASE, at - 1, 3)]


@pytest.mark.parametrize("target", ["n4", "n8", "n16", "n32", "ulx3s-85f"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_safe(name: str, target: str) -> None:
    network = compile(model(name), target)
    calls, windows = calls_of(network)
    report = validate(network.config, calls, windows, require_written=True)
    assert report.ways == 1
    assert report.commands["matrix"] > 0
