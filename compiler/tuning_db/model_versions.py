"""Versions of the cost model in the database, one list per hardware profile; the last version of a list is current."""

import base64
import binascii
import gzip
import json
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

from sqlalchemy import Connection, func, select

from compiler.cost.features import NAMES, FeatureRow
from compiler.cost.learned_model import CycleModel, find_model
from compiler.cost.online_model import LayerSample, retrained
from compiler.profile.measurement import HardwareProfile
from compiler.tuning_db import json_codec
from compiler.tuning_db.connection import MODELS, SealedRows, as_bytes, many, remove
from compiler.tuning_db.entries import is_digest
from compiler.util.checks import Fields, parsed

#: Maximum number of versions per hardware profile; maximum number of samples of a version.
MAX_VERSIONS, MAX_SAMPLES = 8, 2000
_MAX_UNPACKED_BYTES = 1 << 25
#: Trainings of one call, if other processes store versions in the meantime.
_ATTEMPTS = 2


@dataclass(frozen=True, kw_only=True)
class ModelVersion:
    """Version of the cost model.

    Parameters
    ----------
    profile : str
        Digest of the hardware profile (`HardwareProfile.key`).
    machine : str
        Description of machine and memory for reports.
    when : float
        Time of the training, in seconds since 1970 (UTC).
    before, after : float
        Mean errors on held-out measurements, as fractions: of the model that was current before, and of this one.
    model : CycleModel or None
        Model that was trained; None: the model of the compiler is current again.
    samples : tuple of LayerSample
        Measurements that the model was trained on.
    number : int
        Number of the version in the database; 0 if it is not stored.
    """

    profile: str
    machine: str
    when: float
    before: float
    after: float
    model: CycleModel | None
    samples: tuple[LayerSample, ...] = ()
    number: int = 0

    def document(self) -> dict[str, Any]:
        """Return the version as JSON fields."""
        return {
            "version": self.number,
            "kind": "cost model",
            "machine": self.machine,
            "profile": self.profile,
            "when": self.when,
            "measurements": len(self.samples),
            "error_before": round(self.before, 5),
            "error": round(self.after, 5),
            "trained": self.model is not None,
        }


def versions(rows: SealedRows, profile: str | None = None) -> list[ModelVersion]:
    """Return this user's versions, of one or of all hardware profiles, in the order in which they became current."""
    if not rows.has(MODELS):
        return []
    query = many(MODELS).order_by(MODELS.c.id)
    if profile is not None:
        query = query.where(MODELS.c.profile == profile)

    def work(connection: Connection) -> list[ModelVersion]:
        return [
            version
            for version, trusted in rows.read(connection, MODELS, query, _read)
            if trusted and profile in (None, version.profile)
        ]

    return [replace(version, number=number) for number, version in enumerate(rows.work(work), 1)]


def current(found: Sequence[ModelVersion], conditions: HardwareProfile) -> CycleModel:
    """Return the model of the last version of a hardware profile; without versions, `find_model` of the profile."""
    standard = find_model(conditions)
    if not found or found[-1].model is None:
        return standard
    model = found[-1].model
    return replace(model, elsewhere=standard) if model.layers else model


def retrain(
    rows: SealedRows, conditions: HardwareProfile, samples: Sequence[LayerSample], seed: int = 0
) -> ModelVersion | None:
    """Retrain the current model on new samples and those of the last version; store the model if it is better.

    If another process stores a version in the meantime, the model is retrained once more, from that version: neither
    process's samples are lost.

    Returns the stored version, or None if there are too few samples, if the model is not better on held-out samples,
    or if other processes stored versions both times.
    """
    for _ in range(_ATTEMPTS):
        last = rows.work(lambda connection: _last_row(connection, conditions.key)) if rows.has(MODELS) else 0
        known = versions(rows, conditions.key)
        kept = [*(known[-1].samples if known else ()), *samples][-MAX_SAMPLES:]
        found = retrained(current(known, conditions), kept, find_model(conditions), seed)
        if found is None:
            return None
        version = ModelVersion(
            profile=conditions.key,
            machine=conditions.text,
            when=time.time(),
            before=found.before,
            after=found.after,
            model=found.model,
            samples=tuple(found.samples),
        )
        if add(rows, version, after=last):
            return version
    return None


def roll_back(rows: SealedRows, version: ModelVersion) -> None:
    """Make a stored version current again."""
    add(rows, replace(version, when=time.time(), number=0))


def reset(rows: SealedRows) -> int:
    """Make the compiler's model current for all hardware profiles; return the number of changed profiles."""
    last = {version.profile: version for version in versions(rows)}
    changed = [version for version in last.values() if version.model is not None]
    for version in changed:
        add(rows, replace(version, model=None, samples=(), when=time.time(), number=0))
    return len(changed)


def add(rows: SealedRows, version: ModelVersion, after: int | None = None) -> bool:
    """Store a version as the last one of its profile, and remove the oldest ones above the limit.

    Parameters
    ----------
    after : int, optional
        Number of the row that must be the last one of the profile (0: none), so that no version is replaced that the
        caller has not seen.

    Returns
    -------
    bool
        False if the profile has a later row than `after`; nothing is stored then.
    """
    data = as_bytes(_values(version), _from_values)

    def work(connection: Connection) -> bool:
        if after is not None and _last_row(connection, version.profile) != after:
            return False
        rows.add(connection, MODELS, data, {"profile": version.profile})
        query = MODELS.select().where(MODELS.c.profile == version.profile).order_by(MODELS.c.id.desc())
        remove(connection, MODELS, [row.id for row in connection.execute(query)][MAX_VERSIONS:])
        return True

    return rows.write(work)


def _last_row(connection: Connection, profile: str) -> int:
    """Return the number of the last row of a hardware profile, 0 if there is none."""
    return connection.execute(select(func.max(MODELS.c.id)).where(MODELS.c.profile == profile)).scalar() or 0


def _values(version: ModelVersion) -> json_codec.Values:
    model = None if version.model is None else base64.b64encode(version.model.to_bytes()).decode()
    samples = [
        [[float(f"{each:.7g}") for each in sample.row.numbers], sample.row.base, sample.cycles]
        for sample in version.samples
    ]
    return {
        "profile": version.profile,
        "machine": version.machine,
        "when": version.when,
        "before": version.before,
        "after": version.after,
        "model": model,
        "samples": base64.b64encode(gzip.compress(json.dumps(samples).encode(), mtime=0)).decode(),
    }


def _read(data: bytes) -> ModelVersion:
    return _from_values(parsed(data))


def _from_values(values: Any) -> ModelVersion:
    """Decode a version; raises ValueError or InputError if it is damaged."""
    fields = Fields(values)
    profile, model = fields.text("profile"), fields.get("model")
    if not is_digest(profile):
        raise ValueError("the hardware profile is not a digest")
    return ModelVersion(
        profile=profile,
        machine=fields.text("machine"),
        when=fields.number("when"),
        before=fields.number("before"),
        after=fields.number("after"),
        model=None if model is None else CycleModel.from_bytes(_unpacked(model)),
        samples=_samples(_unpacked(fields.get("samples"))),
    )


def _unpacked(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError("models and samples must be texts")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, UnicodeError) as error:
        raise ValueError(f"not in base 64: {error}") from None


def _samples(data: bytes) -> tuple[LayerSample, ...]:
    try:
        with gzip.open(BytesIO(data)) as file:
            found = json.loads(file.read(_MAX_UNPACKED_BYTES))
        out = tuple(
            LayerSample(FeatureRow([float(each) for each in numbers], float(base)), float(cycles))
            for numbers, base, cycles in found
        )
    except (OSError, EOFError, zlib.error, TypeError, RecursionError) as error:
        raise ValueError(f"damaged samples: {error}") from None
    if len(out) > MAX_SAMPLES or not all(
        len(each.row.numbers) == len(NAMES) and each.row.base > 0 and each.cycles > 0 for each in out
    ):
        raise ValueError("samples have the wrong number of features or cycles that are not positive")
    return out
