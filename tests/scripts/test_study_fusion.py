"""The studies of fusions measure the variants of chains, store the measurements, and compare ways to choose."""

import json
import random
import subprocess
import sys
from pathlib import Path

ROOT, SEED = Path(__file__).parents[2], 3


def run(*arguments: object) -> str:
    command = [sys.executable, "-m", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout


def test_measurements_are_stored_and_repeated(tmp_path: Path) -> None:
    names = (
        "--cases",
        1,
        "--seed",
        SEED,
        "--file",
        tmp_path / "measured.jsonl",
        "--json",
        tmp_path / "rows.json",
    )
    first = run("scripts.study_fusion", *names)
    assert first.startswith(f"seed {SEED}\n") and "1 chains: chosen is the measured best" in first
    lines = (tmp_path / "measured.jsonl").read_text()
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert sum(way["chosen"] for way in row["ways"]) == 1 and row["static"] > 0
    assert run("scripts.study_fusion", *names) == first
    assert (tmp_path / "measured.jsonl").read_text() == lines


def test_choices_are_compared(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    for name in ("train", "test"):
        rows = []
        for _ in range(20):
            ways = [
                {"what": f"kind {k % 3}", "predicted": 1000 + 10 * k, "error": 50, "measured": 1000 + 10 * k}
                for k in range(6)
            ]
            rows.append({"chain": rng.choice(("a", "b")), "static": 2000, "ways": ways})
        (tmp_path / name).write_text(json.dumps(rows))
    text = run("scripts.study_fusion_choice", "--train", tmp_path / "train", "--test", tmp_path / "test")
    rows = {line.split("  ")[0]: line for line in text.splitlines()}
    assert all("100.0%" in rows[name] for name in ("greedy", "shortlist", "bandit", "contextual bandit"))
    assert "100.0%" not in rows["random"]
