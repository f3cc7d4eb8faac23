"""What programs took, remembered in a file: comparisons of methods can be stopped and gone on with."""

from pathlib import Path
from time import monotonic

from compiler.cache.digest import name
from compiler.pipeline import ModelCompiler
from compiler.profile.hardware_profile import HardwareProfile
from compiler.profile.measurement import Result
from compiler.runtime.compiled import CompiledNetwork
from compiler.schedule.schedule import Schedule
from compiler.tuning_db.json_codec import read_result, result_values
from hw.errors import InputError
from scripts.jsonl_log import Lines


class FileMemory:
    """The memory of a measurer, as lines of JSON.

    Programs are known by their words and the memory they start with, so that the file is of use to later compilers too.

    Parameters
    ----------
    prepared : Prepared
        The model.
    conditions : Conditions
        The machine and its memory.
    file : path or None
        Where measurements are kept; None: nowhere but here.

    Attributes
    ----------
    seconds : float
        What all that was asked about takes to compile, prove and run on one device, whether it was remembered or not;
        0 for lines of files without it.
    """

    def __init__(self, prepared: ModelCompiler, conditions: HardwareProfile, file: Path | None):
        self.prepared, self.conditions = prepared, conditions
        self.seconds = 0.0
        self._keys: dict[str, str | None] = {}
        self._lines = None if file is None else Lines(file)
        self._known: dict[str, tuple[Result, float]] = {}
        for data in self._lines.read() if self._lines else ():
            self._known[data["key"]] = read_result(data["result"]), data.get("seconds", 0.0)
        self._since = monotonic()

    def known(self, schedule: Schedule) -> Result | None:
        """What a schedule's programs took; None if they were not measured."""
        key = self.key(schedule)
        result, seconds = (None, 0.0) if key is None else self._known.get(key, (None, 0.0))
        self.seconds += seconds
        self._since = monotonic()
        return result

    def keep(self, schedule: Schedule, result: Result) -> None:
        """Remember a measurement, and how long it took: the time since anything was asked or kept."""
        seconds = monotonic() - self._since
        self.seconds += seconds
        key = self.key(schedule)
        if key is not None:
            self._known[key] = result, seconds
            if self._lines is not None:
                self._lines.add({"key": key, "result": result_values(result), "seconds": round(seconds, 6)})
        self._since = monotonic()

    def key(self, schedule: Schedule) -> str | None:
        """What a schedule's programs are known by; None: it cannot be compiled."""
        text = schedule.to_json()
        if text not in self._keys:
            try:
                self._keys[text] = programs_of(self.prepared.network(schedule), self.conditions)
            except InputError:
                self._keys[text] = None
        return self._keys[text]


def programs_of(network: CompiledNetwork, conditions: HardwareProfile) -> str:
    """Digest of all that a network's cycles depend on."""
    return name(conditions.key, network.digest)
