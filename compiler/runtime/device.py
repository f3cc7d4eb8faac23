"""Devices for compiled networks: the simulated chip and the golden model."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.options import DEFAULT_DRAM
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import dram_bytes
from compiler.util import checks
from cosim.device import Device
from cosim.golden import GoldenDevice
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from cosim.rtl.rtl_device import RtlDevice

#: Device kinds that `open_device` supports.
KINDS = ("rtl", "golden")

_log = logging.getLogger(__name__)


def open_device(
    network: CompiledNetwork,
    kind: str = "rtl",
    samples: int = 1,
    latency: int = DEFAULT_DRAM.latency,
    bytes_per_cycle: float | None = DEFAULT_DRAM.bytes_per_cycle,
    say: Callable[[str], None] = _log.info,
    *,
    waves: str | Path | None = None,
    throttle: float = 0.0,
) -> Device:
    """Open a device with enough DRAM for a network; use the device as a context manager, or call its `close`.

    Parameters
    ----------
    network : CompiledNetwork
        Network to run; its target determines the configuration of the device.
    kind : str
        "rtl": the chip's Verilog, simulated cycle by cycle; "golden": the golden model, which is faster, gives the same
        outputs and counts no cycles.
    samples : int
        Number of samples held in DRAM at the same time, as in `Session(device, network, samples)`.
    latency : int
        Cycles from the address of a DRAM read to its first beat; ignored by the golden model, which has no clock.
    bytes_per_cycle : float or None
        DRAM bandwidth of reads and writes combined; None for N bytes, one bus beat per cycle.
    say : callable
        Called with a line of text before work that may take minutes; by default, the text is logged.
    waves : path or None
        FST file in which to record all signals of the chip, for GTKWave or Surfer; "rtl" only. The simulator for it is
        built separately, and is slower.
    throttle : float
        Share of the cycles, 0 to 0.9, in which the clock of the chip is stalled while the DRAM continues; ignored by
        the golden model.

    Raises
    ------
    InputError
        The kind is unknown, a number is out of range, or waves are requested of the golden model.
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
        if waves is not None:
            raise InputError("the golden model has no signals: waves need the device rtl")
        return GoldenDevice(network.config, dram_bytes(network, samples))
    device = open_rtl(
        network, samples, latency, bytes_per_cycle, say, waves=waves is not None, throttle=throttle
    )
    if waves is not None:
        try:
            device.start_waves(waves)
        except BaseException:
            device.close()
            raise
    return device


def open_rtl(
    network: CompiledNetwork,
    samples: int,
    latency: int,
    bytes_per_cycle: float | None,
    say: Callable[[str], None],
    *,
    probe: bool = False,
    waves: bool = False,
    throttle: float = 0.0,
) -> "RtlDevice":
    """Open the simulated chip; the other parameters are those of `open_device`.

    Parameters
    ----------
    probe : bool
        True for a simulator that can record the activity of the units.
    waves : bool
        True for a simulator that can record all signals.
    """
    from compiler.util.progress import building
    from cosim.rtl.build import Variant
    from cosim.rtl.rtl_device import RtlDevice

    say("opening the simulated chip")
    size, variant = dram_bytes(network, samples), Variant(waves=waves, probe=probe)
    return RtlDevice(
        network.config,
        size,
        latency=latency,
        bytes_per_cycle=bytes_per_cycle,
        throttle=throttle,
        variant=variant,
        monitor=building,
    )
