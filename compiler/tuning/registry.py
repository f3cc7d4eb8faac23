"""Registries of search methods and of generators, built-in and from plug-ins.

To add a built-in search method or generator, write its class and register the class here (docs/tuning.md,
docs/generators.md).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from compiler.util.plugin_registry import Registry

if TYPE_CHECKING:
    from compiler.tuning.generators.generator import Generator
    from compiler.tuning.search.method import SearchMethod

METHODS: "Registry[SearchMethod]" = Registry(
    "search method",
    group="mla.search_methods",
    base="compiler.tuning.search.method:SearchMethod",
    guard="compiler.tuning.plugin_errors:guarded_method",
    classes={
        "portfolio": "compiler.tuning.search.portfolio:PortfolioSearch",
        "random": "compiler.tuning.search.method:RandomSearch",
        "evolution": "compiler.tuning.search.method:EvolutionarySearch",
        "coordinate": "compiler.tuning.search.coordinate:CoordinateSearch",
        "strategies": "compiler.tuning.search.coordinate:StrategySearch",
        "hpm": "compiler.tuning.search.model_guided:ModelGuidedSearch",
        "generators": "compiler.tuning.search.generator_search:GeneratorSearch",
        "edits": "compiler.tuning.search.program_edit_search:ProgramEditSearch",
    },
)
#: Name of the language-model method: `GeneratorSearch` with the model as its only generator.
LLM = "llm"
#: Name of the method that measures the best known schedules of the database.
RETRIEVAL = "retrieval"
#: Name of the default method: a portfolio of the others.
PORTFOLIO = "portfolio"
#: Name of the method that uses generators.
GENERATORS_METHOD = "generators"


#: Generators in the order in which they are queried: programs are rewritten after schedules are found.
GENERATORS: "Registry[Generator]" = Registry(
    "generator",
    group="mla.generators",
    base="compiler.tuning.generators.generator:Generator",
    guard="compiler.tuning.plugin_errors:guarded_generator",
    classes={
        "fusion": "compiler.tuning.generators.included:FusionGenerator",
        "nearest": "compiler.llm.generate.candidate_pool:NearestGenerator",
        "tiling": "compiler.tuning.generators.included:TilingGenerator",
        "peephole": "compiler.tuning.generators.included:PeepholeGenerator",
    },
    aliases={"polish": "peephole"},
)

#: Types by which users specify a generator: a name, a class or an instance.
GeneratorSpec = "str | type[Generator] | Generator"


def make_generators(given: "GeneratorSpec | Sequence[GeneratorSpec]") -> "list[Generator]":
    """Create the generators that a user specified.

    Parameters
    ----------
    given : str, class, instance, or sequence of them
        A name, `module:Class`, a subclass of Generator, or an instance of a subclass, which is used unchanged.

    Raises
    ------
    InputError
        A generator does not exist, or its constructor needs arguments.
    """
    from compiler.tuning.generators.generator import Generator

    if isinstance(given, str | type | Generator):
        given = [given]
    return [each if isinstance(each, Generator) else GENERATORS.resolve(each)() for each in given]
