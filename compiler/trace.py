"""Intermediate results of a compilation."""

from dataclasses import dataclass, field

from compiler.codegen.executable import CommandStream
from compiler.ir.graph import Graph
from compiler.lowering.partition import GraphPart
from compiler.options import DEFAULT_DRAM, DramTiming
from compiler.passes.redundant_nodes import Removed
from compiler.runtime.compiled import CompiledNetwork
from hw.config import MlaConfig


@dataclass(eq=False)
class CompilationTrace:
    """Intermediate results of all stages, filled in by `compile`.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration of the target.
    rounding : str
        Name of the rounding, as in `compile`.
    dram : DramTiming
        DRAM timing assumed by timeline visualizations.
    graphs : dict
        Graphs by stage, in order: as imported, after each pass, after quantization, and without redundant nodes and
        channels.
    removed : tuple of Removed
        Redundant nodes and channels.
    parts : list of GraphPart
        Parts of the graph, which alternate between accelerator and host.
    host : dict
        Reasons why nodes run on the host, by node name.
    streams : list of CommandStream
        Command stream of each part on the accelerator.
    network : CompiledNetwork or None
        The compiled network.
    """

    config: MlaConfig = field(default_factory=MlaConfig)
    rounding: str = "reference"
    dram: DramTiming = DEFAULT_DRAM
    graphs: dict[str, Graph] = field(default_factory=dict)
    removed: tuple[Removed, ...] = ()
    parts: list[GraphPart] = field(default_factory=list)
    host: dict[str, str] = field(default_factory=dict)
    streams: list[CommandStream] = field(default_factory=list)
    network: CompiledNetwork | None = None
