"""Board descriptions: FPGA device, clock, and the pins of the scan harness."""

from dataclasses import dataclass, field

from hw.boards.ecp5.device import Ecp5, Pll
from hw.boards.fpga_device import FpgaDevice
from hw.errors import InputError, shown


@dataclass(frozen=True, kw_only=True)
class Board:
    """A board with an FPGA.

    Parameters
    ----------
    name, part : str
        Names of the board and of its FPGA, used in messages.
    device : FpgaDevice
        The FPGA's device model, which provides the synthesis, place-and-route and packing commands.
    input_mhz : int
        Frequency at pin `clk_in`, in MHz.
    pins : dict
        Pin (FPGA site) of each port of `hw.boards.top.BoardTop`.
    """

    name: str
    part: str
    device: FpgaDevice
    input_mhz: int
    pins: dict[str, str] = field(hash=False)

    def __post_init__(self) -> None:
        self.device.clock_mhz(self.input_mhz)

    @property
    def clock_mhz(self) -> float:
        """Clock frequency of the chip in MHz, which every placement must meet."""
        return self.device.clock_mhz(self.input_mhz)

    @property
    def bitstream(self) -> str:
        """File name of the bitstream, without its folder."""
        return self.name + self.device.bitstream_suffix

    def constraints(self) -> str:
        """Return the pin and input clock constraints in the syntax of the device's tools."""
        return self.device.constraints(self.pins, self.input_mhz)


#: Known boards. On the ULX3S, the scan pins are the first four pins of header J1, and button FIRE 2 is the reset.
BOARDS = {
    board.name: board
    for board in (
        Board(
            name="ulx3s-85f",
            part="LFE5U-85F-6BG381C",
            device=Ecp5(
                size="85k",
                package="CABGA381",
                speed="6",
                pll=Pll(reference=5, feedback=12, output=10),
                dsp_columns=(4, 13, 22, 31, 40, 49, 58, 69, 78, 87, 96, 105, 114),
                dsp_rows=(10, 34, 58),
            ),
            input_mhz=25,
            pins={"clk_in": "G2", "rst_in": "T1", "scan_in": "B11", "shift": "C11", "scan_out": "A10"},
        ),
    )
}


def find_board(name: str) -> Board:
    """Return the board with the given name, or raise InputError, which lists the known boards, if there is none."""
    if name not in BOARDS:
        raise InputError(f"board must be one of {', '.join(sorted(BOARDS))}, not {shown(name)}")
    return BOARDS[name]
