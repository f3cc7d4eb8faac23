"""The generators there are."""

from compiler.specialize.fusing import Fusing
from compiler.specialize.generator import Generator
from compiler.specialize.polish import Polish
from compiler.specialize.tiling import Tilings

#: In the order in which they are asked: programs are polished when schedules are found.
GENERATORS: dict[str, type[Generator]] = {each.name: each for each in (Fusing, Tilings, Polish)}
