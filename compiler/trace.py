"""What every stage of a compilation made."""

from dataclasses import dataclass, field

from compiler.codegen.command_stream import CommandStream
from compiler.ir.graph import Graph
from compiler.lowering.partition import GraphPart
from compiler.runtime.compiled import CompiledNetwork
from hw.config import MlaConfig


@dataclass(frozen=True)
class Dram:
    """The memory.

    Parameters
    ----------
    latency : int
        Cycles from address to first beat.
    bytes_per_cycle : int or None
        None: a row of the machine.
    """

    latency: int = 100
    bytes_per_cycle: int | None = None


@dataclass(eq=False)
class CompilationTrace:
    """Filled in by `compile`, for who wants to look at the stages.

    Parameters
    ----------
    config : MlaConfig
        The machine.
    rounding : str
        Whose rounding.
    dram : Dram
        The memory that pictures over time reckon with.
    graphs : dict
        By the name of the stage, in order: imported, one for each pass, quantized.
    parts : list of Part
        What runs on the accelerator and on the host in turn.
    host : dict
        Why a node runs on the host.
    makings : list of Making
        One for each part on the accelerator.
    network : Network or None
        What came of it.
    """

    config: MlaConfig = field(default_factory=MlaConfig)
    rounding: str = "reference"
    dram: Dram = field(default_factory=Dram)
    graphs: dict[str, Graph] = field(default_factory=dict)
    parts: list[GraphPart] = field(default_factory=list)
    host: dict[str, str] = field(default_factory=dict)
    makings: list[CommandStream] = field(default_factory=list)
    network: CompiledNetwork | None = None
