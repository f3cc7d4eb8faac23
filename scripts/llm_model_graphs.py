"""Graphs of public models for pre-training of the language model: operators and sizes, no weights and no code.

`python -m scripts.llm_model_graphs trace timm --out traces/` traces the models of an installed package (PyTorch on its
meta device, `scripts.llm_graph_sources`) or the networks of `scripts.llm_graph_tables`, and writes one file. `pack
traces/*.xz` removes duplicates and held-out networks, and writes `compiler/llm/data/model_graphs.xz`. `report` writes
the counts and the table of families to `docs/llm-corpus.md`.
"""

import argparse
import logging
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from time import monotonic

from compiler.llm.data.model_graphs import (
    MAX_LAYERS,
    MAX_SIZE,
    MODEL_GRAPHS,
    GraphLayer,
    ModelGraphs,
    NetworkGraph,
    is_validation_family,
    pretraining_sequences,
    read_graphs,
    write_graphs,
)
from compiler.llm.model.numpy_transformer import TransformerShape
from compiler.llm.tokens.vocabulary import LANGUAGE

_PAGE = Path(__file__).parents[1] / "docs" / "llm-corpus.md"
#: Time limit of one model in seconds.
_SECONDS = 45


def main() -> int:
    """Trace, convert, pack or report."""
    parser = argparse.ArgumentParser(description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    tracing = actions.add_parser("trace", help="trace the models of an installed package")
    tracing.add_argument("package", help="name in scripts.llm_graph_sources.SOURCES")
    tracing.add_argument("--out", type=Path, required=True, help="folder for the file PACKAGE.xz")
    packing = actions.add_parser("pack", help="write compiler/llm/data/model_graphs.xz")
    packing.add_argument("files", nargs="+", type=Path, help="files of earlier runs")
    actions.add_parser("report", help="write docs/llm-corpus.md")
    args = parser.parse_args()
    if args.action == "trace":
        _trace(args.package, args.out / f"{args.package}.xz")
    elif args.action == "pack":
        _pack(args.files)
    else:
        _report()
    return 0


def _trace(package: str, path: Path) -> None:
    from scripts.llm_graph_sources import SOURCES
    from scripts.llm_graph_tables import table_sources

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGALRM, _stop)
    origins, networks, failed = {}, {}, Counter()
    started = monotonic()
    for source in (SOURCES | {"tables": table_sources})[package]():
        signal.alarm(_SECONDS)
        try:
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                layers = source.layers()
        except Exception as error:  # noqa: BLE001  models of other projects fail in many ways and are left out
            failed[f"{type(error).__name__}: {str(error)[:60]}"] += 1
            if failed.total() % 20 == 0:
                print(failed.most_common(6), file=sys.stderr, flush=True)
            continue
        finally:
            signal.alarm(0)
        if _valid(layers):
            networks[source.family, source.name] = NetworkGraph(source.family, source.name, tuple(layers))
            origins[source.family] = source.origin
        if len(networks) % 50 == 0:
            print(
                f"{monotonic() - started:.0f} s: {len(networks)} networks, {source.name}",
                file=sys.stderr,
                flush=True,
            )
            write_graphs(ModelGraphs(origins, list(networks.values())), path)
    write_graphs(ModelGraphs(origins, list(networks.values())), path)
    print(f"{package}: {len(networks)} networks of {len(origins)} families, {failed.total()} failed")
    for reason, count in failed.most_common(40):
        print(f"{count:6} {reason}")


def _stop(*_args: object) -> None:
    raise TimeoutError("the time limit of a model")


def _valid(layers: Sequence[GraphLayer]) -> bool:
    return 0 < len(layers) <= MAX_LAYERS and all(
        0 < size <= MAX_SIZE for each in layers for size in each.sizes
    )


def _pack(files: Sequence[Path]) -> None:
    """Write the networks of files without held-out networks and without equal networks of other files."""
    origins: dict[str, dict[str, str]] = {}
    networks: dict[tuple[GraphLayer, ...], NetworkGraph] = {}
    held_out = 0
    for file in files:
        graphs = read_graphs(file)
        for network in graphs.networks:
            held_out += network.is_held_out
            if not network.is_held_out and network.layers not in networks:
                networks[network.layers] = network
                origins[network.family] = graphs.origins[network.family]
    write_graphs(ModelGraphs(origins, list(networks.values())), MODEL_GRAPHS)
    print(
        f"{len(networks)} networks of {len(origins)} families, {held_out} held out: "
        f"{MODEL_GRAPHS.stat().st_size:,} bytes"
    )


def _report() -> None:
    """Write counts per operator, tokens, and the origin of each family to the page of the corpus."""
    graphs = read_graphs()
    sequences = pretraining_sequences(LANGUAGE, graphs.networks, TransformerShape(len(LANGUAGE)).context)
    layers = Counter(layer.word for network in graphs.networks for layer in network.layers)
    distinct = Counter(layer.word for layer in {one for network in graphs.networks for one in network.layers})
    operators = [f"| `{word}` | {count:,} | {distinct[word]:,} |" for word, count in layers.most_common()]
    sets = {
        name: [family for family in sequences if is_validation_family(family) is validation]
        for name, validation in (("training", False), ("validation", True))
    }
    rows = [
        f"| {name} | {len(families):,} | {sum(each.family in set(families) for each in graphs.networks):,} "
        f"| {sum(len(sequences[family]) for family in families):,} "
        f"| {sum(len(one) for family in families for one in sequences[family]):,} |"
        for name, families in sets.items()
    ]
    counts = Counter(network.family for network in graphs.networks)
    families = [
        f"| {family} | {counts[family]:,} | {origin['repository']}, {origin['path']} "
        f"| {origin['licence']} | {origin['traced']} | {'yes' if is_validation_family(family) else ''} |"
        for family, origin in sorted(graphs.origins.items())
    ]
    tables = {
        "sets": [
            "| set | families | networks | sequences | tokens |",
            "| --- | --- | --- | --- | --- |",
            *rows,
        ],
        "operators": ["| word | layers | distinct layers |", "| --- | --- | --- |", *operators],
        "families": [
            "| family | networks | repository, path | licence | traced with | validation |",
            "| --- | --- | --- | --- | --- | --- |",
            *families,
        ],
    }
    text = _PAGE.read_text("utf-8")
    for name, lines in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        head, _, rest = text.partition(begin)
        text = head + begin + "\n".join(["", *lines, ""]) + "\n" + end + rest.partition(end)[2]
    _PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    sys.exit(main())
