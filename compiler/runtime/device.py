"""Opens the device that a network runs on."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import dram_bytes
from cosim.device import Device
from cosim.golden import GoldenDevice

if TYPE_CHECKING:
    from cosim.rtl.rtl_device import RtlDevice


def open_device(
    network: CompiledNetwork,
    kind: str,
    samples: int,
    latency: int,
    bytes_per_cycle: float,
    say: Callable[[str], None],
) -> Device:
    """Open a device for a network: the RTL ("rtl") or the golden model ("golden"), with DRAM for `samples` samples."""
    if kind == "golden":
        return GoldenDevice(network.config, dram_bytes(network, samples))
    return open_rtl(network, samples, latency, bytes_per_cycle, say)


def open_rtl(
    network: CompiledNetwork,
    samples: int,
    latency: int,
    bytes_per_cycle: float,
    say: Callable[[str], None],
    *,
    probe: bool = False,
) -> "RtlDevice":
    """Open the RTL simulation for a network; with `probe` it can record the activity of its units."""
    from compiler.util.progress import building
    from cosim.rtl.build import Variant
    from cosim.rtl.rtl_device import RtlDevice

    say("opening the machine")
    size, variant = dram_bytes(network, samples), Variant(probe=probe)
    return RtlDevice(
        network.config,
        size,
        latency=latency,
        bytes_per_cycle=bytes_per_cycle,
        variant=variant,
        monitor=building,
    )
