"""The search methods by name. To add one, write its class and register it here (docs/tuning.md)."""

from typing import TYPE_CHECKING

from compiler.registry import Registry

if TYPE_CHECKING:
    from compiler.search.method import Method

METHODS: "Registry[Method]" = Registry(
    "search method",
    group="mla.search_methods",
    base="compiler.search.method:Method",
    guard="compiler.search.plugin:guarded_method",
    classes={
        "random": "compiler.search.drawn:RandomSearch",
        "evolution": "compiler.search.evolution:Evolution",
        "coordinate": "compiler.search.coordinate:Coordinate",
        "hpm": "compiler.search.guided:Guided",
        "generators": "compiler.search.generated:Generated",
        "edits": "compiler.search.edited:Edited",
    },
)
#: The method that asks a language model: `Generated` with that model as its only generator.
LLM = "llm"
#: The method that asks generators.
GENERATORS_METHOD = "generators"
