"""Streams whose requests repeat, change in part or arrive in bursts: static programs and those that follow the data.

`python -m scripts.study_streams` serves three streams of real data on the simulated chip (n16), with and without the
programs that follow the data, and prints the mean cycles of a request:

- words: features of spoken words (data/kws_300.npz) and pauses of constant frames, with `--reuse`;
- bursts: windows of a machine's sound (data/ad_196.npz) that arrive in bursts, with `--batches 1,2,4,8`;
- photographs: a part of one photograph moves before another one, with `--reuse-regions`, for VWW and ResNet-8.

`--changes K` serves a stream of `--requests` requests to the digits network instead, whose inputs repeat or differ in K
phases. The gain is that of requests from the 50th of a phase on, relative to that of the best programs for the phase.

Every output is compared with that of the static programs.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.api import compile
from compiler.bench.tiny import model_path
from compiler.cli.exit_status import run_to_status
from compiler.runtime.compiled import CompiledNetwork
from compiler.serving.request import Request, RequestResult
from compiler.serving.reuse import ReusingServer
from compiler.serving.server import Server, TimedServer, serving_bytes, version_bytes
from compiler.util.progress import progress
from compiler.util.tables import Column, figures, format_table
from cosim.rtl.rtl_device import RtlDevice
from hw.errors import InputError
from scripts.networks.digits import MODEL
from scripts.study_batching import served as served_on_time

#: Frequency of the clock in MHz, which converts times of arrival to cycles.
CLOCK = 100.0
#: Share of the height and width of an image that the moving part has.
MOVING = 3 / 16
#: Requests of a phase before the programs should follow the data.
SETTLED = 50

Arrays = Mapping[str, NDArray]


def words(rng: np.random.Generator, count: int) -> Iterator[NDArray[np.int8]]:
    """Yield features of words, each followed by a pause of one to six requests whose frames are constant."""
    data = np.load(model_path("kws_ref_model").parent / "data/kws_300.npz")["x"]
    quiet = data[np.unravel_index(data[..., 0, 0].argmin(), data.shape[:2])]
    pause = np.broadcast_to(quiet, data.shape[1:]).copy()
    made = 0
    while made < count:
        for each in (data[rng.integers(len(data))], *[pause] * int(rng.integers(1, 7))):
            if made < count:
                yield each
                made += 1


def photographs(rng: np.random.Generator, shape: Sequence[int], count: int) -> Iterator[NDArray[np.int8]]:
    """Yield images of a photograph before which a part of another one moves by a pixel at a time.

    Parameters
    ----------
    rng : Generator
        Source of the place and the path of the moving part.
    shape : sequence of int
        Height, width and channels of an image.
    count : int
        Number of images.
    """
    from sklearn.datasets import load_sample_images

    height, width, _ = shape
    scale = 384 // max(height, width)
    pictures = [
        each[: height * scale, : width * scale].reshape(height, scale, width, scale, 3).mean((1, 3)) - 128
        for each in load_sample_images().images
    ]
    still, other = (np.rint(each).astype(np.int8) for each in pictures)
    size = round(height * MOVING), round(width * MOVING)
    part = other[: size[0], : size[1]]
    at = [int(rng.integers(0, end - own + 1)) for end, own in zip((height, width), size, strict=True)]
    step = [1, 1]
    for _ in range(count):
        image = still.copy()
        image[at[0] : at[0] + size[0], at[1] : at[1] + size[1]] = part
        yield image
        for axis, end in enumerate((height - size[0], width - size[1])):
            step[axis] = int(rng.integers(-1, 2)) if rng.random() < 0.1 else step[axis]
            at[axis] = min(max(at[axis] + step[axis], 0), end)


def served(
    usual: CompiledNetwork, following: CompiledNetwork | None, requests: Sequence[Arrays], text: str
) -> list[RequestResult]:
    """Return the results of requests on the simulated chip; `following` was compiled with `reuse`."""
    size = serving_bytes(usual, versions=1) + (version_bytes(following) if following else 0)
    results: list[RequestResult] = []
    with RtlDevice(usual.config, size) as device, progress(text, len(requests), "requests") as task:
        server = Server(device, usual)
        reusing = None if following is None else ReusingServer(server, server.add(following)[0])
        for inputs in requests:
            if reusing is None:
                server.submit(inputs)
            else:
                reusing.submit(Request(inputs))
            results += (reusing or server).results()
            task.advance(1)
        return results + (reusing or server).results(wait=True)


def check(wanted: Sequence[RequestResult], found: Sequence[RequestResult]) -> None:
    """Raise AssertionError unless all outputs are equal."""
    for number, (own, other) in enumerate(zip(wanted, found, strict=True)):
        for name, array in own.outputs.items():
            assert np.array_equal(array, other.outputs[name]), f"request {number}: {name!r} differs"


def mean_cycles(results: Sequence[RequestResult]) -> float:
    """Return the mean cycles of a request, with those in which the machine waited for programs."""
    return float(np.mean([result.cycles + result.delay for result in results]))


def reuse_row(name: str, network: str, inputs: Sequence[NDArray], *, regions: bool) -> dict[str, Any]:
    """Serve a stream with the usual programs and with those that reuse results."""
    path = model_path(network)
    usual = compile(path, "n16", database=False)
    following = compile(path, "n16", reuse="regions" if regions else True, database=False)
    requests = [{usual.inputs[0].name: each[np.newaxis]} for each in inputs]
    before, after = (served(usual, each, requests, f"{name} {network}") for each in (None, following))
    check(before, after)
    return {
        "stream": name,
        "network": network,
        "static": mean_cycles(before),
        "following": mean_cycles(after),
    }


def bursts_row(rng: random.Random, count: int) -> dict[str, Any]:
    """Serve windows that arrive in bursts of one to twelve, with one program and with four batch sizes."""
    path = model_path("ad01_int8")
    data = np.load(path.parent / "data/ad_196.npz")["x"]
    arrivals: list[float] = []
    now = 0.0
    while len(arrivals) < count:
        arrivals += [now + 0.001 * number for number in range(rng.randint(1, 12))]
        now += 4.0
    samples = [{"input_1": data[number % len(data)][np.newaxis]} for number in range(count)]
    single, batched = compile(path, "n16", database=False), compile(path, "n16", batches=(1, 2, 4, 8))
    name = single.inputs[0].name
    samples = [{name: each["input_1"]} for each in samples]
    with RtlDevice(single.config, serving_bytes(single, 1, 1)) as device:
        server = TimedServer(Server(device, single, 1), CLOCK)
        before: list[RequestResult] = []
        for sample, arrival in zip(samples, arrivals[:count], strict=True):
            server.submit(Request(sample, arrival=arrival))
        before += server.results(wait=True)
    after = served_on_time(batched, samples, arrivals[:count])
    check(before, after)
    together = float(np.mean([(result.cycles + result.delay) / result.batch_size for result in after]))
    return {"stream": "bursts", "network": "ad01_int8", "static": mean_cycles(before), "following": together}


def changing(seed: int, count: int, changes: int) -> dict[str, Any]:
    """Serve a stream with phases in which inputs repeat or differ, and return gain and loss of settled requests."""
    if (changes + 1) * 2 * SETTLED > count:
        raise InputError(
            f"--requests must be at least {(changes + 1) * 2 * SETTLED} for {changes} changes, not {count}"
        )
    rng = np.random.default_rng(seed)
    usual, following = compile(MODEL, "n16", database=False), compile(MODEL, "n16", reuse=True)
    (tensor,) = usual.inputs
    pool = rng.integers(-128, 128, (64, *tensor.shape)).astype(tensor.dtype)
    phases_count, least = changes + 1, 2 * SETTLED
    extra = rng.multinomial(count - phases_count * least, np.full(phases_count, 1 / phases_count))
    ends = np.cumsum(least + extra).tolist()
    order: list[int] = []
    phases: list[tuple[int, int, bool]] = []
    for number, end in enumerate(ends):
        first, repeats = len(order), number % 2 == 1
        same = int(rng.integers(len(pool)))
        while len(order) < end:
            step = int(rng.integers(1, len(pool)))
            order.append(same if repeats else ((order[-1] if order else 0) + step) % len(pool))
        phases.append((first, end, repeats))
    wanted = served(usual, None, [{tensor.name: each} for each in pool], "static programs")
    found = served(usual, following, [{tensor.name: pool[each]} for each in order], "changing stream")
    check([wanted[each] for each in order], found)
    static, best = mean_cycles(wanted), float(np.median([r.cycles for r in found if r.variant == "reused"]))
    settled = {
        kind: [
            found[at]
            for first, end, repeats in phases
            if repeats is kind
            for at in range(first + SETTLED, end)
        ]
        for kind in (True, False)
    }
    return {
        "requests": count,
        "changes": changes,
        "static": static,
        "best": best,
        "gain": (static - mean_cycles(settled[True])) / (static - best),
        "loss": mean_cycles(settled[False]) / static - 1,
        "mean": mean_cycles(found),
    }


def main(args: argparse.Namespace) -> int:
    """Serve the streams, and print the table or write the report."""
    if args.changes:
        report: dict[str, Any] = {"changing": changing(args.seed, args.requests, args.changes)}
        print(", ".join(f"{name} {value:,.3f}" for name, value in report["changing"].items()))
    else:
        rng = np.random.default_rng(args.seed)
        shapes = {"vww_96_int8": (96, 96, 3), "pretrainedResnet_quant": (32, 32, 3)}
        rows = [
            reuse_row("words", "kws_ref_model", list(words(rng, args.requests)), regions=False),
            bursts_row(random.Random(args.seed), args.requests),
            *(
                reuse_row("photographs", name, list(photographs(rng, shape, args.requests)), regions=True)
                for name, shape in shapes.items()
            ),
        ]
        report = {"streams": rows}
        table = [
            [
                row["stream"],
                row["network"],
                f"{row['static']:,.0f}",
                f"{row['following']:,.0f}",
                f"{row['static'] / row['following']:.2f} x",
            ]
            for row in rows
        ]
        print(
            format_table(
                [Column("stream"), Column("network"), *figures("static", "following", "gain")], table
            )
        )
    if args.json:
        args.json.write_text(json.dumps({"schema_version": 1, **report}, indent=1) + "\n")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="study_streams", description=__doc__)
    parser.add_argument("--requests", metavar="N", type=int, default=60, help="requests of each stream")
    parser.add_argument(
        "--changes", metavar="K", type=int, default=0, help="changes of the data in one long stream"
    )
    parser.add_argument("--seed", metavar="S", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    sys.exit(run_to_status("study_streams", lambda: main(given)))
