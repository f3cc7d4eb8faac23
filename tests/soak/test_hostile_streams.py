"""1,000 streams made to mislead guards and reuse have the outputs of the references."""

import sys
from pathlib import Path

import pytest

from compiler.cache.content_store import ContentStore
from cosim.golden import GoldenDevice
from tests.runtime.dispatch.hostile_streams import (
    BATCH_STREAMS,
    KINDS,
    LENGTH_STREAMS,
    RTL_KINDS,
    StreamChecks,
    check_zero_points,
    several_lengths,
    several_sizes,
)
from tests.support.seeds import random_seed

#: Streams that one machine serves: failures are repeated with the seed of these streams.
TOGETHER = 20
#: Streams of each kind on the RTL.
ON_RTL = 12


def test_streams(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    seed = random_seed()
    checks = StreamChecks(proofs=ContentStore(tmp_path / "proofs"))
    with capfd.disabled():
        print(f"\nMLA_SEED={seed}", file=sys.stderr)
        for kind, (victims, count) in KINDS.items():
            for victim in victims(tmp_path):
                for number in range(0, count, TOGETHER):
                    checks.versions(victim, seed + number, min(TOGETHER, count - number))
            print(f"{kind}: {dict(checks.tally)}", file=sys.stderr, flush=True)
        (victim,) = several_sizes(tmp_path)
        checks.batches(victim, seed, BATCH_STREAMS)
        checks.lengths(*several_lengths(tmp_path), seed, LENGTH_STREAMS)
        print(dict(checks.tally), file=sys.stderr, flush=True)
    assert checks.tally["streams"] >= 1000 and checks.tally["short programs"] > 500


def test_streams_on_the_rtl(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    seed, checks = random_seed(), StreamChecks(rtl=True, proofs=ContentStore(tmp_path / "proofs"))
    with capfd.disabled():
        print(f"\nMLA_SEED={seed}", file=sys.stderr)
        for kind in RTL_KINDS:
            victims = KINDS[kind][0](tmp_path)
            for victim in victims:
                checks.versions(victim, seed, ON_RTL // len(victims))
        (victim,) = several_sizes(tmp_path)
        checks.batches(victim, seed, ON_RTL)
        checks.lengths(*several_lengths(tmp_path), seed, ON_RTL)
        print(dict(checks.tally), file=sys.stderr, flush=True)


@pytest.mark.parametrize(("dtype", "zeros"), [("int8", range(-128, 128)), ("uint8", range(256))])
def test_only_the_zero_point_is_zero(dtype: str, zeros: range) -> None:
    check_zero_points(GoldenDevice, dtype, zeros)
