"""Versions of ONNX's operators."""

from collections.abc import Iterable

import onnx

from hw.errors import InputError

#: Domain of ONNX's own operators.
DEFAULT = ""
#: Operators before this set broadcast by attributes of their own.
LEAST = 7


def versions_of(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """By domain; that of ONNX's own operators has two names."""
    found: dict[str, int] = {}
    for each in imports:
        domain = DEFAULT if each.domain == "ai.onnx" else each.domain
        found[domain] = max(each.version, found.get(domain, each.version))
    return found


def check_version(version: int) -> None:
    """Refuse a version of ONNX's own operators that is too old or too new to be read."""
    if version < LEAST:
        raise InputError(
            f"operator set must be {LEAST} or later, not {version}; onnx.version_converter updates it"
        )
    if version > (most := onnx.defs.onnx_opset_version()):
        raise InputError(
            f"operator set must be {most} or earlier, the last that onnx {onnx.__version__} has, not {version}"
        )
