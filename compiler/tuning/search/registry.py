"""Registry of search methods, built-in and from plug-ins."""

from typing import TYPE_CHECKING

from compiler.util.plugin_registry import Registry

if TYPE_CHECKING:
    from compiler.tuning.search.method import SearchMethod

METHODS: "Registry[SearchMethod]" = Registry(
    "search method",
    group="mla.search_methods",
    base="compiler.tuning.search.method:SearchMethod",
    guard="compiler.tuning.plugin_errors:guarded_method",
    classes={
        "random": "compiler.tuning.search.random_search:RandomSearch",
        "evolution": "compiler.tuning.search.evolution:EvolutionarySearch",
        "coordinate": "compiler.tuning.search.coordinate:CoordinateSearch",
        "hpm": "compiler.tuning.search.model_guided:ModelGuidedSearch",
        "generators": "compiler.tuning.search.generator_search:GeneratorSearch",
        "edits": "compiler.tuning.search.program_edit_search:ProgramEditSearch",
    },
)
#: Name of the language-model method: `GeneratorSearch` with the model as its only generator.
LLM = "llm"
#: Name of the method that uses generators.
GENERATORS_METHOD = "generators"
