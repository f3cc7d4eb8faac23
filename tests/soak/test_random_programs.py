"""RTL and golden model agree on random programs, run for a given time (`make soak SECONDS=...`).

The test runs as two lanes with different seeds, so that two test processes can share the work.
"""

import os
import sys
import time
from contextlib import ExitStack
from math import ceil

import pytest

from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from tests.support.program_gen.generator import DRAM_BYTES, generate
from tests.support.program_gen.run import check

#: First seed; `make test` uses lower seeds.
FIRST_SEED = int(os.environ.get("MLA_SOAK_SEED", "100000"))
SECONDS = float(os.environ.get("MLA_SOAK_SECONDS", "600"))
#: Number of programs to run; if 0, SECONDS limits the run instead.
PROGRAMS = int(os.environ.get("MLA_SOAK_PROGRAMS", "0"))
TARGETS = ("n4", "n8", "n16", "n16-bus32", "n32", "ulx3s-85f")
LANES = 2
_REPORT_SECONDS = 30.0


@pytest.mark.parametrize("lane", range(LANES))
def test_rtl_equals_golden_model(capfd: pytest.CaptureFixture[str], lane: int) -> None:
    end, rounds, report = time.monotonic() + SECONDS, 0, 0.0
    wanted = ceil(PROGRAMS / (LANES * len(TARGETS)))
    with ExitStack() as stack:
        pairs = []
        for target in TARGETS:
            config = load_target(target)
            device = stack.enter_context(RtlDevice(config, DRAM_BYTES))
            pairs.append((device, GoldenDevice(config, DRAM_BYTES)))
        while rounds < wanted or (not PROGRAMS and time.monotonic() < end):
            seed = FIRST_SEED + lane + LANES * rounds
            for device, model in pairs:
                device.set_dram_timing(latency=(1, 20, 100, 400)[rounds % 4])
                check(device, model, generate(device.config, seed))
            rounds += 1
            if time.monotonic() > report:
                report = time.monotonic() + _REPORT_SECONDS
                _say(capfd, lane, rounds)
    _say(capfd, lane, rounds)
    assert rounds > 0


def _say(capfd: pytest.CaptureFixture[str], lane: int, rounds: int) -> None:
    """Print the progress to standard error, since pytest hides the standard output of parallel test processes."""
    seeds = f"seeds {FIRST_SEED + lane}..{FIRST_SEED + lane + LANES * (rounds - 1)} by {LANES}"
    text = f"\nrandom programs, lane {lane}: {len(TARGETS) * rounds} done, {seeds}, on {', '.join(TARGETS)}"
    with capfd.disabled():
        print(text, file=sys.stderr, flush=True)
