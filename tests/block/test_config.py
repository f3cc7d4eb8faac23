"""Tests of configuration fields that depend on each other."""

import pytest

from hw.config import MlaConfig, load_target
from hw.errors import InputError


@pytest.mark.parametrize(("serial", "rate"), [(0, 4), (0, 8), (1, 1), (1, 2)])
def test_pipelined_requires_serial_commands_and_few_lanes(serial: int, rate: int) -> None:
    with pytest.raises(InputError, match=f"needs serial_commands = 1 .* not {serial} and {rate}"):
        MlaConfig(n=8, serial_commands=serial, fuse_rate=rate, pipelined=1)


def test_pipelined_only_on_boards() -> None:
    assert load_target("ulx3s-85f").pipelined
    assert not any(load_target(f"n{n}").pipelined for n in (4, 8, 16, 32))
