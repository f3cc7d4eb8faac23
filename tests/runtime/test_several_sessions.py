"""Several sessions on one device."""

import numpy as np
import pytest

from compiler.api import compile
from compiler.runtime.session import Session
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.errors import WorkError
from tests.support.graphs import Draft


def test_sessions_follow_each_other_on_a_device(rng: np.random.Generator) -> None:
    """A second session resets the chip; the first one then reports this instead of waiting for ever."""
    draft = Draft(rng)
    graph = draft.graph.finish([draft.node("tanh", [draft.input((1, 4, 4, 8))], (1, 4, 4, 8)).name])
    network, inputs = compile(graph, "n4"), draft.random_inputs()
    for kind in (GoldenDevice, RtlDevice):
        with kind(network.config, 1 << 20) as device:
            first = Session(device, network)
            outputs = first.run(inputs)
            second = Session(device, network)
            for name, array in second.run(inputs).items():
                assert np.array_equal(array, outputs[name])
            with pytest.raises(WorkError, match="another driver"):
                first.run(inputs)
            device.reset()
            with pytest.raises(WorkError, match="was reset"):
                second.run(inputs)
