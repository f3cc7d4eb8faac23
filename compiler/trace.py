"""Intermediate results of a compilation."""

from dataclasses import dataclass, field

from compiler.codegen.executable import CommandStream
from compiler.ir.graph import Graph
from compiler.lowering.partition import GraphPart
from compiler.runtime.compiled import CompiledNetwork
from hw.config import MlaConfig


@dataclass(frozen=True)
class Dram:
    """DRAM timing for visualizations.

    Parameters
    ----------
    latency : int
        Cycles from an address to its first data beat.
    bytes_per_cycle : int or None
        Bandwidth in bytes per cycle; None: a row of n bytes per cycle.
    """

    latency: int = 100
    bytes_per_cycle: int | None = None


@dataclass(eq=False)
class CompilationTrace:
    """Intermediate results of all stages, filled in by `compile`.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration compiled for.
    rounding : str
        Name of the rounding, as in `compile`.
    dram : Dram
        DRAM timing assumed by timeline visualizations.
    graphs : dict
        Graphs by stage in order: imported, after each pass, quantized.
    parts : list of GraphPart
        Parts of the graph that alternate between accelerator and host.
    host : dict
        Reason why a node runs on the host, by node.
    streams : list of CommandStream
        Command stream of each part on the accelerator.
    network : CompiledNetwork or None
        The compiled network.
    """

    config: MlaConfig = field(default_factory=MlaConfig)
    rounding: str = "reference"
    dram: Dram = field(default_factory=Dram)
    graphs: dict[str, Graph] = field(default_factory=dict)
    parts: list[GraphPart] = field(default_factory=list)
    host: dict[str, str] = field(default_factory=dict)
    streams: list[CommandStream] = field(default_factory=list)
    network: CompiledNetwork | None = None
