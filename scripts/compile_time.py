"""Measurement of compile times without and with the cache.

`python -m scripts.compile_time` compiles the small trained networks and ResNet-50 (random weights from a fixed seed),
each in its own process with an empty cache, and then again with the filled cache. The targets apply to a computer with
two idle cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from compiler.bench.architectures import NETWORKS, model_file
from compiler.bench.tiny import model_path
from compiler.util.progress import progress
from compiler.util.tables import Column, figures, format_table

SMALL = ("ad01_int8", "kws_ref_model", "pretrainedResnet_quant", "vww_96_int8")
#: Targets in seconds for a small network, a published network, and a cached network.
SMALL_BAR, LARGE_BAR, AGAIN_BAR = 5.0, 60.0, 0.5


def measure(model: Path, folder: Path) -> tuple[float, float]:
    """Return the compile time of a model in seconds, with an empty cache and with the filled cache."""
    first, again = (_compiled(model, folder) for _ in range(2))
    if (first["origin"], again["origin"]) != ("compiled", "cache"):
        raise SystemExit(f"{model}: {first['origin']}, then {again['origin']}: the cache does not work")
    return first["compile_seconds"], again["compile_seconds"]


def _compiled(model: Path, folder: Path) -> dict:
    """Run `mla compile` in its own process and return its report."""
    command = [sys.executable, "-m", "compiler.cli.main", "compile", str(model), "--json", "-"]
    done = subprocess.run(
        [*command, "-o", str(folder / "network.mla")],
        env=os.environ | {"MLA_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def table(names: list[str]) -> tuple[str, bool]:
    """Return the table, and True if all targets are met."""
    rows, met = [], True
    for name in names:
        model = model_path(name) if name in SMALL else model_file(name)
        with progress(f"compiling {name}"), tempfile.TemporaryDirectory(prefix="mla-compile-") as folder:
            first, again = measure(model, Path(folder))
        bar = SMALL_BAR if name in SMALL else LARGE_BAR
        met = met and first < bar and again < AGAIN_BAR
        rows.append([name, f"{first:.2f}", f"{bar:.0f}", f"{again:.2f}", f"{AGAIN_BAR:.1f}"])
    columns = [Column("network"), *figures("seconds", "target", "again", "target")]
    return format_table(columns, rows), met


def main() -> int:
    """Print the table; return status 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        description="Measure compile times in seconds, without and with the cache."
    )
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help="networks to compile (default: four small networks and resnet50)",
    )
    names = parser.parse_args().names or [*SMALL, "resnet50"]
    for name in names:
        if name not in (*SMALL, *NETWORKS):
            parser.error(f"a network must be one of {', '.join((*SMALL, *NETWORKS))}, not {name!r}")
    text, met = table(names)
    print(text)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
