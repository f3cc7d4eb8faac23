"""Sizes of dimensions that an ONNX file only names."""

from collections.abc import Mapping
from dataclasses import replace

from compiler.frontends.onnx.node import Declared
from hw.errors import InputError, shown


def with_sizes(inputs: list[Declared], sizes: Mapping[str, int]) -> list[Declared]:
    """Inputs with all their sizes.

    Parameters
    ----------
    inputs : list of Declared
        As the file has them.
    sizes : dict
        By the name of a dimension, or by input.number for one without a name. Others that come first are 1, and so
        are those of the same name elsewhere: they are the batch.

    Raises
    ------
    InputError
        Sizes are missing, of which all are named, or nothing is called as one of them.
    """
    batches = {v.shape[0] for v in inputs if v.shape and isinstance(v.shape[0], str)}
    used: set[str] = set()
    missing: dict[str, str] = {}
    made = [replace(v, shape=tuple(_sizes(v, batches, sizes, used, missing))) for v in inputs]
    if missing:
        dimensions, have = " and ".join(missing.values()), "has" if len(missing) == 1 else "have"
        options, them = (
            " ".join(f"--size {name}=N" for name in missing),
            "it" if len(missing) == 1 else "them",
        )
        raise InputError(f"{dimensions} {have} no size; give {them} as {options}")
    unused = [name for name in sizes if name not in used]
    if unused:
        raise InputError(f"no input has a dimension {shown(unused[0])} without a size")
    return made


def _sizes(
    declared: Declared, batches: set, sizes: Mapping[str, int], used: set[str], missing: dict[str, str]
) -> list[int]:
    """Sizes of an input; `missing` gets dimensions in words by the name of a size that nobody gave."""
    if declared.shape is None:
        raise InputError(f"input {shown(declared.name)} must have a shape")
    made: list[int] = []
    for i, size in enumerate(declared.shape):
        place = f"{declared.name}.{i}"
        name = size if isinstance(size, str) else place
        given = [key for key in (name, place) if key in sizes]
        used.update(given)
        if isinstance(size, int):
            made.append(size)
        elif given:
            made.append(sizes[given[0]])
        elif i == 0 or name in batches:
            made.append(1)
        else:
            missing.setdefault(name, f"dimension {i} of input {shown(declared.name)}")
            made.append(1)
    return made
