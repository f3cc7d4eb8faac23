"""Compiler from models to programs of the accelerator, and the tools that run, measure and improve the programs.

The names in `__all__` are the public interface of the project. `import compiler` alone loads none of them; each is
imported when it is first used. Everything else in the packages `compiler`, `cosim` and `hw` may change between
versions. The command line `mla` offers the same functions (`mla --help`).

Examples
--------
>>> import compiler
>>> network = compiler.compile("network.tflite", target="n4")
>>> with compiler.open_device(network, "golden") as device:
...     outputs = compiler.Session(device, network).run({"image": image})
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compiler.api import compile, prune
    from compiler.options import AccuracyBudget, CompileOptions
    from compiler.runtime.compiled import CompiledNetwork
    from compiler.runtime.device import open_device
    from compiler.runtime.session import Session
    from compiler.schedule.schedule import Schedule
    from compiler.tuning.generators.generator import Generator
    from compiler.tuning.search.method import SearchMethod
    from compiler.tuning_api import tune

__version__ = "0.1.0"

__all__ = [
    "AccuracyBudget",
    "CompileOptions",
    "CompiledNetwork",
    "Generator",
    "Schedule",
    "SearchMethod",
    "Session",
    "compile",
    "open_device",
    "prune",
    "tune",
]

#: Where each public name is defined.
_DEFINITIONS = {
    "AccuracyBudget": "compiler.options.AccuracyBudget",
    "CompileOptions": "compiler.options.CompileOptions",
    "CompiledNetwork": "compiler.runtime.compiled.CompiledNetwork",
    "Generator": "compiler.tuning.generators.generator.Generator",
    "Schedule": "compiler.schedule.schedule.Schedule",
    "SearchMethod": "compiler.tuning.search.method.SearchMethod",
    "Session": "compiler.runtime.session.Session",
    "compile": "compiler.api.compile",
    "open_device": "compiler.runtime.device.open_device",
    "prune": "compiler.api.prune",
    "tune": "compiler.tuning_api.tune",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _DEFINITIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _DEFINITIONS[name].rpartition(".")
    value = globals()[name] = getattr(importlib.import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
