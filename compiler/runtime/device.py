"""Opens the device that a network runs on."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from compiler.options import USUAL
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import dram_bytes
from compiler.util import checks
from cosim.device import Device
from cosim.golden import GoldenDevice
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from cosim.rtl.rtl_device import RtlDevice

#: What `open_device` can open.
KINDS = ("rtl", "golden")

_log = logging.getLogger(__name__)


def open_device(
    network: CompiledNetwork,
    kind: str = "rtl",
    samples: int = 1,
    latency: int = USUAL.latency,
    bytes_per_cycle: float | None = USUAL.bytes_per_cycle,
    say: Callable[[str], None] = _log.info,
) -> Device:
    """Open a machine with as much DRAM as a network needs. Use it as a context manager, or call its `close`.

    Parameters
    ----------
    network : CompiledNetwork
        The network that will run; its target decides the size of the machine.
    kind : str
        "rtl": the chip's Verilog, simulated cycle by cycle; "golden": the golden model, which is faster, gives the same
        outputs and counts no cycles.
    samples : int
        Samples that have room in DRAM at the same time, as in `Session(device, network, samples)`.
    latency : int
        Cycles from the address of a DRAM read to its first beat; the golden model has no time.
    bytes_per_cycle : float or None
        DRAM bandwidth, reads and writes together; None: N bytes, one beat of the bus.
    say : callable
        Gets a line of text before work that may take minutes; logged if left out.

    Raises
    ------
    InputError
        There is no such kind, or a number is out of range.
    WorkError
        The simulator cannot be built or started.

    Examples
    --------
    >>> with compiler.open_device(network, "golden") as device:
    ...     outputs = compiler.Session(device, network).run({"image": image})
    """
    checks.of_type("network", network, CompiledNetwork, "a compiled network")
    samples = checks.integer("samples", samples, 1)
    if kind not in KINDS:
        raise InputError(f"kind must be {' or '.join(KINDS)}, not {shown(kind)}")
    if kind == "golden":
        return GoldenDevice(network.config, dram_bytes(network, samples))
    return open_rtl(network, samples, latency, bytes_per_cycle, say)


def open_rtl(
    network: CompiledNetwork,
    samples: int,
    latency: int,
    bytes_per_cycle: float | None,
    say: Callable[[str], None],
    *,
    probe: bool = False,
) -> "RtlDevice":
    """The RTL for a network; with `probe` it can record what its units do. Other parameters as in `open_device`."""
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
