"""Random layers with one dimension from 1 to 100,000 compile and are exact; most are near their limit (`make soak`)."""

import sys

import pytest

from compiler.runtime.run_report import run_samples
from compiler.runtime.session import dram_bytes
from cosim.rtl.rtl_device import RtlDevice
from tests.support.sized_layers import (
    FAST,
    KINDS,
    check_exact,
    compiled,
    described,
    limit_cycles,
    sized_layer,
)

#: Number of layers, and the smallest limit with which cycles are compared.
LAYERS, LEAST = 200, 20_000
#: Ratio of limit to cycles that a layer should reach, and the minimum fraction of layers that reach it (10 of 23 when
#: the fraction was chosen). Most other layers have up to three input or output channels, which leave lanes unused.
SHARE, REACHING = 0.7, 0.4


def test_random_layers_of_any_size(capfd: pytest.CaptureFixture[str]) -> None:
    kinds, reached, missed = list(KINDS), 0, []
    for number in range(LAYERS):
        kind, seed = kinds[number % len(kinds)], number // len(kinds)
        draft, graph = sized_layer(kind, seed)
        network = compiled(graph)
        check_exact(kind, draft, network)
        limit = limit_cycles(draft)
        if kind not in FAST or limit < LEAST or network.host:
            continue
        with RtlDevice(network.config, dram_bytes(network)) as device:
            run = run_samples(device, network, [draft.random_inputs()], lambda _line: None, steadily=False)
        cycles = sum(run.cycles or ())
        reached += limit >= SHARE * cycles
        if limit < SHARE * cycles:
            missed.append(f"{limit / cycles:.0%} ({cycles:,} cycles), seed {seed}: {described(graph)}")
    with capfd.disabled():
        total = reached + len(missed)
        print(f"\n{reached} of {total} layers reach {SHARE:.0%} of their limit; the others:", file=sys.stderr)
        print("\n".join(missed), file=sys.stderr, flush=True)
    assert reached >= REACHING * total
