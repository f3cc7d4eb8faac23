"""Every kind of network with every search method and every command of the tuner (`make soak`)."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from compiler.cache.model_source import ModelSource
from compiler.cli.main import main
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.runtime.session import Session, dram_bytes
from compiler.tuning.registry import LLM, METHODS
from cosim.golden import GoldenDevice
from hw.config import load_target
from tests.support.network_kinds import KINDS, network_of_kind, search

_REQUESTS, _TRIALS = 12, 6
#: Commands that work on layers, besides `mla tune` and `mla serve`.
_COMMANDS = (
    ("fuse", "--trials", "2"),
    ("llm", "sample", "--answers", "2"),
    ("profile",),
)


@pytest.mark.parametrize("method", [*METHODS, LLM])
@pytest.mark.parametrize("kind", KINDS)
def test_method_tunes_kind(kind: str, method: str, tmp_path: Path) -> None:
    found = search(kind, method, tmp_path, _TRIALS)
    print(f"{kind}, {method}: {found.baseline.cycles:,} -> {found.best.cost:,.0f}")


@pytest.mark.parametrize("method", ["portfolio", "evolution", "generators"])
@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_adapted_while_it_is_served(kind: str, method: str, tmp_path: Path) -> None:
    """The outputs of all requests equal those of the static programs on the golden model."""
    network, path = network_of_kind(kind), network_of_kind(kind).write(tmp_path)
    source, samples, lines = ModelSource(path), tmp_path / "samples.npz", tmp_path / "lines.jsonl"
    options = CompileOptions(rounding=source.rounding)
    static = ModelCompiler(source.graph, load_target("n4"), options).network()
    stacked = {name: np.stack([each[name] for each in network.samples]) for name in network.samples[0]}
    np.savez(samples, allow_pickle=False, **stacked)
    given = [
        "--input",
        samples,
        "--requests",
        _REQUESTS,
        "--out",
        lines,
        "--target",
        "n4",
        "--method",
        method,
    ]
    arguments = [
        "serve",
        path,
        "--adapt",
        "--trials-per-request",
        1,
        *given,
        "--profile",
        tmp_path / "profile.json",
    ]
    assert main([str(each) for each in arguments]) == 0
    documents = [json.loads(line) for line in lines.read_text().splitlines()]
    results = [each for each in documents if "index" in each]
    events = [each["event"] for each in documents if "event" in each]
    assert len(results) == _REQUESTS and not {"search lost", "left out"} & set(events), documents
    with GoldenDevice(static.config, dram_bytes(static)) as device:
        session = Session(device, static)
        for number, result in enumerate(results):
            outputs = session.run(network.samples[number % len(network.samples)])
            digests = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in outputs.items()}
            assert result["outputs"] == digests, f"request {number}"


@pytest.mark.parametrize("command", _COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("kind", KINDS)
def test_command_works_on_kind(kind: str, command: tuple[str, ...], tmp_path: Path) -> None:
    path, report = network_of_kind(kind).write(tmp_path), tmp_path / "report.json"
    verbs = command[: 2 if command[0] == "llm" else 1]
    assert main([*verbs, str(path), *command[len(verbs) :], "--target", "n4", "--json", str(report)]) == 0
    assert json.loads(report.read_text())
