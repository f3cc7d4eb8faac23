"""The waves of a network's run are recorded, and recording does not change outputs or cycles."""

import numpy as np

import compiler
from tests.support.small_network import two_convolutions


def test_waves_of_a_network(tmp_path) -> None:
    network = compiler.compile(two_convolutions(), "n4", cache=False)
    rng = np.random.default_rng(1)
    inputs = {each.name: rng.integers(-128, 128, each.shape).astype(each.dtype) for each in network.sample}
    results = []
    for waves in (None, tmp_path / "chip.fst"):
        with compiler.open_device(network, waves=waves) as device:
            results.append(compiler.Session(device, network).measure(inputs))
    (plain, cycles), (recorded, cycles_recorded) = results
    assert cycles == cycles_recorded
    for name, values in plain.items():
        np.testing.assert_array_equal(values, recorded[name])
    assert (tmp_path / "chip.fst").stat().st_size > 1000
