"""What every stage of a compilation made."""

from dataclasses import dataclass, field

from compiler.codegen.making import Making
from compiler.ir.graph import Graph
from compiler.lower.partition import Part
from compiler.network import Network
from hw.config import MlaConfig


@dataclass(eq=False)
class Record:
    """Filled in by `compile`, for who wants to look at the stages.

    Parameters
    ----------
    config : MlaConfig
        The machine.
    rounding : str
        Whose rounding.
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
    graphs: dict[str, Graph] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    host: dict[str, str] = field(default_factory=dict)
    makings: list[Making] = field(default_factory=list)
    network: Network | None = None
