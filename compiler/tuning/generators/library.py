"""The generators by name. To add one, write its class and register it here (docs/generators.md)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from compiler.util.plugin_registry import Registry

if TYPE_CHECKING:
    from compiler.tuning.generators.generator import Generator

#: In the order in which they are asked: programs are polished when schedules are found.
GENERATORS: "Registry[Generator]" = Registry(
    "generator",
    group="mla.generators",
    base="compiler.tuning.generators.generator:Generator",
    guard="compiler.tuning.generators.plugin:guarded_generator",
    classes={
        "fusion": "compiler.tuning.generators.fusion:FusionGenerator",
        "tiling": "compiler.tuning.generators.tiling:TilingGenerator",
        "polish": "compiler.tuning.generators.peephole:PeepholeGenerator",
    },
)

#: A generator as a user names it.
Given = "str | type[Generator] | Generator"


def generators_of(given: "Given | Sequence[Given]") -> "list[Generator]":
    """The generators that a user asked for.

    Parameters
    ----------
    given : str, class, instance, or sequence of them
        A name, `module:Class`, a subclass of Generator, or an instance of one, which is taken as it is.

    Raises
    ------
    InputError
        There is no such generator, or it cannot be made without arguments.
    """
    from compiler.tuning.generators.generator import Generator

    if isinstance(given, str | type | Generator):
        given = [given]
    return [each if isinstance(each, Generator) else GENERATORS.resolve(each)() for each in given]
