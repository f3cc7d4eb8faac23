"""The small test chip as a device, and operations that several tests share."""

from functools import cache
from pathlib import Path

from cosim.rtl.build import PLAIN, Variant
from cosim.rtl.rtl_device import RtlDevice
from hw.config import MlaConfig
from tests.support.sim_chip import ACC_WORDS, SP_WORDS, Reg, sim_verilog

N = 16
ROW = N
CONFIG = MlaConfig(n=N, sp_bytes=8 * 2 * SP_WORDS * N, acc_bytes=4 * ACC_WORDS * 4 * N)
DRAM_BYTES = 1 << 20

GO_READ, GO_WRITE, CLEAR = 1, 2, 4


@cache
def verilog() -> str:
    """Return the Verilog of the chip."""
    return sim_verilog(N)


def open_sim(dram_bytes: int = DRAM_BYTES, variant: Variant = PLAIN, seed: int = 0) -> RtlDevice:
    """Open a device with the small chip."""
    return RtlDevice(CONFIG, dram_bytes, variant=variant, seed=seed, verilog=verilog())


def traffic(
    device: RtlDevice, go: int, beats: int, *, read_base: int = 0, write_base: int = 0x8000, slow: int = 0
) -> dict[Reg, int]:
    """Transfer rows, wait for the end, and return the recorded cycles by register."""
    settings = {Reg.READ_BASE: read_base, Reg.WRITE_BASE: write_base, Reg.BEATS: beats, Reg.SLOW: slow}
    device.write_regs([*settings.items(), (Reg.STROBE, 0xF), (Reg.GO, go)])
    while device.read_reg(Reg.BUSY):
        device.run_cycles(100)
    notes = [reg for reg in Reg if reg.name.startswith(("READ_", "WRITE_"))]
    return dict(zip(notes, device.read_regs(notes), strict=True))


def is_running(pid: int) -> bool:
    """Return True if the process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
