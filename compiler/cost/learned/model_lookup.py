"""Lookup of performance models."""

from functools import cache
from pathlib import Path

from compiler.cost.learned.model import CycleModel
from compiler.profile.hardware_profile import HardwareProfile
from cosim.rtl.cache import cache_folder

#: Made by `mla calibrate` for the usual machine (n16) and its memory.
SHIPPED = Path(__file__).parent / "n16.hpm"
_SHIPPED_N = 16


def model_path(conditions: HardwareProfile) -> Path:
    """Default path of the model that `mla calibrate` writes for a hardware profile."""
    return cache_folder() / "hpm" / f"{conditions.key}.hpm"


def journal_path(conditions: HardwareProfile, seed: int) -> Path:
    """Path of the measurements of a calibration."""
    return cache_folder() / "hpm" / f"{conditions.key}.{seed}.jsonl"


def find_model(conditions: HardwareProfile) -> CycleModel:
    """The user's own model of some conditions, else the one that comes with the compiler.

    That one is for a machine of as many lanes, whatever its memory: what it has learnt is beside the memory's own
    cycles, which features count. For others the features' estimate is all that is known.

    Raises
    ------
    InputError
        The user's own file is damaged.
    """
    own = model_path(conditions)
    if own.exists():
        return _loaded(own, own.stat().st_mtime_ns)
    return _loaded(SHIPPED, 0) if conditions.config.n == _SHIPPED_N else CycleModel((), {})


@cache
def _loaded(path: Path, _changed: int) -> CycleModel:
    """A file's model as it was when the file was changed: reading one takes longer than most trials."""
    return CycleModel.load(path)
