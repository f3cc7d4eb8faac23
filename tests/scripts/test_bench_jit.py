"""Candidates of `python -m scripts.bench_jit` are alternative schedules of one layer, and all stages are timed."""

import subprocess
import sys
from itertools import islice
from pathlib import Path

from compiler.cache.model_source import ModelSource
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from hw.config import load_target
from scripts.bench_jit import CANDIDATES, candidates, measure

ROOT = Path(__file__).parents[2]
CHAIN = CalibrationNetwork((7, 7, 16), (CalibrationOp("conv", 16, 3), CalibrationOp("dense", 16)))


def test_candidates_change_one_layer():
    prepared = ModelCompiler(CHAIN.graph(), load_target("n16"), CompileOptions(rounding="reference"))
    first = prepared.network().schedule
    changed = set()
    for name, schedule in islice(candidates(prepared, first, seed=5), 6):
        assert schedule.fusions == first.fusions and schedule.layers.keys() == first.layers.keys()
        assert [each for each in first.layers if schedule.layers[each] != first.layers[each]] == [name]
        changed.add(str(schedule.layers[name]))
    assert len(changed) == 6


def test_all_stages_of_every_candidate_are_timed():
    times = measure(ModelSource(CHAIN.graph()))
    assert len(times) == CANDIDATES
    for each in times:
        assert min(each.compile, each.add) > 0
        assert each.total == each.compile + each.add


def test_unknown_network_is_rejected():
    command = [sys.executable, "-m", "scripts.bench_jit", "no_such_network"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 2 and "no_such_network" in done.stderr
    assert len(done.stderr.splitlines()) == 1
