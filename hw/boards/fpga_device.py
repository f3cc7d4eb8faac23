"""Base class of FPGA devices: the primitives for clock and reset, and the tool commands."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from amaranth.hdl import Module, Value

from hw.boards.toolchain import Tool


class FpgaDevice(ABC):
    """An FPGA that is supported by Yosys for synthesis and by nextpnr for place and route.

    Each device family is a subclass; a board refers to an instance. All file names are relative to the build folder.
    """

    #: nextpnr's cell name of each resource in the report: lut, ff, lut_ram, dsp, bram.
    resources: ClassVar[dict[str, str]]
    #: Place-and-route tool.
    nextpnr: ClassVar[Tool]
    #: Tool that generates the bitstream from the router's result.
    packer: ClassVar[Tool]
    #: Suffix of the bitstream's file name, including the dot.
    bitstream_suffix: ClassVar[str]
    #: Name of the file that the result of `constraints` is written to.
    constraints_file: ClassVar[str]
    #: Yosys command that synthesizes module `top` and writes `top.json`.
    synthesis: ClassVar[str]

    @abstractmethod
    def clock_mhz(self, input_mhz: float) -> float:
        """Return the frequency of the chip's clock, in MHz.

        Parameters
        ----------
        input_mhz : float
            Frequency of the board's oscillator, in MHz.

        Raises
        ------
        InputError
            The device cannot generate its clock from this frequency.
        """

    @abstractmethod
    def clock_and_reset(self, m: Module, clk_in: Value, rst_in: Value) -> None:
        """Drive the clock of domain sync from the oscillator, and reset the device's registers.

        Parameters
        ----------
        m : Module
            Module that contains the clock domain and to which the primitives are added.
        clk_in, rst_in : Value
            Signals of the oscillator and of the button (high: reset).
        """

    @abstractmethod
    def constraints(self, pins: dict[str, str], input_mhz: float) -> str:
        """Return the pin and input clock constraints in the vendor's syntax.

        Parameters
        ----------
        pins : dict
            Name of the FPGA site of each port.
        input_mhz : float
            Frequency at port `clk_in`, in MHz.
        """

    @abstractmethod
    def adapt_netlist(self, netlist: Path) -> None:
        """Edit the synthesized netlist before placement.

        Parameters
        ----------
        netlist : Path
            JSON file written by Yosys; rewritten in place.
        """

    @abstractmethod
    def place_arguments(self, seed: int, placed: str) -> list[str]:
        """Return the nextpnr arguments that place `top.json` and write the placed netlist to `placed`."""

    @abstractmethod
    def route_arguments(self, seed: int, placed: str, routed: str, report: str) -> list[str]:
        """Return the nextpnr arguments that route `placed`, and write the configuration to `routed` and a JSON report
        to `report`.
        """

    @abstractmethod
    def pack_arguments(self, routed: str, bitstream: str) -> list[str]:
        """Return the packer arguments that convert the router's configuration `routed` to a bitstream."""
