"""Measure streams of photographs with a moving part before a still background, with and without reuse of results.

Run as `python -m scripts.study_regions MODEL...`. The background is smooth noise with edges, quantized as the input of
the model; the moving part is another picture that moves by one pixel per request along a path with random turns. The
outputs of all requests are compared with those of the usual programs.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import compiler
from compiler.runtime.compiled import CompiledNetwork
from compiler.serving.request import Request, RequestResult
from compiler.serving.reuse import ReusingServer
from compiler.serving.server import Server, serving_bytes, version_bytes
from cosim.rtl.rtl_device import RtlDevice

#: Sizes of the moving part as shares of the height and width of the image; 0: nothing moves, 1: everything changes.
SHARES = (0.0, 0.05, 0.125, 0.1875, 0.25, 0.375, 1.0)
#: Number of requests that are not counted, until the program for regions has saved cycles.
FIRST = 12


def picture(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int8]:
    """Return a picture: noise at several scales, and edges.

    Parameters
    ----------
    rng : Generator
        Source of random numbers.
    shape : tuple of int
        Height, width and channels.
    """
    height, width, channels = shape
    total = np.zeros(shape)
    for scale in (2, 4, 8, 16):
        coarse = rng.normal(size=(height // scale + 2, width // scale + 2, channels)) * scale
        total += np.kron(coarse, np.ones((scale, scale, 1)))[:height, :width]
    total += rng.normal(size=shape)
    return np.clip(total / total.std() * 60, -128, 127).astype(np.int8)


def stream(
    rng: np.random.Generator, shape: tuple[int, ...], share: float, count: int
) -> Iterator[NDArray[np.int8]]:
    """Yield `count` images in which a part moves that has a share of the height and width."""
    still, (height, width, _) = picture(rng, shape), shape
    size = max(round(height * share), 1), max(round(width * share), 1)
    part = picture(rng, (*size, shape[2]))
    at, step = [int(rng.integers(0, n - s + 1)) for n, s in zip((height, width), size, strict=True)], [1, 1]
    for _ in range(count):
        if share == 1:
            yield picture(rng, shape)
            continue
        image = still.copy()
        if share:
            image[at[0] : at[0] + size[0], at[1] : at[1] + size[1]] = part
        yield image
        for axis, end in enumerate((height - size[0], width - size[1])):
            step[axis] = int(rng.integers(-1, 2)) if rng.random() < 0.1 else step[axis]
            at[axis] = min(max(at[axis] + step[axis], 0), end)


def served(
    usual: CompiledNetwork, reusing: CompiledNetwork | None, images: Sequence[NDArray[np.int8]]
) -> list[RequestResult]:
    """Return the results of a stream of images on the simulated chip."""
    size = serving_bytes(usual, versions=1) + (version_bytes(reusing) if reusing else 0)
    with RtlDevice(usual.config, size) as device:
        server = Server(device, usual)
        submit = server if reusing is None else ReusingServer(server, server.add(reusing)[0])
        out = []
        for image in images:
            inputs = {usual.inputs[0].name: image[np.newaxis]}
            submit.submit(inputs if isinstance(submit, Server) else Request(inputs))  # type: ignore[arg-type]
            out += submit.results()
        return out + submit.results(wait=True)


def cycles(results: Sequence[RequestResult]) -> float:
    """Return the mean cycles of a request after the first ones, with those in which the machine waited for programs."""
    return float(np.mean([result.cycles + result.delay for result in results[FIRST:]]))


def main() -> None:
    """Print the table of a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "models", type=Path, nargs="+", metavar="MODEL", help="networks with one image as input"
    )
    parser.add_argument(
        "--requests", type=int, default=60, help="requests of each stream (default: %(default)s)"
    )
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="sizes of the moving part")
    parser.add_argument("--seed", type=int, default=0, help="seed of the streams (default: %(default)s)")
    args = parser.parse_args()
    print("| network | moving part | usual | whole reuse | regions | speed | computed |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
    for path in args.models:
        usual, whole, regions = (compiler.compile(path, reuse=reuse) for reuse in (False, True, "regions"))
        shape = usual.inputs[0].shape[1:]
        for share in args.shares:
            rng = np.random.default_rng(args.seed)
            images = list(stream(rng, shape, share, args.requests))
            results = [served(usual, reusing, images) for reusing in (None, whole, regions)]
            for a, *others in zip(*results, strict=True):
                for name, array in a.outputs.items():
                    assert all(np.array_equal(array, other.outputs[name]) for other in others)
            mean = [cycles(each) for each in results]
            why = [
                result.why.partition("depends on ")[2].partition(" of ")[0] for result in results[2][FIRST:]
            ]
            known = [each for each in why if each]
            most = max(set(known), key=known.count) if known else "-"
            part = f"{round(shape[0] * share)} x {round(shape[1] * share)}" if share else "none"
            print(
                f"| {path.stem} | {part} | {mean[0]:,.0f} | {mean[1]:,.0f} | {mean[2]:,.0f} | "
                f"{mean[0] / mean[2]:.2f} | {most} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
