"""Measures schedules of small networks on the RTL: what the language model is trained with.

`python -m scripts.llm_corpus --seconds 3000` goes on where the last call ended: everything measured is in a journal in
the cache. At the end all of it is packed into `compiler/llm/corpus/schedules.xz`, which is part of the project, so that
nobody needs to measure it again.
"""

import argparse
import multiprocessing
import os
import sys
from pathlib import Path
from time import monotonic

from compiler.llm.corpus.collect import Devices, measure, places
from compiler.llm.corpus.default import CORPUS
from compiler.llm.corpus.journal import Journal, pack, read
from cosim.rtl.cache import cache_folder

_SAY = 30.0


def main() -> int:
    """Measure, pack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lanes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=cache_folder() / "llm")
    parser.add_argument("--pack", type=Path, default=CORPUS)
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    lanes = [
        spawn.Process(target=_lane, args=(args.folder, args.seed, lane, args.lanes, args.seconds))
        for lane in range(args.lanes)
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    files = sorted(args.folder.glob("*.jsonl"))
    walks = {(walk.machine, walk.index): walk for file in files for walk in read(file)}
    pack(walks.values(), args.pack)
    steps = sum(len(walk.steps) for walk in walks.values())
    print(f"{len(walks)} networks, {steps} measurements, {args.pack.stat().st_size:,} bytes")
    return max(lane.exitcode or 0 for lane in lanes)


def _lane(folder: Path, seed: int, lane: int, lanes: int, seconds: float) -> None:
    """Measure every so many-th network."""
    journal, devices = Journal(folder / f"{seed}.{lane}.jsonl"), Devices()
    end, told, steps = monotonic() + seconds, monotonic(), 0
    try:
        for name, index in places(seed, lane, lanes):
            if monotonic() > end:
                return
            if (name, index) in journal.done:
                continue
            walk = measure(devices, name, index, seed)
            if walk is not None:
                journal.add(walk)
                steps += len(walk.steps)
            if monotonic() > told + _SAY:
                told = monotonic()
                print(
                    f"lane {lane}: {len(journal.done)} networks, {steps} measurements now, {end - told:.0f} s left",
                    flush=True,
                )
    finally:
        devices.close()


if __name__ == "__main__":
    sys.exit(main())
