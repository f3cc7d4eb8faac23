"""First step of a simulator process: cocotb without pytest.

cocotb imports pytest for tests that expect exceptions, of which a simulator has none. That import takes half of the CPU
time in which a simulator starts. This module is imported before cocotb, so it imports nothing of this project.
"""

import sys
from types import ModuleType, SimpleNamespace


class NeverRaisedError(Exception):
    """Exception that takes the place of that which pytest raises if an expected exception does not occur."""


def omit_pytest() -> None:
    """Replace pytest by modules with the names that cocotb imports; cocotb uses none of them in a simulator."""
    names = {
        "pytest": {"raises": SimpleNamespace(Exception=NeverRaisedError)},
        "_pytest": {},
        "_pytest.assertion": {"install_importhook": None},
        "_pytest.config": {"Config": None},
    }
    for name, contents in names.items():
        module = ModuleType(name)
        vars(module).update(contents)
        sys.modules[name] = module
