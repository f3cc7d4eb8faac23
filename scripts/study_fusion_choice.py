"""Comparison of ways to choose the fusions that are measured, replayed from files of `scripts.study_fusion`.

`python -m scripts.study_fusion_choice --train FILE ... --test FILE ...` reads files that `study_fusion --json` wrote,
with the measured cycles of all variants of each chain. A contextual bandit learns on the chains of the first files by
which factor the variants of a site differ from their predictions; the context is the operators of the chain, or
nothing, and the arm is the kind of the variant. On the chains of the other files, it then chooses variants by the
corrected predictions and their uncertainty. It is compared with the shortlist of the fusion engine, with the best
predictions and with random variants.
"""

import argparse
import json
import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

from compiler.util.tables import Column, figures, format_table
from scripts.study_fusion import shortlist

#: Numbers of variants that are measured, ratio to the best that counts as found, draws of random variants.
_COUNTS, _CLOSE, _DRAWS = (1, 3), 1.005, 100
#: Passes over the training chains, share of random choices in them, weight of the prediction in trials.
_PASSES, _EXPLORATION, _PRIOR = 4, 0.2, 4.0

Row = dict[str, Any]
Way = dict[str, Any]


class FusionBandit:
    """Contextual bandit whose arms are kinds of variants, with the mean log ratio of measured to predicted gain.

    Parameters
    ----------
    context : callable
        Function that returns the context of a chain.
    seed : int
        Seed of the random order of chains and of random choices.
    """

    def __init__(self, context: Callable[[Row], str], seed: int):
        self.context, self.rng = context, random.Random(seed)
        self.records: dict[tuple[str, str], list[float]] = defaultdict(list)

    def learn(self, rows: list[Row]) -> None:
        """Choose and measure variants of all chains, several times in random order, and update the records."""
        for _ in range(_PASSES):
            for row in self.rng.sample(rows, len(rows)):
                chosen = self.choose(row, max(_COUNTS))
                for way in chosen:
                    if self.rng.random() < _EXPLORATION:
                        way = self.rng.choice(row["ways"])
                    self.records[self._key(row, way)].append(log(way["measured"] / way["predicted"]))

    def choose(self, row: Row, count: int) -> list[Way]:
        """Return the variant with the best corrected prediction, then those that may be best within their errors."""
        return shortlist([self._corrected(row, way) for way in row["ways"]], count)

    def _corrected(self, row: Row, way: Way) -> Way:
        """Return a variant with the prediction and the error that the records imply."""
        found = self.records[self._key(row, way)]
        predicted = way["predicted"] * exp(sum(found) / (len(found) + _PRIOR))
        return way | {"predicted": predicted, "error": way["error"] / (1 + len(found) / _PRIOR) ** 0.5}

    def _key(self, row: Row, way: Way) -> tuple[str, str]:
        return self.context(row), re.sub(r"\d+", "#", way["what"])


def _losses(rows: list[Row], choose: Callable[[Row, int], list[Way]], count: int) -> list[float]:
    """Return the ratio of the best measured variant's cycles to the best variant's cycles, for each chain.

    The static compiler's variant is measured in any case.
    """
    return [
        min(row["static"], *(way["measured"] for way in choose(row, count)))
        / min(way["measured"] for way in row["ways"])
        for row in rows
    ]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, nargs="+", required=True, help="files of the training chains")
    parser.add_argument(
        "--test", type=Path, nargs="+", required=True, help="files of the chains of the table"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of random choices")
    args = parser.parse_args()
    print(f"seed {args.seed}")
    train, test = (
        [row for file in files for row in json.loads(file.read_text("utf-8"))]
        for files in (args.train, args.test)
    )
    rng = random.Random(args.seed)
    bandits = {
        "bandit": FusionBandit(lambda _row: "", args.seed),
        "contextual bandit": FusionBandit(lambda row: row["chain"], args.seed),
    }
    for bandit in bandits.values():
        bandit.learn(train)
    ways: dict[str, Callable[[Row, int], list[Way]]] = {
        "random": lambda row, count: rng.sample(row["ways"], min(count, len(row["ways"]))),
        "greedy": lambda row, count: sorted(row["ways"], key=lambda way: way["predicted"])[:count],
        "shortlist": lambda row, count: shortlist(row["ways"], count),
        **{name: bandit.choose for name, bandit in bandits.items()},
    }
    table = []
    for name, choose in ways.items():
        cells = [name]
        for count in _COUNTS:
            losses = [_losses(test, choose, count) for _ in range(_DRAWS if name == "random" else 1)]
            found = mean(mean(loss <= _CLOSE for loss in each) for each in losses)
            cells += [f"{found:.1%}", f"{mean(map(mean, losses)) - 1:.2%}"]
        table.append(cells)
    heads = [f"{what}, {count} measured" for count in _COUNTS for what in ("within 0.5%", "mean loss")]
    print(f"{len(train)} training chains, {len(test)} chains")
    print(format_table([Column("choice"), *figures(*heads)], table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
