"""Values of a compiled network's manifest, checked; ValueError says what is wrong."""

from collections.abc import Sequence
from typing import Any

from compiler.ir.tensor import Tensor


def typed(value: Any, kind: type, what: str) -> Any:
    """The value, which must be of a type; `what` it is, for the error."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise ValueError(f"{what} must be {kind.__name__}")
    return value


def same(made: Tensor, used: Tensor) -> None:
    """A tensor is the same wherever the file names it."""
    one, other = (f"{t.name!r} of {t.dtype}{list(t.shape)}" for t in (made, used))
    if one != other:
        raise ValueError(f"{one} is taken as {other}")


def by_name(tensors: Sequence[Tensor]) -> list[Tensor]:
    """In the order of their names."""
    return sorted(tensors, key=lambda tensor: tensor.name)


def tuples(value: Any) -> Any:
    """Lists of JSON as the tuples they were."""
    return tuple(tuples(each) for each in value) if isinstance(value, list) else value
