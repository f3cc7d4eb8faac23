"""What no sample for training may be of: layers of networks that the language model is judged by, and other shapes."""

import json
from functools import cache
from pathlib import Path

from compiler.cache.digest import name
from compiler.llm.data.trajectories import Trajectory
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp

#: Layers of networks: kind, size of the input, channels of the output, window, stride.
_LAYERS = Path(__file__).with_name("held_out.json")
#: One in so many shapes is kept out.
_PART = 10
#: One in so many networks that are measured is not shown in training.
_JUDGED = 20


def is_held_out(point: CalibrationNetwork) -> bool:
    """Whether a layer of a network is one that is kept out."""
    return any(key in _known() or _chance(key) for key in keys_of(point))


def is_judged(walk: Trajectory) -> bool:
    """Whether the loss is taken of a network, which is not shown in training then."""
    return walk.index % _JUDGED == 0


def keys_of(point: CalibrationNetwork) -> list[str]:
    """What each layer is known by."""
    keys, (h, w, c) = [], point.shape
    for op in point.ops:
        keys.append(key_of(op, (h, w, c)))
        h, w, c = -(-h // op.stride), -(-w // op.stride), op.size or c
    return keys


def key_of(op: CalibrationOp, shape: tuple[int, int, int]) -> str:
    """What a layer is known by: weights and values do not matter."""
    h, w, c = shape
    return f"{op.kind} {h}x{w}x{c} to {op.size or c}, {op.window}x{op.window} / {op.stride}"


def _chance(key: str) -> bool:
    return int(name("held out", key)[:8], 16) % _PART == 0


@cache
def _known() -> frozenset[str]:
    return frozenset(json.loads(_LAYERS.read_text("utf-8")))
