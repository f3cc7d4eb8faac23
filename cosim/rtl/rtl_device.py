"""The RTL in Verilator as a device."""

import mmap
import os
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from cosim.device import BusProtocolError, Device, DramFault, DramTooSmallError, RegisterError
from cosim.rtl import memories, records
from cosim.rtl.build import PLAIN, Variant, build_simulator
from cosim.rtl.process import SimulatorProcess
from cosim.rtl.source import chip_verilog
from hw.config import MlaConfig
from hw.errors import InputError, WorkError

MIN_DRAM_BYTES = 4096
MAX_DRAM_BYTES = 1 << 32  # the bus has 32 address bits
REASONS = {2: "answered SLVERR", 3: "answered DECERR", 4: "was not answered within 10,000 cycles"}


class RtlDevice(Device):
    """A chip simulated by a process of its own, cycle by cycle.

    Opening one builds the simulator if the cache lacks it.

    Parameters
    ----------
    config : MlaConfig
        Size of the machine.
    dram_bytes : int
        Size of DRAM; pages are taken from memory when first touched.
    latency : int
        Cycles from the acceptance of a read's address to its first beat.
    bytes_per_cycle : float or None
        DRAM bandwidth in all; the bus width by default. Fractions are kept to a thousandth.
    variant : Variant
        Waves or line coverage built in.
    seed : int
        Fills what no reset clears with random bits; 0 fills it with zeros.
    verilog : str or None
        Text of another `mla_chip` with the pins of the machine; by default it is emitted for `config`.

    Raises
    ------
    InputError, DramTooSmallError, BuildError, ToolMissingError, DiskFullError, SimulatorDiedError
        See `cosim.device`.
    """

    def __init__(self, config: MlaConfig, dram_bytes: int = 1 << 26, *, latency: int = 100,
                 bytes_per_cycle: float | None = None, variant: Variant = PLAIN, seed: int = 0,
                 verilog: str | None = None) -> None:  # fmt: skip
        self.config = config
        self.variant = variant
        self._cycle = 0
        self._sp, self._acc = memories.scratchpad_banks(config), memories.accumulator_banks(config)
        self._timing = _timing(config, latency, bytes_per_cycle)
        _check_dram(dram_bytes)
        text = chip_verilog(config, fast=variant == PLAIN) if verilog is None else verilog
        binary = build_simulator(text, config.n, variant)
        dram_fd = os.memfd_create("mla-dram")
        try:
            os.ftruncate(dram_fd, dram_bytes)
            self.dram = np.frombuffer(mmap.mmap(dram_fd, dram_bytes), np.uint8)
            self._process = SimulatorProcess(
                binary, dram_fd=dram_fd, dram_bytes=dram_bytes, row=config.n, seed=seed
            )
        finally:
            os.close(dram_fd)
        self._request("timing", **self._timing)
        self.reset()

    @property
    def cycle(self) -> int:
        """Clock cycles since the reset."""
        return self._cycle

    @property
    def pid(self) -> int:
        """Process id of the simulator."""
        return self._process.pid

    def read_reg(self, address: int) -> int:
        """See Device."""
        return self.read_regs([address])[0]

    def read_regs(self, addresses: Sequence[int]) -> list[int]:
        """See Device; one round trip for all."""
        return self._registers([(False, address, 0) for address in addresses])["data"].tolist()

    def write_regs(self, writes: Iterable[tuple[int, int]], delay_cycles: int = 0) -> None:
        """See Device. The first address is on the pins during cycle `cycle + delay_cycles + 1`."""
        self._registers([(True, address, value) for address, value in writes], delay_cycles)

    def run_cycles(self, cycles: int) -> None:
        """See Device."""
        self._run(cycles, stop_on_irq=False)

    def wait_irq(self, timeout_cycles: int) -> bool:
        """See Device."""
        return self._run(timeout_cycles, stop_on_irq=True)

    def set_dram_timing(self, latency: int, bytes_per_cycle: float | None = None) -> None:
        """See Device."""
        self._timing = _timing(self.config, latency, bytes_per_cycle)
        self._request("timing", **self._timing)

    def set_dram_faults(self, faults: Sequence[DramFault]) -> None:
        """See Device. A fault covers every beat that touches its range."""
        self._request("faults", records.faults(faults).tobytes())

    def dram_traffic(self) -> dict[str, int]:
        """Beats of each direction that crossed the bus since the start, and bursts asked for."""
        counts = self._request("traffic")[0]["traffic"]
        return dict(zip(("read_beats", "write_beats", "bursts"), counts, strict=True))

    def read_sp(self, address: int, length: int) -> np.ndarray:
        """See Device."""
        _check_span("scratchpad bytes", address, length, self.config.sp_bytes)
        return self._read_memory(self._sp, self.config.n).reshape(-1)[address : address + length].copy()

    def write_sp(self, address: int, data: np.ndarray) -> None:
        """See Device."""
        new = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        _check_span("scratchpad bytes", address, len(new), self.config.sp_bytes)
        rows = self._read_memory(self._sp, self.config.n)
        rows.reshape(-1)[address : address + len(new)] = new
        self._write_memory(self._sp, rows)

    def read_acc(self, row: int, rows: int) -> np.ndarray:
        """See Device."""
        _check_span("accumulator rows", row, rows, self.config.acc_rows)
        return self._read_memory(self._acc, 4 * self.config.n).view("<i4")[row : row + rows].copy()

    def write_acc(self, row: int, data: np.ndarray) -> None:
        """See Device."""
        new = np.ascontiguousarray(data, "<i4").reshape(-1, self.config.n)
        _check_span("accumulator rows", row, len(new), self.config.acc_rows)
        rows = self._read_memory(self._acc, 4 * self.config.n)
        rows.view("<i4")[row : row + len(new)] = new
        self._write_memory(self._acc, rows)

    def start_waves(self, path: str | Path) -> None:
        """Record every signal to an FST file from now on; needs `Variant(waves=True)`."""
        if not self.variant.waves:
            raise InputError("waves need a device opened with Variant(waves=True)")
        self._request("waves", path=str(Path(path).absolute()))

    def stop_waves(self) -> None:
        """Finish the wave file."""
        self._request("waves", path=None)

    def write_coverage(self, path: str | Path) -> None:
        """Write the line counts so far as Verilator's coverage data; needs `Variant(coverage=True)`."""
        if not self.variant.coverage:
            raise InputError("coverage needs a device opened with Variant(coverage=True)")
        self._request("coverage", path=str(Path(path).absolute()))

    def reset(self) -> None:
        """See Device; `cycle` restarts at 0."""
        self._request("reset")

    def close(self) -> None:
        """See Device."""
        self._process.close()

    def _request(self, do: str, payload: bytes = b"", /, **arguments: Any) -> tuple[dict[str, Any], bytes]:
        header, data = self._process.request(do, payload, **arguments)
        self._cycle = header["cycle"]
        if "error" in header:
            raise WorkError(header["error"])
        if header["violation"]:
            raise BusProtocolError(f"the chip broke AXI: {header['violation']}")
        return header, data

    def _registers(self, ops: list[tuple[bool, int, int]], delay_cycles: int = 0) -> np.ndarray:
        payload = records.register_ops(ops).tobytes()
        answer = self._request("registers", payload, delay_cycles=delay_cycles)[1]
        done = np.frombuffer(answer, records.REGISTER_OP)
        for op in done[done["response"] != 0][:1]:
            kind = "write" if op["write"] else "read"
            reason = REASONS[int(op["response"])]
            raise RegisterError(f"the {kind} of register 0x{op['address']:04x} {reason}")
        return done

    def _run(self, cycles: int, *, stop_on_irq: bool) -> bool:
        if cycles < 0:
            raise InputError(f"cycles must be 0 or more, not {cycles!r}")
        return bool(self._request("run", cycles=cycles, stop_on_irq=stop_on_irq)[0]["irq"])

    def _read_memory(self, banks: memories.Banks, row_bytes: int) -> np.ndarray:
        storage = self._request("read_memory", paths=memories.paths(banks))[1]
        return memories.assemble(banks, storage, row_bytes)

    def _write_memory(self, banks: memories.Banks, rows: np.ndarray) -> None:
        self._request("write_memory", memories.take_apart(banks, rows), paths=memories.paths(banks))


def _timing(config: MlaConfig, latency: int, bytes_per_cycle: float | None) -> dict[str, int]:
    if not isinstance(latency, int) or not 1 <= latency <= 1_000_000:
        raise InputError(f"latency must be 1..1000000 cycles, not {latency!r}")
    rate = Fraction(config.n if bytes_per_cycle is None else bytes_per_cycle).limit_denominator(1000)
    if not 0 < rate <= 1_000_000:
        raise InputError(f"bytes_per_cycle must be in 0.001..1000000, not {bytes_per_cycle!r}")
    return {"latency": latency, "num": rate.numerator, "den": rate.denominator}


def _check_dram(dram_bytes: int) -> None:
    if dram_bytes < MIN_DRAM_BYTES:
        raise DramTooSmallError(f"dram_bytes must be at least {MIN_DRAM_BYTES}, not {dram_bytes!r}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = min(MAX_DRAM_BYTES, memory)
    if dram_bytes > limit or dram_bytes % MIN_DRAM_BYTES:
        rule = f"a multiple of {MIN_DRAM_BYTES} up to {limit}"
        raise InputError(f"dram_bytes must be {rule}, not {dram_bytes!r}")


def _check_span(what: str, first: int, count: int, size: int) -> None:
    if not (first >= 0 and count >= 0 and first + count <= size):
        raise InputError(f"{what} must lie in 0..{size}, not {first}..{first + count}")
