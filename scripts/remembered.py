"""What programs took, remembered in a file: comparisons of methods can be stopped and gone on with."""

import json
from pathlib import Path

from compiler.cache.digest import name
from compiler.measure.conditions import Conditions
from compiler.measure.measurement import Result
from compiler.network import Network
from compiler.pipeline import Prepared
from compiler.schedule.schedule import Schedule
from compiler.store.codec import read_result, result_values
from hw.errors import InputError


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
    """

    def __init__(self, prepared: Prepared, conditions: Conditions, file: Path | None):
        self.prepared, self.conditions, self.file = prepared, conditions, file
        self._known: dict[str, Result] = {}
        lines = file.read_text("utf-8").splitlines(keepends=True) if file and file.exists() else []
        for line in lines:
            if line.endswith("\n"):  # the last one may be torn
                data = json.loads(line)
                self._known[data["key"]] = read_result(data["result"])

    def known(self, schedule: Schedule) -> Result | None:
        """What a schedule's programs took; None if they were not measured."""
        key = self._key(schedule)
        return None if key is None else self._known.get(key)

    def keep(self, schedule: Schedule, result: Result) -> None:
        """Remember a measurement."""
        key = self._key(schedule)
        if key is not None:
            self._known[key] = result
            if self.file is not None:
                with self.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, "result": result_values(result)}) + "\n")

    def _key(self, schedule: Schedule) -> str | None:
        try:
            return programs_of(self.prepared.network(schedule), self.conditions)
        except InputError:
            return None


def programs_of(network: Network, conditions: Conditions) -> str:
    """Digest of all that a network's cycles depend on."""
    codes = [(code.image, [program.words for program in code.programs]) for code in network.codes]
    return name(conditions.key, codes)
