"""Layers and shapes that are held out from training: those of the evaluation networks, and a sample of others."""

import json
from functools import cache
from pathlib import Path

from compiler.cache.digest import name
from compiler.llm.data.trajectories import Trajectory
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp

#: Layers of networks: kind, input size, output channels, window, stride.
_LAYERS = Path(__file__).with_name("held_out.json")
#: One of this many shapes is held out.
_PART = 10
#: One of this many measured networks is used for validation instead of training.
_JUDGED = 20


def is_held_out(point: CalibrationNetwork) -> bool:
    """Return whether a layer of a network is held out."""
    return any(key in _known() or _chance(key) for key in keys_of(point))


def is_judged(walk: Trajectory) -> bool:
    """Return whether a network belongs to the validation set, which is not used for training."""
    return walk.index % _JUDGED == 0


def keys_of(point: CalibrationNetwork) -> list[str]:
    """Return the key of each layer."""
    keys, (h, w, c) = [], point.shape
    for op in point.ops:
        keys.append(key_of(op, (h, w, c)))
        h, w, c = -(-h // op.stride), -(-w // op.stride), op.size or c
    return keys


def key_of(op: CalibrationOp, shape: tuple[int, int, int]) -> str:
    """Return the key of a layer, which does not depend on weights and values."""
    h, w, c = shape
    return f"{op.kind} {h}x{w}x{c} to {op.size or c}, {op.window}x{op.window} / {op.stride}"


def _chance(key: str) -> bool:
    return int(name("held out", key)[:8], 16) % _PART == 0


@cache
def _known() -> frozenset[str]:
    return frozenset(json.loads(_LAYERS.read_text("utf-8")))
