"""What came of candidates, in words for the model that proposed them."""

from compiler.llm.endpoint.facts import cost_unit, cycles_text
from compiler.measure.measurement import LayerCycles, Measurement, Rejected, Result
from compiler.specialize.task import Candidate, Task

#: Characters of a reason at most, and layers whose cycles are told.
_REASON, _LAYERS = 600, 4
_STAGES = {
    "compile": "it cannot be compiled",
    "validate": "the validator refuses it",
    "trap": "it trapped",
    "time": "it was stopped",
    "search": "it is not measured",
}


def verdict(task: Task, candidate: Candidate, result: Result) -> str:
    """What came of a candidate, and why."""
    return f"{candidate.why}: {_outcome(task, result)}"


def _outcome(task: Task, result: Result) -> str:
    if isinstance(result, Rejected):
        reason = result.reason if len(result.reason) <= _REASON else f"{result.reason[:_REASON]}..."
        return f"{_STAGES.get(result.stage, result.stage)}: {reason}"
    if not result.exact:
        return "its outputs are wrong: the changed commands compute or move something else than before"
    if not result.believable:
        return f"{result.cycles:,} cycles are fewer than the work takes"
    now, before = task.goal.cost(result), task.goal.cost(task.measured)
    how = "better than" if now < before else "no better than"
    return f"{now:,.6g} {cost_unit(task.goal)}, {how} {before:,.6g}. {_by_layer(task, result)}"


def _by_layer(task: Task, result: Measurement) -> str:
    """Cycles of those layers that changed most."""
    before = {entry.names: entry for entry in task.measured.layers}
    pairs = [(before[entry.names], entry) for entry in result.layers if entry.names in before]
    changed = sorted((pair for pair in pairs if _moved(*pair)), key=lambda pair: -_moved(*pair))
    return "; ".join(
        f"{' + '.join(now.names)}: {cycles_text(was)} -> {cycles_text(now)}" for was, now in changed[:_LAYERS]
    )


def _moved(was: LayerCycles, now: LayerCycles) -> int:
    return abs(now.cycles - was.cycles)
