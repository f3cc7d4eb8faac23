"""Tests of configuration fields that depend on each other."""

from dataclasses import replace

import pytest

from hw.config import MlaConfig, load_target
from hw.errors import InputError


@pytest.mark.parametrize(("serial", "rate"), [(0, 4), (0, 8), (1, 1), (1, 2)])
def test_pipelined_requires_serial_commands_and_few_lanes(serial: int, rate: int) -> None:
    with pytest.raises(InputError, match=f"needs serial_commands = 1 .* not {serial} and {rate}"):
        MlaConfig(n=8, serial_commands=serial, fuse_rate=rate, pipelined=1)


@pytest.mark.parametrize("n", [4, 8, 16])
def test_bus_of_one_or_two_rows(n: int) -> None:
    usual, same, wide = (MlaConfig(n=n, bus_bytes=width) for width in (0, n, 2 * n))
    assert usual == same == MlaConfig(n=n) != wide
    assert [each.beat_bytes for each in (usual, same, wide)] == [n, n, 2 * n]
    assert load_target("n16-bus32") == replace(load_target("n16"), bus_bytes=32)


@pytest.mark.parametrize(
    ("n", "width", "allowed"),
    [(16, 8, "0, 16, 32"), (16, 64, "0, 16, 32"), (4, 16, "0, 4, 8"), (32, 64, "0, 32")],
)
def test_other_widths_of_the_bus_are_rejected(n: int, width: int, allowed: str) -> None:
    with pytest.raises(InputError, match=f"bus_bytes must be one of {allowed}, not {width}"):
        MlaConfig(n=n, bus_bytes=width)


def test_pipelined_only_on_boards() -> None:
    assert load_target("ulx3s-85f").pipelined
    assert not any(load_target(f"n{n}").pipelined for n in (4, 8, 16, 32))
