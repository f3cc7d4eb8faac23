"""Measurement of how fast and how well serving adapts when the DRAM bandwidth drops to a quarter and recovers.

`python -m scripts.study_adaptation digits kws_ref_model` serves each network with one search trial per request, changes
the DRAM timing twice, and then tunes from scratch for both timings with the same number of trials. For each change, it
prints the number of requests until the change was detected and until the new timing was identified, the cycles per
request 200 requests after the change, and the gain relative to tuning from scratch. The exit status is 1 if a target is
missed.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from compiler.bench.tiny import NETWORKS, model_path
from compiler.cache.model_source import ModelSource
from compiler.cli.exit_status import run_to_status
from compiler.online_tuning.observers import ServingHistory, ServingProgress
from compiler.online_tuning.search_worker import SearchJob
from compiler.online_tuning.serve import Change, Serving, open_machine, serve
from compiler.options import DEFAULT_DRAM, CompileOptions, DramTiming
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.quantize.ranges import random_samples
from compiler.serving.request import Request, RequestSource
from compiler.serving.server import MAX_IN_FLIGHT
from compiler.tuning.constraints import Objective
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import METHODS
from compiler.tuning.search.tuner import tune
from compiler.util.progress import progress
from hw.config import load_target
from scripts.networks.digits import MODEL

#: Targets: requests until a change is detected, requests until programs for the new timing run, and share of the gain
#: that these programs reach.
NOTICED, SPECIALISED, SHARE = 20, 200, 0.9
#: Number of requests before the first change, between the changes, and after the second change.
_BEFORE, _BETWEEN = 60, SPECIALISED + 20
_SLOW = DramTiming(bytes_per_cycle=4.0)
#: Number of requests over which the median cycles are computed.
_SOME = 8


@dataclass(frozen=True)
class AdaptationRow:
    """Result of one change of the DRAM timing.

    Parameters
    ----------
    network : str
        Name of the served network.
    bytes_per_cycle : float
        DRAM bandwidth after the change.
    noticed, known, specialised : int or None
        Number of requests until the change was detected, until the timing was identified, and until nine tenths of the
        gain were permanently reached; each is None if this did not occur.
    before, after : float
        Cycles of a request directly after the change, and 200 requests after it.
    scratch : float
        Cycles of a request after tuning from scratch.
    """

    network: str
    bytes_per_cycle: float
    noticed: int | None
    known: int | None
    specialised: int | None
    before: float
    after: float
    scratch: float

    @property
    def share(self) -> float:
        """Gain as a share of the gain of tuning from scratch; 1 if tuning from scratch has no gain."""
        gain = self.before - self.scratch
        return (self.before - self.after) / gain if gain > 0 else 1.0

    @property
    def passed(self) -> bool:
        """True if all targets are met."""
        targets = ((self.noticed, NOTICED), (self.specialised, SPECIALISED))
        return (
            all(count is not None and count <= maximum for count, maximum in targets) and self.share >= SHARE
        )

    def text(self) -> str:
        """Return the result as one line of text."""
        return (
            f"{self.network}, {self.bytes_per_cycle:g} bytes a cycle: noticed after {self.noticed} requests, "
            f"memory known after {self.known}, {SHARE:.0%} of the gain after {self.specialised}; {self.before:,.0f} -> "
            f"{self.after:,.0f} cycles, from scratch {self.scratch:,.0f}: {self.share:.0%} of the gain, "
            f"{self.scratch / self.after:.1%} of the speed: {'ok' if self.passed else 'MISSED'}"
        )


def adaptation(name: str, method: str, seed: int) -> list[AdaptationRow]:
    """Return the results of both changes for one network."""
    source = ModelSource(MODEL if name == "digits" else model_path(name))
    job = SearchJob(
        source.graph,
        load_target("n16"),
        CompileOptions(rounding=source.rounding, seed=seed),
        method,
        seed=seed,
    )
    network = ModelCompiler(job.graph, job.config, job.options).network()
    change_requests = (_BEFORE, _BEFORE + _BETWEEN)
    changes = tuple(
        Change(at, dram.latency, dram.bytes_per_cycle)
        for at, dram in zip(change_requests, (_SLOW, DEFAULT_DRAM), strict=True)
    )
    serving = Serving(network, DEFAULT_DRAM, job, trials_per_request=1, changes=changes)
    count = change_requests[1] + _BETWEEN
    history = ServingHistory(clocked=True)
    samples = islice(cycle(random_samples(job.graph, seed, _SOME)), count)
    with open_machine(serving) as device, progress(f"serving {name}", count, "requests") as task:
        serve(
            serving,
            device,
            RequestSource(map(Request, samples)),
            [history, ServingProgress(task, clocked=True)],
        )
    return [
        _row(name, at, dram, history, _from_scratch(job, dram))
        for at, dram in zip(change_requests, (_SLOW, DEFAULT_DRAM), strict=True)
    ]


def _from_scratch(job: SearchJob, dram: DramTiming) -> float:
    """Tune from scratch for a DRAM timing, and return the cycles of a request."""
    conditions = HardwareProfile(job.config, dram)
    options = replace(job.options, dram=dram)
    print(f"tuning from scratch: {_BETWEEN} trials", file=sys.stderr, flush=True)
    with Measurer(job.graph, conditions, options, 1, job.seed, stream=True) as measurer:
        best = tune(measurer, job.method, _BETWEEN, Objective.THROUGHPUT, job.seed).best.result
    assert isinstance(best, Measurement)
    return best.cycles


def _row(name: str, at: int, dram: DramTiming, history: ServingHistory, scratch: float) -> AdaptationRow:
    def after(event: str, since: int) -> int | None:
        """Return the number of requests until the first event of a type; None if it did not occur."""
        found = [each["request"] - since for each in history.events if each["event"] == event]
        return next((count for count in found if 0 <= count < _BETWEEN), None)

    last, served = at + SPECIALISED, history.versions
    reload = next((each for each in range(at + _SOME, last) if served[each] != served[at]), last)
    before = median(history.cycles[at + _SOME // 2 : reload])
    enough = before - SHARE * max(before - scratch, 0)
    slow = [number for number in range(at, last) if history.cycles[number] > enough]
    specialised = slow[-1] + 1 - at if slow else 0
    now = median(history.cycles[last - _SOME : last])
    return AdaptationRow(
        # Requests in flight at the change already complete with the new timing; request numbers start at 1.
        name,
        dram.bytes_per_cycle or 16.0,
        after("drift", at - MAX_IN_FLIGHT - 1),
        after("conditions", at),
        specialised if specialised < SPECIALISED else None,
        before,
        now,
        scratch,
    )


def main() -> int:
    """Serve and tune all networks, and print the results."""
    parser = argparse.ArgumentParser(prog="study_adaptation", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("networks", nargs="+", choices=("digits", *NETWORKS), metavar="NETWORK")
    parser.add_argument("--method", choices=METHODS, default="evolution", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    rows: list[AdaptationRow] = []
    for name in args.networks:
        for row in adaptation(name, args.method, args.seed):
            print(row.text(), flush=True)
            rows.append(row)
    if args.json:
        found = [asdict(row) | {"share": row.share, "passed": row.passed} for row in rows]
        args.json.write_text(json.dumps({"schema_version": 1, "rows": found}, indent=2) + "\n", "utf-8")
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(run_to_status("study_adaptation", main))
