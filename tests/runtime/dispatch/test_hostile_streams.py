"""Streams made to mislead guards and reuse have the outputs of the references; `make soak` serves 1,000 streams."""

from dataclasses import replace
from pathlib import Path

import pytest

from compiler.cache.content_store import ContentStore
from compiler.codegen.dispatch_guard import at_least
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.isa.micro_instruction import Statistic
from tests.runtime.dispatch.hostile_streams import (
    BATCH_STREAMS,
    KINDS,
    LENGTH_STREAMS,
    RTL_KINDS,
    StreamChecks,
    check_equality_of_bytes,
    check_zero_points,
    reused,
    several_lengths,
    several_sizes,
)
from tests.support.seeds import random_seed

#: Streams in `make soak` for each stream here, and streams of each kind on the RTL.
FRACTION, ON_RTL = 25, 2


@pytest.mark.parametrize(
    ("kind", "rtl"), [*((kind, False) for kind in KINDS), *((kind, True) for kind in RTL_KINDS)]
)
def test_versions_of_networks(kind: str, rtl: bool, tmp_path: Path) -> None:
    checks, seed = StreamChecks(rtl, ContentStore(tmp_path / "proofs")), random_seed()
    victims, count = KINDS[kind]
    for victim in victims(tmp_path)[: 1 if rtl else None]:
        checks.versions(victim, seed, ON_RTL if rtl else -(-count // FRACTION))
    assert checks.tally["other programs"]


def test_guards_that_overlook_one_byte_are_found(tmp_path: Path) -> None:
    """The streams are hostile enough: a guard that also holds if one difference is not zero gives wrong outputs."""
    victim, *_ = reused(tmp_path)
    (stage,) = victim.following.stages
    assert stage.code is not None
    first, last = stage.code.parts
    (short,) = last.instead
    wrong = replace(short, guard=at_least(Statistic.FUSE_ZEROS, short.guard.value - 1))
    code = replace(stage.code, parts=(first, replace(last, instead=(wrong,))))
    mutant = replace(victim.following, stages=(replace(stage, code=code),))
    with pytest.raises(AssertionError, match="is wrong"):
        StreamChecks().versions(replace(victim, following=mutant), random_seed(), 100)


@pytest.mark.parametrize("rtl", [False, True], ids=["golden", "rtl"])
def test_batch_sizes(rtl: bool, tmp_path: Path) -> None:
    (victim,) = several_sizes(tmp_path)
    StreamChecks(rtl).batches(victim, random_seed(), ON_RTL if rtl else BATCH_STREAMS // FRACTION)


@pytest.mark.parametrize("rtl", [False, True], ids=["golden", "rtl"])
def test_lengths(rtl: bool, tmp_path: Path) -> None:
    network, answer = several_lengths(tmp_path)
    StreamChecks(rtl).lengths(network, answer, random_seed(), ON_RTL if rtl else LENGTH_STREAMS // FRACTION)


@pytest.mark.parametrize("device", [GoldenDevice, RtlDevice], ids=["golden", "rtl"])
def test_bytes_are_equal_if_their_difference_is_zero(device: type[GoldenDevice] | type[RtlDevice]) -> None:
    check_equality_of_bytes(device)


@pytest.mark.parametrize("device", [GoldenDevice, RtlDevice], ids=["golden", "rtl"])
def test_only_the_zero_point_is_zero(device: type[GoldenDevice] | type[RtlDevice]) -> None:
    for dtype, zeros in (("int8", (-128, -1, 127)), ("uint8", (0, 127, 255))):
        check_zero_points(device, dtype, zeros)
