"""JSON encoding of entries, and decoding of untrusted data with checks of every field.

Decoding raises ValueError (including `json.JSONDecodeError`) or InputError for invalid entries.
"""

from typing import Any

from compiler.ir.identity import identity_of, restored, stored
from compiler.options import DramTiming
from compiler.profile.measurement import HardwareProfile, LayerCycles, Measurement, Rejected, Result
from compiler.schedule.schedule import Schedule, layer_schedule
from compiler.tuning_db.entries import (
    AnySchedule,
    BudgetViolation,
    EntryKey,
    Execution,
    Profile,
    TrialEntry,
    is_digest,
)
from compiler.util.checks import Fields
from cosim import checks
from hw.config import MlaConfig

#: JSON object.
Values = dict[str, Any]


def key_values(key: EntryKey) -> Values:
    """Encode a key as JSON values."""
    return stored(key)


def read_key(fields: Fields) -> EntryKey:
    """Decode the key from the fields of an entry."""
    return EntryKey(*(fields.text(name) for name in ("subgraph", "profile", "options")))


def schedule_values(schedule: AnySchedule) -> Values:
    """Encode the schedule of a network or a layer as JSON values, with its type in the field `of`."""
    return {"of": "network" if isinstance(schedule, Schedule) else "layer"} | stored(schedule)


def read_schedule(values: Any) -> AnySchedule:
    """Decode the schedule of a network or a layer."""
    fields = Fields(values)
    kind = fields.text("of")
    given = {name: each for name, each in fields.values.items() if name != "of"}
    if kind == "network":
        return Schedule.from_fields(given)
    if kind != "layer":
        raise ValueError("a schedule must be of a network or of a layer")
    return layer_schedule("", given)


def result_values(result: Result) -> Values:
    """Encode the result of a trial as JSON values."""
    return stored(result)


def read_result(values: Any) -> Result:
    """Decode the result of a trial."""
    fields = Fields(values)
    if "reason" in fields.values:
        form = fields.text("form") if "form" in fields.values else ""
        return Rejected(fields.text("stage"), fields.text("reason"), form)
    return Measurement(
        cycles=fields.count("cycles"),
        layers=tuple(_layer(Fields(each)) for each in fields.sequence("layers")),
        energy_uj=fields.amount("energy_uj"),
        dram_bytes=fields.count("dram_bytes"),
        exact=fields.flag("exact"),
        floor=fields.count("floor"),
        test_inputs=fields.count("test_inputs") if "test_inputs" in fields.values else 0,
    )


def _layer(fields: Fields) -> LayerCycles:
    known = fields.values
    return LayerCycles(
        fields.texts("names"),
        fields.count("cycles"),
        fields.counts("where"),
        fields.amount("energy_uj") if "energy_uj" in known else 0.0,
        fields.count("conflicts") if "conflicts" in known else 0,
    )


def trial_values(trial: TrialEntry) -> Values:
    """Encode a trial as JSON values."""
    return key_values(trial.key) | {
        "schedule": schedule_values(trial.schedule),
        "result": result_values(trial.result),
        "seed": trial.seed,
        "method": trial.method,
        "generator": trial.generator,
        "when": trial.when,
    }


def read_trial(values: Any) -> TrialEntry:
    """Decode a trial."""
    fields = Fields(values)
    return TrialEntry(
        key=read_key(fields),
        schedule=read_schedule(fields.get("schedule")),
        result=read_result(fields.get("result")),
        seed=fields.integer("seed"),
        method=fields.text("method"),
        generator=fields.text("generator"),
        when=fields.number("when"),
    )


def execution_values(execution: Execution) -> Values:
    """Encode an execution as JSON values."""
    values = stored(execution)
    return key_values(execution.key) | {name: each for name, each in values.items() if name != "key"}


def read_execution(values: Any) -> Execution:
    """Decode an execution."""
    fields = Fields(values)
    return Execution(
        key=read_key(fields),
        when=fields.number("when"),
        cycles=fields.count("cycles"),
        utilization=fields.amount("utilization"),
        where=fields.counts("where"),
        load_bytes=fields.count("load_bytes"),
        store_bytes=fields.count("store_bytes"),
        conflicts=fields.count("conflicts"),
        reuse=fields.amount("reuse"),
        energy_uj=fields.amount("energy_uj"),
        bound=fields.text("bound"),
        **{name: fields.text(name) for name in ("network", "macro") if name in fields.values},
    )


def read_violation(values: Any) -> BudgetViolation:
    """Decode a violation of an accuracy budget."""
    fields = Fields(values)
    if not is_digest(cascade := fields.text("cascade")):
        raise ValueError("the cascade is not a digest")
    return BudgetViolation(
        cascade=cascade,
        budget=fields.amount("budget"),
        audited=fields.count("audited"),
        changed=fields.count("changed"),
        lower=fields.amount("lower"),
        when=fields.number("when"),
    )


def profile_values(profile: Profile) -> Values:
    """Encode a hardware profile as JSON values."""
    conditions = profile.conditions
    return {
        "config": stored(conditions.config),
        "latency": conditions.dram.latency,
        "bytes_per_cycle": conditions.rate,
        **({"throttle": conditions.dram.throttle} if conditions.dram.throttle else {}),
        "behaviour": profile.behaviour,
        "when": profile.when,
    }


def read_profile(values: Any, *, trusted: bool = False) -> Profile:
    """Decode a hardware profile."""
    fields = Fields(values)
    config = read_config(fields.get("config"))
    rate = fields.number("bytes_per_cycle")
    checks.bandwidth(rate)
    throttle = fields.number("throttle") if "throttle" in fields.values else 0.0
    checks.throttle(throttle)
    conditions = HardwareProfile(config, DramTiming(checks.latency(fields.count("latency")), rate, throttle))
    return Profile(
        conditions=conditions,
        behaviour=fields.numbers("behaviour"),
        when=fields.number("when"),
        trusted=trusted,
    )


def read_config(values: Any) -> MlaConfig:
    """Decode a machine configuration."""
    given = Fields(values).values
    if not given.keys() <= set(identity_of(MlaConfig).parts.values()):
        raise ValueError("a machine has no such field")
    return restored(MlaConfig, given)
