"""Measurement cache in a JSONL file, with which an interrupted comparison of methods can be continued."""

from pathlib import Path
from time import monotonic

from compiler.cache.digest import name
from compiler.cost.learned_model import CycleModel, find_model
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, Result
from compiler.runtime.compiled import CompiledNetwork
from compiler.schedule.schedule import Schedule
from compiler.tuning_db.json_codec import read_result, result_values
from hw.errors import InputError
from scripts.jsonl_log import JsonlLog


class FileCache:
    """Cache of a measurer's results.

    Keys are digests of the program words and the initial memory, so that later compiler versions can use the file.

    Parameters
    ----------
    prepared : ModelCompiler
        Compiler of the model.
    conditions : HardwareProfile
        Hardware configuration and DRAM timing.
    file : path or None
        Path of the JSONL file; None to cache in memory only.

    Attributes
    ----------
    seconds : float
        Total time in seconds of compiling, validating and running all requested schedules on one device, cached or not;
        cached results without a recorded time count as 0.
    """

    def __init__(self, prepared: ModelCompiler, conditions: HardwareProfile, file: Path | None):
        self.prepared, self.conditions = prepared, conditions
        self.seconds = 0.0
        self._keys: dict[str, str | None] = {}
        self._lines = None if file is None else JsonlLog(file)
        self._known: dict[str, tuple[Result, float]] = {}
        for data in self._lines.read() if self._lines else ():
            self._known[data["key"]] = read_result(data["result"]), data.get("seconds", 0.0)
        self._since = monotonic()

    def lookup(self, schedule: Schedule) -> Result | None:
        """Return the cached result of a schedule; None if it is not cached."""
        key = self.key(schedule)
        result, seconds = (None, 0.0) if key is None else self._known.get(key, (None, 0.0))
        self.seconds += seconds
        self._since = monotonic()
        return result

    def refusals(self) -> dict[str, str]:
        """Return no refused programs: their results are cached like measurements."""
        return {}

    def cost_model(self) -> CycleModel:
        """Return the cost model of the conditions, which is not retrained."""
        return find_model(self.conditions)

    def put(self, schedule: Schedule, result: Result) -> None:
        """Cache a result together with the time since the previous lookup or result."""
        seconds = monotonic() - self._since
        self.seconds += seconds
        key = self.key(schedule)
        if key is not None:
            self._known[key] = result, seconds
            if self._lines is not None:
                self._lines.add({"key": key, "result": result_values(result), "seconds": round(seconds, 6)})
        self._since = monotonic()

    def key(self, schedule: Schedule) -> str | None:
        """Return the key of a schedule's programs; None if it does not compile."""
        text = schedule.to_json()
        if text not in self._keys:
            try:
                self._keys[text] = programs_of(self.prepared.network(schedule), self.conditions)
            except InputError:
                self._keys[text] = None
        return self._keys[text]


def programs_of(network: CompiledNetwork, conditions: HardwareProfile) -> str:
    """Return the digest of everything that determines the cycles of a network."""
    return name(conditions.key, network.digest)
