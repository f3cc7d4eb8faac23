"""Persistent cache of safety proofs: a stream that the same validator has proved safe is not validated again.

An entry only records that a stream passed. Its key is a digest of everything that the proof depends on: the words of
the programs, operands, windows, the hardware configuration, and the sources of the validator.
"""

import struct
from collections.abc import Sequence
from dataclasses import asdict

from compiler.cache.content_store import ContentStore
from compiler.cache.digest import name, version
from compiler.validate import MacroCall, validate
from cosim.semantics.command_checks import DramWindow
from hw.config import MlaConfig

_KIND = "proof"
_PASSED = b"passed"


def prove(
    config: MlaConfig,
    calls: Sequence[MacroCall],
    windows: Sequence[DramWindow],
    store: ContentStore | None = None,
) -> None:
    """Prove a stream of macro-instructions safe, unless the store records an earlier proof.

    Raises
    ------
    ValidationError
        The stream is not safe.
    """
    if store is None:
        validate(config, calls, windows)
        return
    programs = {id(program): program for call in calls for program in call.programs}
    numbers = {each: number for number, each in enumerate(programs)}
    stream = [
        (
            [numbers[id(each)] for each in call.programs],
            [variant.guard for variant in call.instead],
            call.operands,
            call.tag,
        )
        for call in calls
    ]
    try:
        images = [program.image for program in programs.values()]
    except struct.error:  # a word is out of range; the validator reports its position
        validate(config, calls, windows)
        raise
    key = name(version(), asdict(config), images, stream, windows)
    known = store.get(_KIND, key)
    if known is None or bytes(known) != _PASSED:
        validate(config, calls, windows)
        store.put(_KIND, key, _PASSED)
