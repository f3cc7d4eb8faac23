"""Every kind of network can be tuned by every method; `tests/soak/test_tuning_kinds.py` tests all pairs."""

from itertools import cycle
from pathlib import Path

import pytest

from compiler.tuning.registry import LLM, METHODS
from tests.support.network_kinds import KINDS, search

#: Methods that work on the layers of networks in different ways, in turn for all kinds.
_IN_TURN = list(zip(KINDS, cycle(("portfolio", "coordinate", "generators", "hpm")), strict=False))
#: Kinds that are tuned by every method.
_BY_ALL = ("quantized_attention", "streaming")


@pytest.mark.parametrize(("kind", "method"), _IN_TURN)
def test_kind_is_tuned(kind: str, method: str, tmp_path: Path) -> None:
    search(kind, method, tmp_path, 3)


@pytest.mark.parametrize("method", [*METHODS, LLM])
@pytest.mark.parametrize("kind", _BY_ALL)
def test_every_method_tunes(kind: str, method: str, tmp_path: Path) -> None:
    search(kind, method, tmp_path, 3)
