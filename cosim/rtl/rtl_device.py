"""Device interface of the RTL, simulated with Verilator."""

import contextlib
import mmap
import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from cosim import checks
from cosim.device import SETTLED, BusProtocolError, Device, RegisterError
from cosim.dram import DramFault, check_dram_bytes
from cosim.rtl import abi, bank_map
from cosim.rtl.build import PLAIN, Variant, build_simulator
from cosim.rtl.build_progress import Monitor
from cosim.rtl.descriptors import above_standard
from cosim.rtl.process import SimulatorProcess
from cosim.rtl.verilog_cache import chip_verilog
from hw.config import MlaConfig
from hw.errors import InputError, WorkError

MAX_SEED = (1 << 31) - 1
REASONS = {2: "answered SLVERR", 3: "answered DECERR", 4: "was not answered within 10,000 cycles"}


class RtlDevice(Device):
    """Device that simulates the chip cycle by cycle in a separate process.

    If the simulator is not in the cache, it is built when the device is opened.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    dram_bytes : int
        Size of DRAM in bytes; memory pages are allocated on first access.
    latency : int
        Number of cycles from the acceptance of a read's address to its first beat.
    bytes_per_cycle : float or None
        Total DRAM bandwidth, rounded to a fraction with a denominator of at most 1000; None for the bus width per
        cycle.
    throttle : float
        Share of the cycles in which the clock of the chip is stalled, as in `set_throttle`.
    variant : Variant
        Optional features built into the simulator: waves, line coverage, probe.
    seed : int
        Seed of the random initial values of state that has no reset, up to 2**31 - 1; 0 to initialize it with zeros.
    verilog : str or None
        Verilog text of another module `mla_chip` with the same ports; None for the Verilog emitted for `config`.
    monitor : Monitor or None
        Monitor that is notified of builds of files that are not in the cache.

    Raises
    ------
    InputError, DramTooSmallError, BuildError, ToolMissingError, DiskFullError, SimulatorDiedError
        Described in `hw.errors`, `cosim.dram`, `cosim.rtl.errors` and `cosim.device`.
    """

    def __init__(
        self,
        config: MlaConfig,
        dram_bytes: int = 1 << 26,
        *,
        latency: int = 100,
        bytes_per_cycle: float | None = None,
        throttle: float = 0.0,
        variant: Variant = PLAIN,
        seed: int = 0,
        verilog: str | None = None,
        monitor: Monitor | None = None,
    ) -> None:
        self.config = config
        self.variant = variant
        self._cycle = self._stalled = 0
        self._faults: list[DramFault] = []
        #: Receives the reply to the accesses that were started and not waited for; None if there are none.
        self._started: list[bytes] | None = None
        self._restart_state: tuple[tuple[int, Fraction], Fraction, list[DramFault]] | None = None
        self._sp, self._acc = bank_map.scratchpad_banks(config), bank_map.accumulator_banks(config)
        rate = checks.bandwidth(config.beat_bytes if bytes_per_cycle is None else bytes_per_cycle)
        self._timing, self._throttle = (checks.latency(latency), rate), checks.throttle(throttle)
        dram_bytes = check_dram_bytes(dram_bytes)
        seed = checks.integer_in(seed, 0, MAX_SEED, "seed")
        binary = simulator_of(config, variant, verilog, monitor)
        dram_fd = above_standard(os.memfd_create("mla-dram"))
        try:
            os.ftruncate(dram_fd, dram_bytes)
            self.dram = np.frombuffer(mmap.mmap(dram_fd, dram_bytes), np.uint8)
            self._process = SimulatorProcess(
                binary, dram_fd=dram_fd, dram_bytes=dram_bytes, row=config.beat_bytes, seed=seed
            )
        finally:
            os.close(dram_fd)
        self._set_dram_timing(*self._timing)
        if self._throttle:
            self._set_throttle(self._throttle)
        self.reset()

    @property
    def cycle(self) -> int:
        """Number of clock cycles since reset."""
        return self._cycle

    @property
    def stalled_cycles(self) -> int:
        """Number of those cycles in which the clock of the chip was stalled."""
        return self._stalled

    @property
    def pid(self) -> int:
        """Process id of the simulator."""
        return self._process.pid

    def dram_traffic(self) -> dict[str, int]:
        """Return, by name, the number of read beats, write beats and requested bursts on the bus since the start."""
        counts = self._request("traffic")[0]["traffic"]
        return dict(zip(("read_beats", "write_beats", "bursts"), counts, strict=True))

    def start_waves(self, path: str | Path) -> None:
        """Start recording all signals to an FST file; the device must have been opened with `Variant(waves=True)`."""
        if not self.variant.waves:
            raise InputError("waves need a device opened with Variant(waves=True)")
        self._request("waves", path=str(Path(path).absolute()))

    def stop_waves(self) -> None:
        """Stop recording and close the wave file."""
        self._request("waves", path=None)

    def write_coverage(self, path: str | Path) -> None:
        """Write the line coverage counts that have been recorded so far to a file, in Verilator's coverage format.

        The device must have been opened with `Variant(coverage=True)`.
        """
        if not self.variant.coverage:
            raise InputError("coverage needs a device opened with Variant(coverage=True)")
        self._request("coverage", path=str(Path(path).absolute()))

    def start_probe(self) -> None:
        """Start recording when commands and programs start and end.

        The device must have been opened with `Variant(probe=True)`.
        """
        self._probe(True)

    def stop_probe(self) -> abi.Recording:
        """Stop recording and return the events and the bus traffic that were recorded since `start_probe`."""
        header, data = self._probe(False)
        return abi.Recording.from_bytes(data, header["events"])

    def _probe(self, on: bool) -> tuple[dict[str, Any], bytes]:
        if not self.variant.probe:
            raise InputError("recording commands needs a device opened with Variant(probe=True)")
        return self._request("probe", on=on)

    def reset(self) -> None:
        """Reset the chip (see `Device`); `cycle` restarts at 0."""
        self._request("reset")
        self.user = None

    def restart(self) -> None:
        """Reset the chip and clear its counters (see `Device`); `cycle` has the same value after every restart.

        The first restart saves the state of the chip. Later restarts restore this state, including the counts of bus
        traffic and the contents of memories, which a reset does not clear.
        """
        if self.variant.waves or self.variant.coverage or self.variant.probe:
            super().restart()
            return
        timing, throttle, faults = self._timing, self._throttle, self._faults
        self._request("restart", abi.register_ops(_operations(SETTLED)).tobytes())
        self.user = None
        if self._restart_state is None:
            self._restart_state = timing, throttle, faults
        self._timing, self._throttle, self._faults = self._restart_state
        if timing != self._timing:
            self._set_dram_timing(*timing)
        if throttle != self._throttle:
            self._set_throttle(throttle)
        if faults != self._faults:
            self._set_dram_faults(faults)

    def close(self) -> None:
        """End the simulator process (see `Device`)."""
        with contextlib.suppress(WorkError):
            self._wait_started()
        self._process.close()

    def _read_regs(self, addresses: list[int]) -> list[int]:
        return self._registers([(False, address, 0) for address in addresses])["data"].tolist()

    def _write_regs(self, writes: list[tuple[int, int]], delay_cycles: int) -> None:
        """Write registers; the address of the first write is on the pins in cycle `self.cycle + delay_cycles + 1`."""
        self._registers([(True, address, value) for address, value in writes], delay_cycles)

    def _access_regs(self, accesses: list[tuple[int, int | None]]) -> list[int]:
        done = self._registers(_operations(accesses))
        return done["data"][done["write"] == 0].tolist()

    def _run_cycles(self, cycles: int) -> None:
        self._request("run", cycles=cycles, stop_on_irq=False)

    def _wait_irq(self, timeout_cycles: int) -> bool:
        return bool(self._request("run", cycles=timeout_cycles, stop_on_irq=True)[0]["irq"])

    def _set_dram_timing(self, latency: int, rate: Fraction) -> None:
        self._request("timing", latency=latency, num=rate.numerator, den=rate.denominator)
        self._timing = latency, rate

    def _set_throttle(self, share: Fraction) -> None:
        self._request("throttle", num=share.numerator, den=share.denominator)
        self._throttle = share

    def _set_dram_faults(self, faults: list[DramFault]) -> None:
        """Set the ranges that answer with errors; every beat that overlaps a range is affected."""
        self._request("faults", abi.faults(faults).tobytes())
        self._faults = list(faults)

    def _read_sp(self, address: int, length: int) -> np.ndarray:
        return self._read_memory(self._sp, self.config.n).reshape(-1)[address : address + length].copy()

    def _write_sp(self, address: int, data: np.ndarray) -> None:
        rows = self._read_memory(self._sp, self.config.n)
        rows.reshape(-1)[address : address + len(data)] = data
        self._write_memory(self._sp, rows)

    def _read_acc(self, row: int, rows: int) -> np.ndarray:
        return self._read_memory(self._acc, 4 * self.config.n).view("<i4")[row : row + rows].copy()

    def _write_acc(self, row: int, data: np.ndarray) -> None:
        rows = self._read_memory(self._acc, 4 * self.config.n)
        rows.view("<i4")[row : row + len(data)] = data
        self._write_memory(self._acc, rows)

    def _start_accesses(
        self, groups: list[list[tuple[int, int | None]]], timeout_cycles: int
    ) -> Callable[[], list[list[int]]]:
        self._wait_started()
        ops = abi.register_ops(_operations([access for group in groups for access in group]))
        self._process.send(
            "groups", ops.tobytes(), sizes=[len(group) for group in groups], timeout=timeout_cycles
        )
        replies: list[bytes] = []
        self._started = replies

        def finish() -> list[list[int]]:
            if not replies:
                self._wait_started()
            done, at, found = _accessed(replies[0]), 0, list[list[int]]()
            for group in groups:
                mine = done[at : at + len(group)]
                found.append(mine["data"][mine["write"] == 0].tolist())
                at += len(group)
            return found

        return finish

    def _wait_started(self) -> None:
        """Wait for the accesses that were started last, unless they have been waited for."""
        if self._started is not None:
            replies, self._started = self._started, None
            replies.append(self._accepted(*self._process.receive())[1])

    def _request(self, do: str, payload: bytes = b"", /, **arguments: Any) -> tuple[dict[str, Any], bytes]:
        self._wait_started()
        return self._accepted(*self._process.request(do, payload, **arguments))

    def _accepted(self, header: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        self._cycle, self._stalled = header["cycle"], header["stalled"]
        if "error" in header:
            raise WorkError(header["error"])
        if header["violation"]:
            raise BusProtocolError(f"the chip violated the AXI protocol: {header['violation']}")
        return header, data

    def _registers(self, ops: list[tuple[bool, int, int]], delay_cycles: int = 0) -> np.ndarray:
        return _accessed(
            self._request("registers", abi.register_ops(ops).tobytes(), delay_cycles=delay_cycles)[1]
        )

    def _read_memory(self, banks: bank_map.Banks, row_bytes: int) -> np.ndarray:
        storage = self._request("read_memory", paths=bank_map.paths(banks))[1]
        return bank_map.join_banks(banks, storage, row_bytes)

    def _write_memory(self, banks: bank_map.Banks, rows: np.ndarray) -> None:
        self._request("write_memory", bank_map.split_banks(banks, rows), paths=bank_map.paths(banks))


def simulator_of(
    config: MlaConfig, variant: Variant = PLAIN, verilog: str | None = None, monitor: Monitor | None = None
) -> Path:
    """Return the path of a chip's simulator, after building it if it is not in the cache.

    The parameters and the exceptions are those of `RtlDevice`.
    """
    if verilog is None:
        verilog = chip_verilog(config, fast=variant.fast, probe=variant.probe, monitor=monitor)
    return build_simulator(verilog, config.n, variant, monitor, bus_bytes=config.bus_bytes)


def _accessed(answer: bytes) -> np.ndarray:
    """Return the executed register accesses; raise RegisterError if one was answered with an error."""
    done = np.frombuffer(answer, abi.REGISTER_OP)
    for op in done[done["response"] != 0][:1]:
        kind = "write" if op["write"] else "read"
        reason = REASONS[int(op["response"])]
        raise RegisterError(f"the {kind} of register 0x{op['address']:04x} {reason}")
    return done


def _operations(accesses: Sequence[tuple[int, int | None]]) -> list[tuple[bool, int, int]]:
    return [(value is not None, address, value or 0) for address, value in accesses]
