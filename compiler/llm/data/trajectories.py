"""Trajectories of a small network, and their journal and packed (compressed) form.

Each successive schedule changes one layer of an earlier schedule. A trajectory may include variants of one program,
each of which adds an edit to an earlier variant.
"""

import json
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from compiler.ir.identity import identity_of, restored, stored
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork
from compiler.tuning.edits.edit import Edit, Move, Split
from compiler.util.files import parsed_line
from hw.errors import InputError, WorkError, reason_of
from hw.isa.counters import CAUSES

_DEFAULT = LayerSchedule()


@dataclass(frozen=True)
class TrajectoryStep:
    """Schedule with its measured cost.

    Parameters
    ----------
    base : int
        Index of the step from which this step was derived; -1 for the first step, the static compiler's schedule.
    layer : int
        Index of the layer that differs from the base.
    changes : dict
        Changed fields of the layer's schedule with their new values.
    cycles : int
        Cycles of the network.
    layers : dict
        Cycles of each counter tag, keyed by the index of the first layer with that tag.
    where : dict
        Cycles by cause, in the order of hw.isa.counters.CAUSES, with the same keys.
    """

    base: int
    layer: int
    changes: dict[str, Any]
    cycles: int
    layers: dict[int, int]
    where: dict[int, list[int]]


@dataclass(frozen=True)
class EditVariant:
    """Program variant with its measured cost.

    Parameters
    ----------
    base : int
        Index of the variant from which this variant was derived; -1 for the first variant, the compiled program.
    edit : Edit or None
        Edit applied to the base; None for the first variant.
    cycles : int
        Cycles of the program's counter tags.
    where : list of int
        Cycles by cause, in the order of hw.isa.counters.CAUSES.
    """

    base: int
    edit: Edit | None
    cycles: int
    where: list[int]


@dataclass(frozen=True)
class EditTrajectory:
    """Measured variants of one program, each derived from an earlier one.

    Parameters
    ----------
    step : int
        Index of the step with whose schedule the program was compiled.
    program : str
        Name of the program.
    variants : list of EditVariant
        Variants in the order of measurement.
    """

    step: int
    program: str
    variants: list[EditVariant]

    def edits(self, number: int) -> tuple[Edit, ...]:
        """Return the edits that lead from the compiled program to a variant."""
        variant = self.variants[number]
        return () if variant.edit is None else (*self.edits(variant.base), variant.edit)

    def as_json(self) -> list[Any]:
        """Return the variants as JSON values."""
        variants = [[each.base, _numbers(each.edit), each.cycles, each.where] for each in self.variants]
        return [self.step, self.program, variants]

    @staticmethod
    def from_json(data: list[Any]) -> "EditTrajectory":
        """Parse JSON values as returned by `as_json`; raise ValueError or TypeError if they are invalid."""
        step, program, variants = data
        trajectory = EditTrajectory(int(step), str(program), [_variant(*each) for each in variants])
        for number, variant in enumerate(trajectory.variants):
            first = variant.edit is None and variant.base == -1
            if first != (number == 0) or not (first or (variant.edit and 0 <= variant.base < number)):
                raise ValueError("a variant must be derived from an earlier one")
        return trajectory


@dataclass(frozen=True)
class Trajectory:
    """All measurements of one network on one hardware configuration.

    Parameters
    ----------
    machine : str
        Name of the configuration, a key of compiler.llm.data.held_out.MACHINES.
    index : int
        Number of the network among those sampled for the configuration.
    point : CalibrationNetwork
        Network that was measured.
    first : list of dict
        Non-default schedule fields of each layer in the first step.
    steps : list of TrajectoryStep
        Steps in the order of measurement.
    edited : EditTrajectory or None
        Measured edits of one program; None if no edits were measured or no program can be edited.
    """

    machine: str
    index: int
    point: CalibrationNetwork
    first: list[dict[str, Any]]
    steps: list[TrajectoryStep] = field(default_factory=list)
    edited: EditTrajectory | None = None

    def schedules(self, number: int) -> list[LayerSchedule]:
        """Return the schedules of all layers in a step."""
        step = self.steps[number]
        if step.base < 0:
            return [restored(LayerSchedule, each) for each in self.first]
        layers = self.schedules(step.base)
        values = stored(layers[step.layer]) | step.changes
        return [*layers[: step.layer], restored(LayerSchedule, values), *layers[step.layer + 1 :]]

    def as_json(self) -> dict[str, Any]:
        """Return the trajectory as a JSON object."""
        steps = [
            [
                each.base,
                each.layer,
                each.changes,
                each.cycles,
                list(each.layers.items()),
                list(each.where.values()),
            ]
            for each in self.steps
        ]
        edited = {} if self.edited is None else {"edited": self.edited.as_json()}
        return {
            "machine": self.machine,
            "index": self.index,
            "point": self.point.as_json(),
            "first": self.first,
            "steps": steps,
            **edited,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Trajectory":
        """Parse a trajectory from a JSON object as returned by `as_json`.

        Raises
        ------
        ValueError
            The object is not a valid trajectory.
        """
        try:
            steps = [_step(*each) for each in data["steps"]]
            edited = EditTrajectory.from_json(data["edited"]) if "edited" in data else None
            trajectory = Trajectory(
                str(data["machine"]),
                int(data["index"]),
                CalibrationNetwork.from_json(data["point"]),
                list(data["first"]),
                steps,
                edited,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not measurements of a network: {error}") from None
        if any(not -1 <= step.base < number for number, step in enumerate(steps)):
            raise ValueError("a step must be derived from an earlier one")
        if edited is not None and not 0 <= edited.step < len(steps):
            raise ValueError("edits must refer to an existing step")
        return trajectory


def _step(base: int, layer: int, changes: dict, cycles: int, layers: list, where: list) -> TrajectoryStep:
    found = {int(number): int(each) for number, each in layers}
    causes = dict(zip(found, where, strict=True))
    if any(len(each) != len(CAUSES) for each in causes.values()):
        raise ValueError(f"cycles by cause must be {len(CAUSES)} values")
    return TrajectoryStep(int(base), int(layer), dict(changes), int(cycles), found, causes)


def _variant(base: int, edit: list[int], cycles: int, where: list[int]) -> EditVariant:
    if len(where) != len(CAUSES):
        raise ValueError(f"cycles by cause must be {len(CAUSES)} values")
    return EditVariant(int(base), _edit(edit), int(cycles), [int(each) for each in where])


def _numbers(edit: Edit | None) -> list[int]:
    return [] if edit is None else list(vars(edit).values())


def _edit(numbers: list[int]) -> Edit | None:
    """Parse an edit from its field values: two for a move, four for a split."""
    if not numbers:
        return None
    found = [int(each) for each in numbers]
    return Move(*found) if len(found) == len(fields(Move)) else Split(*found)


def non_default(schedule: LayerSchedule) -> dict[str, Any]:
    """Return the fields that differ from the defaults."""
    return changed_fields(schedule, _DEFAULT)


def changed_fields(schedule: LayerSchedule, base: LayerSchedule) -> dict[str, Any]:
    """Return the fields that differ from `base`, by stable name."""
    _, names, _ = identity_of(LayerSchedule)
    return {
        name: value
        for field, name in names.items()
        if (value := getattr(schedule, field)) != getattr(base, field)
    }


FORMAT = "mla-llm-corpus"
VERSION = 1
_HEADER = {"format": FORMAT, "version": VERSION}
#: Maximum decompressed size in bytes, since packed files may come from untrusted sources.
_MAX_BYTES = 1 << 28


class CorpusJournal:
    """Journal of measured networks; an entry is on disk as soon as `add` returns.

    Parameters
    ----------
    path : Path
        Path of the journal file, created if missing.

    Raises
    ------
    InputError
        The file is not a journal, or it is damaged.
    WorkError
        The file cannot be written.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            text = path.read_text("utf-8") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read: {reason_of(error)}") from None
        lines = [
            line for line in text.splitlines(keepends=True) if line.endswith("\n")
        ]  # the last line may be incomplete
        self.done = (
            {(trajectory.machine, trajectory.index) for trajectory in _trajectories(lines, path)}
            if lines
            else set()
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write("w", "".join(lines) or json.dumps(_HEADER) + "\n")

    def add(self, trajectory: Trajectory) -> None:
        """Append the measurements of a network."""
        self._write("a", _line(trajectory.as_json()))
        self.done.add((trajectory.machine, trajectory.index))

    def _write(self, mode: str, text: str) -> None:
        try:
            with self.path.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise WorkError(f"{self.path}: cannot be written: {error.strerror}") from None


def read(path: Path) -> list[Trajectory]:
    """Read the trajectories of a journal, or of a packed journal (.xz).

    Raises
    ------
    InputError
        The file cannot be read or is damaged.
    """
    try:
        if path.suffix == ".xz":
            with lzma.open(path) as file:
                data = file.read(_MAX_BYTES + 1)
        else:
            data = path.read_bytes()
        text = data.decode("utf-8")
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {reason_of(error)}") from None
    if len(data) > _MAX_BYTES:
        raise InputError(f"{path}: more than {_MAX_BYTES:,} bytes of measurements")
    return list(_trajectories(text.splitlines(keepends=True), path))


def pack(trajectories: Iterable[Trajectory], path: Path) -> None:
    """Write a packed journal, sorted by hardware configuration and index so that equal contents give equal files.

    Raises
    ------
    WorkError
        The file cannot be written.
    """
    ordered = sorted(trajectories, key=lambda trajectory: (trajectory.machine, trajectory.index))
    text = json.dumps(_HEADER) + "\n" + "".join(_line(trajectory.as_json()) for trajectory in ordered)
    try:
        path.write_bytes(lzma.compress(text.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME))
    except OSError as error:
        raise WorkError(f"{path}: cannot be written: {error.strerror}") from None


def _trajectories(lines: list[str], path: Path) -> Iterator[Trajectory]:
    if not lines or parsed_line(lines[0]) != _HEADER:
        raise InputError(f"{path}: not a corpus of the language model, or of another version")
    for number, line in enumerate(lines[1:], 2):
        try:
            yield Trajectory.from_json(parsed_line(line))
        except ValueError as error:
            raise InputError(f"{path}:{number}: damaged: {error}") from None


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":")) + "\n"
