"""Hardware configurations and layer shapes of the training data, and those held out for evaluation."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from compiler.cache.digest import name
from compiler.llm.data.trajectories import Trajectory
from compiler.options import DEFAULT_DRAM, CompileOptions, DramTiming, MemoryLimits
from compiler.profile.measurement import HardwareProfile
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from hw.config import DEFAULT_TARGET, load_target, targets_by_lanes


@dataclass(frozen=True)
class CorpusMachine:
    """Hardware configuration and memory timing of measurements.

    Parameters
    ----------
    target : str
        Name of the target.
    latency : int
        DRAM latency in cycles.
    slow : int
        Cycles in which the DRAM transfers one bus width of data; 1 for the full bandwidth.
    sp_bytes : int or None
        Usable bytes of the scratchpad; None for all.
    """

    target: str
    latency: int = DEFAULT_DRAM.latency
    slow: int = 1
    sp_bytes: int | None = None

    @property
    def conditions(self) -> HardwareProfile:
        """Hardware profile for measurements."""
        config = load_target(self.target)
        return HardwareProfile(config, DramTiming(self.latency, config.n / self.slow))

    @property
    def options(self) -> CompileOptions:
        """Compile options for measurements."""
        return CompileOptions(
            rounding="reference", dram=self.conditions.dram, limits=MemoryLimits(sp_bytes=self.sp_bytes)
        )


_OTHER_TARGETS = {lanes: name for lanes, name in targets_by_lanes().items() if name != DEFAULT_TARGET}
#: Configurations of the training data with their sampling weights.
TRAINING = {
    "usual": (CorpusMachine(DEFAULT_TARGET), 8),
    "bandwidth / 4": (CorpusMachine(DEFAULT_TARGET, slow=4), 2),
    "latency 400": (CorpusMachine(DEFAULT_TARGET, latency=400), 2),
    "latency 20": (CorpusMachine(DEFAULT_TARGET, latency=20), 1),
    "SP 64 KiB": (CorpusMachine(DEFAULT_TARGET, sp_bytes=1 << 16), 1),
} | {f"N = {lanes}": (CorpusMachine(name), 1) for lanes, name in _OTHER_TARGETS.items()}
#: Held-out configurations for evaluation.
HELD_OUT = {
    "bandwidth / 2": CorpusMachine(DEFAULT_TARGET, slow=2),
    "latency 200": CorpusMachine(DEFAULT_TARGET, latency=200),
}
MACHINES = {name: machine for name, (machine, _) in TRAINING.items()} | HELD_OUT

#: Keys of the layers of the evaluation networks: kind, input size, output channels, window, stride.
_LAYERS = Path(__file__).with_name("held_out.json")
#: Reciprocal of the fraction of shapes that are held out.
_HELD_OUT_PERIOD = 10
#: Reciprocal of the fraction of measured networks that are used for validation instead of training.
_VALIDATION_PERIOD = 20


def is_held_out(point: CalibrationNetwork) -> bool:
    """Return whether any layer of a network is held out."""
    return any(key in held_out_keys() or _is_sampled(key) for key in keys_of(point))


def is_validation(trajectory: Trajectory) -> bool:
    """Return whether a network belongs to the validation set, which is not used for training."""
    return trajectory.index % _VALIDATION_PERIOD == 0


def keys_of(point: CalibrationNetwork) -> list[str]:
    """Return the keys of all layers of a network."""
    keys, (h, w, c) = [], point.shape
    for op in point.ops:
        keys.append(key_of(op, (h, w, c)))
        h, w, c = -(-h // op.stride), -(-w // op.stride), op.size or c
    return keys


def key_of(op: CalibrationOp, shape: tuple[int, int, int]) -> str:
    """Return the key of a layer, which does not depend on weights and values.

    Parameters
    ----------
    op : CalibrationOp
        Operator of the layer.
    shape : tuple of int
        Height, width and channels of the input.
    """
    h, w, c = shape
    return f"{op.kind} {h}x{w}x{c} to {op.size or c}, {op.window}x{op.window} / {op.stride}"


def _is_sampled(key: str) -> bool:
    return int(name("held out", key)[:8], 16) % _HELD_OUT_PERIOD == 0


@cache
def held_out_keys() -> frozenset[str]:
    """Return the keys of the layers of the evaluation networks."""
    return frozenset(json.loads(_LAYERS.read_text("utf-8")))
