"""Random programs on RTL and golden model for as long as asked (`make soak SECONDS=...`)."""

import os
import time
from contextlib import ExitStack

import pytest

from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from tests.support.programs import DRAM_BYTES, generate
from tests.support.programs_run import check

#: Seeds of `make test` come before these.
FIRST_SEED = int(os.environ.get("MLA_SOAK_SEED", "100000"))
SECONDS = float(os.environ.get("MLA_SOAK_SECONDS", "600"))
_REPORT_SECONDS = 30.0


def test_rtl_equals_golden_for_long(capfd: pytest.CaptureFixture[str]) -> None:
    end, seed, report = time.monotonic() + SECONDS, FIRST_SEED, 0.0
    with ExitStack() as stack:
        pairs = []
        for n in (4, 8, 16, 32):
            config = load_target(f"n{n}")
            device = stack.enter_context(RtlDevice(config, DRAM_BYTES))
            pairs.append((device, GoldenDevice(config, DRAM_BYTES)))
        while time.monotonic() < end:
            for device, model in pairs:
                device.set_dram_timing(latency=(1, 20, 100, 400)[seed % 4])
                check(device, model, generate(device.config, seed))
            seed += 1
            if time.monotonic() > report:
                report = time.monotonic() + _REPORT_SECONDS
                with capfd.disabled():
                    done = 4 * (seed - FIRST_SEED)
                    print(
                        f"\nrandom programs: {done} done, seeds {FIRST_SEED}..{seed - 1}, all four n",
                        flush=True,
                    )
    assert seed > FIRST_SEED
