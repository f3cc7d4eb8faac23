"""Ten thousand requests have correct outputs while programs are replaced repeatedly."""

import random

from compiler.serving.server import Server, serving_bytes
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from tests.online_tuning.small_servers import Model
from tests.serving.test_versions import check, stream
from tests.support.small_network import two_convolutions

REQUESTS, RELOADS, SEED = 10_000, 60, 31


def test_ten_thousand_requests_with_sixty_reloads() -> None:
    print(f"seed {SEED}")
    model = Model(two_convolutions(), load_target("n4"), questions=64)
    with RtlDevice(model.first.config, serving_bytes(model.first, versions=8)) as device:
        server = Server(device, model.first)
        results = stream(server, model, REQUESTS, RELOADS, random.Random(SEED))
        check(results, model, REQUESTS, RELOADS)
        assert server.driver.get("TRAP_COUNT") == 0
    resident = server.queue.resident_programs
    print(
        f"{sum(result.cycles for result in results):,} cycles, {resident.loads} programs loaded in "
        f"{resident.load_cycles:,}, most delayed {max(result.delay for result in results)}"
    )
