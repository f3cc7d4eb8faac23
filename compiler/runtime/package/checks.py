"""Checks of manifest values of compiled networks; errors are ValueErrors."""

from collections.abc import Sequence
from typing import Any

from compiler.ir.tensor import Tensor


def typed(value: Any, kind: type, what: str) -> Any:
    """Check the type of a value; `what` names it in the error."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise ValueError(f"{what} must be {kind.__name__}")
    return value


def same(made: Tensor, used: Tensor) -> None:
    """Check that two descriptions of a tensor agree."""
    one, other = (f"{t.name!r} of {t.dtype}{list(t.shape)}" for t in (made, used))
    if one != other:
        raise ValueError(f"{one} is used as {other}")


def by_name(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Sort tensors by name."""
    return sorted(tensors, key=lambda tensor: tensor.name)


def tuples(value: Any) -> Any:
    """Convert nested JSON lists to tuples."""
    return tuple(tuples(each) for each in value) if isinstance(value, list) else value
