"""Measurement of small networks on the RTL with many schedules and edits, as training data for the language model.

`python -m scripts.llm_corpus --seconds 3000` continues earlier runs, whose measurements are stored in a journal in the
cache. Networks of the corpus that have no measured edits are measured first. At the end, all measurements are packed
into `compiler/llm/data/schedules.xz`, and the best schedules of each layer into `known_layers.xz` in the same folder.
Both are part of the repository. `--transformers` measures parts of transformers and deep dense layers instead of
networks of all kinds. `--again` measures the networks of the corpus again, and no others, after the machine or the
static compiler has changed: networks whose cycles differ from the recorded ones get new measurements of their
schedules, as many new schedules as a new network, and new edits.
"""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from compiler.llm.data.collect import (
    FIRST_TRANSFORMER,
    Devices,
    corpus_indices,
    measure,
    measure_again,
    with_edits,
)
from compiler.llm.data.examples import CORPUS, known_layers
from compiler.llm.data.held_out import TRAINING
from compiler.llm.data.trajectories import CorpusJournal, Trajectory, pack, read
from compiler.llm.generate.known_layers import KNOWN_LAYERS, write_known_layers
from cosim.rtl.cache import cache_folder

#: Seconds between progress messages.
_REPORT_SECONDS = 30.0


@dataclass(frozen=True)
class NewNetworks:
    """Networks that are measured in addition to those of the corpus.

    Parameters
    ----------
    seed : int
        Random seed for the networks and their configurations.
    first : int
        Smallest number of a network.
    machines : tuple of str
        Names of the configurations, keys of TRAINING.
    """

    seed: int
    first: int
    machines: tuple[str, ...]


@dataclass(frozen=True)
class Share:
    """Share of the work of one of several worker processes.

    Parameters
    ----------
    worker, workers : int
        Index of the process, and number of processes.
    """

    worker: int
    workers: int

    def has(self, index: int) -> bool:
        """Return True if this process measures the network with this number."""
        return index % self.workers == self.worker


def main() -> int:
    """Measure in parallel, then pack all measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit of the measurements")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--transformers",
        action="store_true",
        help="new networks are parts of transformers and deep dense layers",
    )
    parser.add_argument(
        "--again", action="store_true", help="measure the networks of the corpus again, and no new ones"
    )
    parser.add_argument(
        "--machines",
        default=",".join(TRAINING),
        help="comma-separated configurations of new networks (default: %(default)s)",
    )
    parser.add_argument("--folder", type=Path, default=cache_folder() / "llm")
    parser.add_argument("--pack", type=Path, default=CORPUS)
    args = parser.parse_args()
    machines = tuple(args.machines.split(","))
    if unknown := set(machines) - set(TRAINING):
        parser.error(f"--machines must be among {', '.join(TRAINING)}, not {', '.join(sorted(unknown))}")
    new = NewNetworks(args.seed, FIRST_TRANSFORMER if args.transformers else 0, machines)
    spawn = multiprocessing.get_context("spawn")
    paths = args.folder, args.pack
    workers = [
        spawn.Process(
            target=_worker, args=(paths, None if args.again else new, args.seed, share, args.seconds)
        )
        for share in (Share(worker, args.workers) for worker in range(args.workers))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    trajectories = _known(args.pack, args.folder)
    pack(trajectories.values(), args.pack)
    ordered = sorted(trajectories.values(), key=lambda trajectory: (trajectory.machine, trajectory.index))
    write_known_layers(known_layers(ordered), args.pack.with_name(KNOWN_LAYERS.name))
    steps = sum(len(trajectory.steps) for trajectory in trajectories.values())
    variants = sum(
        len(trajectory.edited.variants)
        for trajectory in trajectories.values()
        if trajectory.edited is not None
    )
    size = args.pack.stat().st_size
    print(
        f"{len(trajectories)} networks, {steps} measurements of schedules, {variants} of edits, {size:,} bytes"
    )
    return max(worker.exitcode or 0 for worker in workers)


def _known(packed: Path, folder: Path) -> dict[tuple[str, int], Trajectory]:
    """Return all measurements; a measurement in a journal replaces the packed measurement of the same network."""
    files = [*([packed] if packed.exists() else []), *sorted(folder.glob("*.jsonl"))]
    return {(trajectory.machine, trajectory.index): trajectory for file in files for trajectory in read(file)}


def _worker(
    paths: tuple[Path, Path], new: NewNetworks | None, seed: int, share: Share, seconds: float
) -> None:
    """Measure this process's networks until the time limit is reached or the parent process has died.

    If `new` is None, the networks of the corpus are measured again.
    """
    folder, packed = paths
    parent, known = os.getppid(), _known(packed, folder)
    kind = "again" if new is None else str(seed)
    journal, devices = CorpusJournal(folder / f"{kind}.{share.worker}.jsonl"), Devices()
    end, last_report, found = monotonic() + seconds, monotonic(), 0
    measurements = (
        _repeated(known, journal, devices, seed, share)
        if new is None
        else _measurements(known, journal, devices, new, share)
    )
    try:
        for trajectory in measurements:
            if trajectory is not None:
                journal.add(trajectory)
                found += 1
            if monotonic() > end or os.getppid() != parent:
                return
            if monotonic() > last_report + _REPORT_SECONDS:
                last_report = monotonic()
                print(f"worker {share.worker}: {found} networks, {end - last_report:.0f} s left", flush=True)
    finally:
        devices.close()


def _repeated(
    known: dict[tuple[str, int], Trajectory],
    journal: CorpusJournal,
    devices: Devices,
    seed: int,
    share: Share,
) -> Iterator[Trajectory | None]:
    """Yield new measurements of the known networks that have none in the journal, the most frequent machines first."""
    order = sorted(known.items(), key=lambda each: (-TRAINING[each[0][0]][1], each[0]))
    for number, (key, trajectory) in enumerate(order):
        if share.has(number) and key not in journal.done:
            yield measure_again(devices, trajectory, seed)


def _measurements(
    known: dict[tuple[str, int], Trajectory],
    journal: CorpusJournal,
    devices: Devices,
    new: NewNetworks,
    share: Share,
) -> Iterator[Trajectory | None]:
    """Yield measurements indefinitely, first of known networks without edits, then of new networks."""
    for key, trajectory in sorted(known.items(), key=lambda each: each[1].index):
        asked = trajectory.index >= new.first and share.has(trajectory.index)
        if asked and trajectory.edited is None and key not in journal.done:
            yield with_edits(devices, trajectory, new.seed)
    for name, index in corpus_indices(new.seed, new.first + share.worker, share.workers, new.machines):
        if (name, index) not in known and (name, index) not in journal.done:
            yield measure(devices, name, index, new.seed)


if __name__ == "__main__":
    sys.exit(main())
