"""Tables of the results of `scripts.llm_race`."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

from compiler.tuning.registry import LLM
from scripts.reports import write_report

#: Trials after which methods are compared, and times in seconds at which curves are sampled.
COUNTS, SECONDS = (1, 4, 16, 24, 64), (0.25, 0.5, 1, 2, 5, 10, 20, 40)
#: Targets: trials of the model, trials of the guided search, and maximum ratio of their cycles.
BARS = ((1, 256, 1.05), (16, 64, 1.0))

Row = dict[str, Any]


@dataclass(frozen=True)
class RacedLayer:
    """All searches of one layer.

    Parameters
    ----------
    name : str
        Description of the layer.
    static, floor : int
        Cycles of the static compiler's schedule, and lower bound of the cycles.
    runs : dict
        Rows of the results file by method; one row for each seed, in the order of the seeds.
    """

    name: str
    static: int
    floor: int
    runs: dict[str, list[Row]]

    def after(self, method: str, trials: int) -> list[int]:
        """Return, for each seed, the minimum cycles after `trials` trials, or after all trials of a shorter search."""
        return [run["curve"][min(trials, len(run["curve"]) - 1)] for run in self.runs[method]]

    def within(self, method: str, seconds: float) -> list[int]:
        """Return, for each seed, the minimum cycles after the given time in seconds."""
        return [run["curve"][bisect_right(run["seconds"], seconds)] for run in self.runs[method]]

    def time(self, method: str, trials: int) -> float:
        """Return the time in seconds for the given number of trials, as the median over seeds."""
        return median(run["seconds"][min(trials, len(run["seconds"])) - 1] for run in self.runs[method])


def render(rows: Sequence[Row], file: Path) -> str:
    """Write the results as FILE.json and FILE.md; return the Markdown text."""
    layers = layers_of(rows)
    if not layers:
        return "no layer has results of all methods and seeds yet"
    methods = list(layers[0].runs)
    others = [name for name in methods if name != LLM]
    seeds = len(layers[0].runs[LLM])
    whole = {
        "layers": len(layers),
        "seeds": seeds,
        "bars": _bars(layers),
        "equal_measurements": [
            _equal(layers, name, count)
            for count in COUNTS
            for name in others
            if count <= min(_trials(layers, LLM), _trials(layers, name))
        ],
        "equal_time": [
            _equal_time(layers, name, count)
            for count in COUNTS
            for name in others
            if count <= _trials(layers, LLM)
        ],
        "trials": [
            {"trials": count} | {name: _mean(layers, _ratio_of(name, count)) for name in methods}
            for count in COUNTS
            if count <= min(_trials(layers, name) for name in methods)
        ],
        "cost": [_cost(layers, name) for name in methods],
        "seconds": [
            {"seconds": t} | {name: _mean(layers, _ratio_after(name, t)) for name in methods} for t in SECONDS
        ],
        "by_layer": [_by_layer(layer) for layer in layers],
    }
    return write_report(file, whole, _text(whole))


def layers_of(rows: Sequence[Row]) -> list[RacedLayer]:
    """Return the layers for which all methods and seeds have results."""
    found: dict[int, dict[str, dict[int, Row]]] = {}
    for row in rows:
        found.setdefault(row["number"], {}).setdefault(row["method"], {})[row["seed"]] = row
    wanted = {(row["method"], row["seed"]) for row in rows}
    order = [LLM, *sorted({method for method, _ in wanted} - {LLM})]
    out = []
    for _, methods in sorted(found.items()):
        if {(method, seed) for method, runs in methods.items() for seed in runs} == wanted:
            first = next(iter(methods[LLM].values()))
            runs = {method: [methods[method][seed] for seed in sorted(methods[method])] for method in order}
            out.append(RacedLayer(first["layer"], first["static"], first["floor"], runs))
    return out


def _trials(layers: Sequence[RacedLayer], method: str) -> int:
    return layers[0].runs[method][0]["trials"]


def _mean(layers: Sequence[RacedLayer], value: Callable[[RacedLayer], float]) -> float:
    """Return the geometric mean of a value over all layers."""
    return exp(fmean(log(value(layer)) for layer in layers))


def _ratio_after(method: str, seconds: float) -> Callable[[RacedLayer], float]:
    """Return a function of a layer: the ratio of a method's cycles after a time to the static compiler's cycles."""
    return lambda layer: median(layer.within(method, seconds)) / layer.static


def _ratio_of(method: str, trials: int) -> Callable[[RacedLayer], float]:
    """Return a function of a layer: the ratio of a method's cycles after some trials to the static compiler's."""
    return lambda layer: median(layer.after(method, trials)) / layer.static


def _bars(layers: Sequence[RacedLayer]) -> list[Row]:
    """Return the ratios of the model's cycles to those of the guided search, which has more trials."""
    bars = []
    for own, guided, maximum in BARS:
        if "hpm" in layers[0].runs and own <= _trials(layers, LLM) and guided <= _trials(layers, "hpm"):
            pairs = [(layer.after(LLM, own), layer.after("hpm", guided)) for layer in layers]
            about = {"trials": own, "hpm_trials": guided, "at_most": maximum}
            bars.append(about | _compared(layers, pairs))
    return bars


def _compared(layers: Sequence[RacedLayer], pairs: Sequence[tuple[list[int], list[int]]]) -> Row:
    """Compare the model's cycles with those of another method, by layer and seed: means, spread over seeds, losses."""
    ratios = [median(own) / median(other) for own, other in pairs]
    seeds = [
        exp(fmean(log(own[seed] / other[seed]) for own, other in pairs)) for seed in range(len(pairs[0][0]))
    ]
    worst = max(range(len(layers)), key=lambda at: ratios[at])
    return {
        "ratio": exp(fmean(map(log, ratios))),
        "median": median(ratios),
        "seeds": [min(seeds), max(seeds)],
        "won": sum(each < 1 for each in ratios),
        "tied": sum(each == 1 for each in ratios),
        "lost": sum(each > 1 for each in ratios),
        "worst": max(ratios[worst] - 1, 0.0),
        "worst_layer": layers[worst].name if ratios[worst] > 1 else None,
    }


def _equal(layers: Sequence[RacedLayer], method: str, count: int) -> Row:
    pairs = [(layer.after(LLM, count), layer.after(method, count)) for layer in layers]
    return {"trials": count, "method": method} | _compared(layers, pairs)


def _equal_time(layers: Sequence[RacedLayer], method: str, count: int) -> Row:
    """Compare the model with another method after the time in which the model completes `count` trials for a layer."""
    times = [layer.time(LLM, count) for layer in layers]
    pairs = [
        (layer.after(LLM, count), layer.within(method, time))
        for layer, time in zip(layers, times, strict=True)
    ]
    made = [
        bisect_right(run["seconds"], time)
        for layer, time in zip(layers, times, strict=True)
        for run in layer.runs[method]
    ]
    ended = sum(each == _trials(layers, method) for each in made)
    about = {"trials": count, "method": method, "seconds": median(times), "method_trials": median(made)}
    return about | {"ended": ended, "searches": len(made)} | _compared(layers, pairs)


def _cost(layers: Sequence[RacedLayer], method: str) -> Row:
    """Return the time per trial in milliseconds, for the method alone and in total."""
    runs = [run for layer in layers for run in layer.runs[method]]
    own = [1000 * run["own_seconds"] / run["trials"] for run in runs]
    every = [1000 * run["seconds"][-1] / run["trials"] for run in runs]
    return {"method": method, "own_ms": median(own), "trial_ms": median(every)}


def _by_layer(layer: RacedLayer) -> Row:
    return {"layer": layer.name, "static": layer.static, "floor": layer.floor} | {
        name: {count: [min(found), median(found), max(found)]}
        for name, runs in layer.runs.items()
        for count in (runs[0]["trials"],)
        for found in (layer.after(name, count),)
    }


def _text(whole: Row) -> str:
    lines = [
        f"{whole['layers']} layers, {whole['seeds']} seeds; cycles of {LLM} relative to those of other methods.",
        "",
    ]
    for each in whole["bars"]:
        met = "met" if each["ratio"] <= each["at_most"] else "not met"
        lines.append(
            f"- {LLM} after {each['trials']} relative to hpm after {each['hpm_trials']}: {each['ratio']:.4f} "
            f"(at most {each['at_most']:.2f}: {met})"
        )
    heads = "mean | median | seeds | won / tied / lost | worst loss |"
    lines += [
        "",
        f"Equal measurements:\n\n| trials | method | {heads}",
        "| --: | --- | --: | --: | --: | --: | --- |",
    ]
    lines += [
        f"| {each['trials']} | {each['method']} | {_cells(each)}" for each in whole["equal_measurements"]
    ]
    lines += [
        "",
        f"Equal time (that of the given number of trials of {LLM}; `ended`: searches that used all of their trials):",
        "",
        f"| trials | seconds | method | trials of the method | ended | {heads}",
        "| --: | --: | --- | --: | --: | --: | --: | --: | --: | --- |",
    ]
    lines += [
        f"| {each['trials']} | {each['seconds']:.2f} | {each['method']} | {each['method_trials']:g} | "
        f"{each['ended']} of {each['searches']} | {_cells(each)}"
        for each in whole["equal_time"]
    ]
    names = [each["method"] for each in whole["cost"]]
    lines += [
        "",
        "Cycles relative to the static compiler's after given numbers of trials, geometric means:",
        "",
        f"| trials | {' | '.join(names)} |",
        f"| --: |{' --: |' * len(names)}",
    ]
    lines += [
        f"| {each['trials']} | {' | '.join(f'{each[name]:.4f}' for name in names)} |"
        for each in whole["trials"]
    ]
    lines += ["", "| method | ms per trial | of which the method itself |", "| --- | --: | --: |"]
    lines += [
        f"| {each['method']} | {each['trial_ms']:.0f} | {each['own_ms']:.0f} |" for each in whole["cost"]
    ]
    lines += [
        "",
        "Cycles relative to the static compiler's after given times, geometric means:",
        "",
        f"| seconds | {' | '.join(names)} |",
        f"| --: |{' --: |' * len(names)}",
    ]
    lines += [
        f"| {each['seconds']:g} | {' | '.join(f'{each[name]:.4f}' for name in names)} |"
        for each in whole["seconds"]
    ]
    lines += [
        "",
        f"| layer | static | floor | {' | '.join(names)} |",
        f"| --- | --: | --: |{' --: |' * len(names)}",
    ]
    lines += [
        f"| {each['layer']} | {each['static']:,} | {each['floor']:,} | "
        + " | ".join(_spread(each[name]) for name in names)
        + " |"
        for each in whole["by_layer"]
    ]
    return "\n".join(lines) + "\n"


def _spread(found: dict[int, list[float]]) -> str:
    ((count, (minimum, middle, maximum)),) = found.items()
    return f"{middle:,.0f} ({minimum:,}..{maximum:,}) after {count}"


def _cells(each: Row) -> str:
    low, high = each["seeds"]
    loss = f"{100 * each['worst']:.1f}%, {each['worst_layer']}" if each["worst_layer"] else "none"
    return (
        f"{each['ratio']:.4f} | {each['median']:.4f} | {low:.4f}..{high:.4f} | "
        f"{each['won']} / {each['tied']} / {each['lost']} | {loss} |"
    )
