"""Measurements of a calibration, kept one by one as lines of JSON: another one goes on from there."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler.ir.identity import identity, restored, stored
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork
from hw.errors import InputError, WorkError

FORMAT, VERSION = "mla-hpm-points", 2


@identity("Sample", "index", "number", "point", "schedules", "layers")
@dataclass(frozen=True)
class CalibrationSample:
    """A point under one schedule, measured.

    Parameters
    ----------
    index, number : int
        Of the point; of the schedule among those of the point, 0 for the static compiler's.
    point : Point
        What was measured.
    schedules : dict
        Of each layer, by name.
    layers : dict
        Cycles of each, by name.
    """

    index: int
    number: int
    point: CalibrationNetwork
    schedules: dict[str, LayerSchedule]
    layers: dict[str, int]

    @property
    def cycles(self) -> int:
        """Of all layers."""
        return sum(self.layers.values())


class CalibrationJournal:
    """The file of a calibration.

    Parameters
    ----------
    path : Path
        Of the file; made if it is not there.
    key : str
        Name of the conditions.
    seed : int
        Of the points.

    Attributes
    ----------
    samples : list of Sample
        All that have been measured.
    done : set of int
        Points of which nothing is left to do.

    Raises
    ------
    InputError
        The file is of something else: says what to do.
    WorkError
        It cannot be written.
    """

    def __init__(self, path: Path, key: str, seed: int):
        self.path = path
        self.samples: list[CalibrationSample] = []
        self.done: set[int] = set()
        header = {"format": FORMAT, "version": VERSION, "conditions": key, "seed": seed}
        try:
            text = path.read_text("utf-8") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read ({error}); remove it to begin anew") from None
        lines = text.splitlines(keepends=True)
        if lines and parsed_line(lines[0]) != header:
            raise InputError(
                f"{path}: measurements of other conditions, of another seed or version; remove it to begin anew"
            )
        whole = [line for line in lines[1:] if line.endswith("\n")]  # the last one may be torn
        for line in whole:
            self._read(line)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                file.writelines([json.dumps(header) + "\n", *whole])
        except OSError as error:
            raise WorkError(f"{path}: cannot be written: {error.strerror}") from None

    def add(self, sample: CalibrationSample) -> None:
        """Keep a sample."""
        self.samples.append(sample)
        self._write(stored(sample))

    def finish(self, index: int) -> None:
        """Nothing of a point is left to do."""
        self.done.add(index)
        self._write({"done": index})

    def _write(self, data: dict[str, Any]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(data) + "\n")
        except OSError as error:
            raise WorkError(f"{self.path}: cannot be written: {error.strerror}") from None

    def _read(self, line: str) -> None:
        data = parsed_line(line)
        try:
            if "done" in data:
                self.done.add(int(data["done"]))
                return
            schedules = {name: restored(LayerSchedule, fields) for name, fields in data["schedules"].items()}
            layers = {str(name): int(cycles) for name, cycles in data["layers"].items()}
            point = CalibrationNetwork.of(data["point"])
            self.samples.append(
                CalibrationSample(int(data["index"]), int(data["number"]), point, schedules, layers)
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{self.path}: damaged line ({error}); remove the file to begin anew") from None


def parsed_line(line: str) -> dict[str, Any]:
    """The JSON object of a line; an empty one, if it is none."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
