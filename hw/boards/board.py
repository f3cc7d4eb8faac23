"""Board descriptions: FPGA device, clock, and the pins of the scan harness."""

from dataclasses import dataclass, field

from hw.errors import InputError, shown


@dataclass(frozen=True, kw_only=True)
class Pll:
    """Dividers of an ECP5 PLL whose feedback is its own output: output = input * feedback / reference.

    Parameters
    ----------
    reference, feedback, output : int
        CLKI_DIV, CLKFB_DIV and CLKOP_DIV; the oscillator, output frequency
        times `output`, must be in 400..800 MHz.
    """

    reference: int
    feedback: int
    output: int


@dataclass(frozen=True, kw_only=True)
class Board:
    """A board with a Lattice ECP5.

    Parameters
    ----------
    name, part : str
        Names of the board and the device, for messages.
    device : str
        nextpnr's name of the device's size.
    package, speed : str
        Device package and speed grade.
    input_mhz : int
        Frequency at pin `clk_in`.
    pll : Pll
        From there to the chip's clock.
    pins : dict
        Site of each port of `hw.boards.top.BoardTop`.
    dsp_columns, dsp_rows : tuple of int
        Positions of the device's blocks of four multipliers.
    """

    name: str
    part: str
    device: str
    package: str
    speed: str
    input_mhz: int
    pll: Pll
    pins: dict[str, str] = field(hash=False)
    dsp_columns: tuple[int, ...] = ()
    dsp_rows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        oscillator = self.clock_mhz * self.pll.output
        if not 400 <= oscillator <= 800:
            raise InputError(f"the PLL's oscillator must run at 400..800 MHz, not {oscillator!r}")

    @property
    def clock_mhz(self) -> float:
        """Frequency of the chip, which every placement must reach."""
        return self.input_mhz * self.pll.feedback / self.pll.reference

    def multiplier(self, block: int, row: int, number: int) -> str | None:
        """The placer's name of a multiplier: its block in a row, the row, its number in the block; None if the device
        has none there.
        """
        if block >= len(self.dsp_columns) or row >= len(self.dsp_rows):
            return None
        offset = (0, 1, 4, 5)[number]
        return f"X{self.dsp_columns[block] + offset}/Y{self.dsp_rows[row]}/MULT18_{offset}"

    def constraints(self) -> str:
        """The pins and the input clock in Lattice's LPF syntax."""
        lines = []
        for port, site in self.pins.items():
            lines += [f'LOCATE COMP "{port}" SITE "{site}";', f'IOBUF PORT "{port}" IO_TYPE=LVCMOS33;']
        lines.append(f'FREQUENCY PORT "clk_in" {self.input_mhz} MHZ;')
        return "\n".join(lines) + "\n"


#: Known boards. The ULX3S scan pins are the first four of header J1; its button FIRE 2 resets.
BOARDS = {
    board.name: board
    for board in (
        Board(
            name="ulx3s-85f",
            part="LFE5U-85F-6BG381C",
            device="85k",
            package="CABGA381",
            speed="6",
            input_mhz=25,
            pll=Pll(reference=5, feedback=12, output=10),
            pins={"clk_in": "G2", "rst_in": "T1", "scan_in": "B11", "shift": "C11", "scan_out": "A10"},
            dsp_columns=(4, 13, 22, 31, 40, 49, 58, 69, 78, 87, 96, 105, 114),
            dsp_rows=(10, 34, 58),
        ),
    )
}


def find_board(name: str) -> Board:
    """The board of that name; InputError lists the known ones."""
    if name not in BOARDS:
        raise InputError(f"board must be one of {', '.join(sorted(BOARDS))}, not {shown(name)}")
    return BOARDS[name]
