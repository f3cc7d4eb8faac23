"""A measurer that remembers, in a file, what programs took: comparisons of methods can be stopped and gone on with."""

import json
from collections.abc import Sequence
from pathlib import Path

from compiler.cache.digest import name
from compiler.measure.conditions import Conditions
from compiler.measure.measurement import Rejected, Result
from compiler.measure.measurer import Measurer
from compiler.network import Network
from compiler.schedule.schedule import Schedule
from compiler.store.codec import read_result, result_values


class Remembering(Measurer):
    """A measurer that measures no programs twice.

    They are known by their words and the memory they start with, so that the file is of use to later compilers too.

    Attributes
    ----------
    file : path or None
        Where measurements are kept, as lines of JSON; None: nowhere.
    """

    file: Path | None = None
    _known: dict[str, Result] | None = None

    def measure(self, schedules: Sequence[Schedule]) -> list[Result]:
        """From memory where it can be."""
        return [self._one_of(schedule) for schedule in schedules]

    def _one_of(self, schedule: Schedule) -> Result:
        network = self.compile(schedule)
        if isinstance(network, Rejected):
            return network
        known, key = self._results(), programs_of(network, self.conditions)
        if key not in known:
            (result,) = super().measure([schedule])
            known[key] = result
            if self.file is not None:
                with self.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, "result": result_values(result)}) + "\n")
        return known[key]

    def _results(self) -> dict[str, Result]:
        if self._known is None:
            self._known = {}
            whole = (
                self.file.read_text("utf-8").splitlines(keepends=True)
                if self.file and self.file.exists()
                else []
            )
            for line in whole:
                if line.endswith("\n"):  # the last one may be torn
                    data = json.loads(line)
                    self._known[data["key"]] = read_result(data["result"])
        return self._known


def programs_of(network: Network, conditions: Conditions) -> str:
    """Digest of all that a network's cycles depend on."""
    codes = [(code.image, [program.words for program in code.programs]) for code in network.codes]
    return name(conditions.key, codes)
