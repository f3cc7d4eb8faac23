"""A network compiled with an offset does not modify the memory before that offset."""

import numpy as np
import pytest

from compiler.api import compile
from compiler.runtime.session import Session, dram_bytes
from cosim.golden import GoldenDevice
from scripts.networks.digits import MODEL

OFFSET = 1000
PATTERN = 0xA5


@pytest.mark.parametrize("cached", [False, True])
def test_memory_before_the_offset_is_not_modified(cached: bool) -> None:
    image = np.random.default_rng(9).integers(0, 17, (1, 1, 8, 8)).astype(np.int8)
    wanted = compile(MODEL)(image)
    if cached:
        compile(MODEL, offset=OFFSET, cache=True)
    network = compile(MODEL, offset=OFFSET, cache=cached)
    (code,) = network.codes
    assert not code.image[:OFFSET].any() and code.memory >= OFFSET + len(compile(MODEL).codes[0].image)
    code.image[:OFFSET] = PATTERN
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        session = Session(device, network)
        (place,) = session.loaded
        found = session.run({"image": image})
        assert (session.driver.fetch(place.base, (OFFSET,), np.uint8) == PATTERN).all()
    assert np.array_equal(found["scores"], wanted["scores"])
