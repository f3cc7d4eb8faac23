"""Sources of requests for `mla serve`: a file, standard input, or random samples."""

import argparse
import io
import itertools
import json
import select
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from compiler.cli.exit_status import warn
from compiler.cli.inputs import Sample, read_samples
from compiler.ir.tensor import Tensor
from compiler.runtime.compiled import CompiledNetwork
from compiler.serving.request import Request, RequestSource
from compiler.util.tables import counted
from hw.errors import InputError, shown

STDIN = Path("-")
_NUMPY, _ZIP = b"\x93NUMPY", b"PK"
_CHUNK = 1 << 16
#: Maximum length of the name of a stream.
_MAX_STREAM_NAME = 256


def requests_of(args: argparse.Namespace, network: CompiledNetwork) -> RequestSource:
    """Return a source of requests, limited to the number given by `--requests`.

    A file has samples along the first axis, as for `mla run`. It is repeated if it has fewer samples than `--requests`.
    Standard input contains the same kind of file, or one JSON line per request: an array, or arrays by input name. If
    the network has states, the object may also name the `stream`, and `reset` its states; all requests of a file are of
    one stream. Without `--input`, the samples are random.

    Raises
    ------
    InputError
        The input cannot be read or does not fit the model. An invalid line raises the error when it is read.
    """
    if args.input == STDIN:
        lines = _Lines(sys.stdin.buffer)
        return RequestSource(itertools.islice(_from_stdin(network, lines), args.requests), lines.ready)
    if args.input is None:
        count = args.requests or 1
        warn(f"no --input: using {counted(count, 'random sample')} (seed {args.seed})")
        return RequestSource(map(Request, _random_requests(network, args.seed, count)))
    samples = read_samples(network.sample, args.input, args.requests, args.seed, network)
    repeated = itertools.islice(itertools.cycle(samples), args.requests or len(samples))
    return RequestSource(map(Request, repeated))


def _random_requests(network: CompiledNetwork, seed: int, count: int) -> Iterator[Sample]:
    from compiler.ir.graph import random_input
    from compiler.passes.index_bounds import index_bounds

    bounds = index_bounds(network)
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        yield {tensor.name: random_input(rng, tensor, bounds) for tensor in network.sample}


class _Lines(Iterator[bytes]):
    """Iterator over the lines of a stream, with a method that tests whether reading would block."""

    def __init__(self, stream: IO[bytes]):
        self._stream, self._left, self._ended = stream, b"", False

    def __next__(self) -> bytes:
        while b"\n" not in self._left and not self._ended:
            self._read()
        line, end, self._left = self._left.partition(b"\n")
        if not line and not end:
            raise StopIteration
        return line + end

    def rest(self) -> bytes:
        """Return all remaining data of the stream."""
        while not self._ended:
            self._read()
        out, self._left = self._left, b""
        return out

    def ready(self) -> bool:
        """Return whether the next line or the end of the stream is available without waiting."""
        if b"\n" in self._left or self._ended:
            return True
        try:
            return bool(select.select([self._stream], [], [], 0)[0])
        except (OSError, ValueError):
            return True  # not a file descriptor: all data are available

    def _read(self) -> None:
        data = self._stream.read1(_CHUNK)  # type: ignore[attr-defined] # of a buffered stream
        self._left, self._ended = self._left + data, not data


def _from_stdin(network: CompiledNetwork, lines: _Lines) -> Iterator[Request]:
    first = next(lines, b"")
    if not first:
        raise InputError("standard input is empty: expected samples as .npy, .npz or JSON lines")
    if first.startswith((_NUMPY, _ZIP)):
        sized = None if network.lengths is None else network
        samples = read_samples(network.sample, _Named(first + lines.rest()), None, 0, sized)  # type: ignore[arg-type]
        yield from map(Request, samples)
        return
    for number, line in enumerate(itertools.chain([first], lines), 1):
        if line.strip():
            yield _parse(network, f"standard input, line {number}", line)


class _Named(io.BytesIO):
    """Contents of a file, with the name to use in error messages."""

    def __str__(self) -> str:
        return "standard input"


def _parse(network: CompiledNetwork, where: str, line: bytes) -> Request:
    """Parse a request from a line of JSON."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: must be JSON: {error}") from None
    names = [tensor.name for tensor in network.sample]
    if not isinstance(value, dict):
        if len(names) != 1:
            raise InputError(f"{where}: the model has inputs {', '.join(names)}: give an object with each")
        value = {names[0]: value}
    stream, reset = _stream(network, where, value, names)
    if missing := [name for name in names if name not in value]:
        raise InputError(f"{where}: missing input {', '.join(map(repr, missing))}")
    if unknown := [name for name in value if name not in names]:
        raise InputError(
            f"{where}: unknown input {', '.join(map(shown, unknown))}; the model has {', '.join(map(repr, names))}"
        )
    tensors = network.sample
    if network.lengths is not None:
        try:
            shapes = {each: np.shape(value[each]) for each in names}
            tensors = network.at(network.length_of(shapes)).sample
        except ValueError:
            pass  # lists of different lengths, which `_array` reports
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    inputs = {tensor.name: _array(where, tensor, value[tensor.name]) for tensor in tensors}
    return Request(inputs, stream, reset)


def _stream(
    network: CompiledNetwork, where: str, value: dict[str, Any], names: Sequence[str]
) -> tuple[str, bool]:
    """Remove the name of the stream, and whether to reset its states, from a request; inputs of these names remain."""
    if not network.states:
        return "", False
    stream = "" if "stream" in names else value.pop("stream", "")
    reset = False if "reset" in names else value.pop("reset", False)
    if not isinstance(stream, str) or len(stream) > _MAX_STREAM_NAME:
        raise InputError(f"{where}: stream must be a text of at most {_MAX_STREAM_NAME} characters")
    if not isinstance(reset, bool):
        raise InputError(f"{where}: reset must be true or false, not {shown(reset)}")
    return stream, reset


def _array(where: str, tensor: Tensor, value: Any) -> NDArray:
    """Convert nested lists to an array of the type and shape of a tensor; a leading 1 may be omitted."""
    what = f"{where}: input {tensor.name!r} must be {tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
    try:
        array = np.array(value)
    except ValueError:
        raise InputError(f"{what}, not lists of different lengths") from None
    kind = np.dtype(tensor.dtype)
    numbers = "biuf" if kind.kind == "f" else "b" if kind.kind == "b" else "iu"
    if array.dtype.kind not in numbers:
        raise InputError(
            f"{what}, not {array.dtype.name} such as {shown(array.flat[0].item() if array.size else value)}"
            f"{tensor.meaning}"
        )
    inner = tensor.shape[1:] if tensor.shape and tensor.shape[0] == 1 else tensor.shape
    if array.shape not in (tensor.shape, inner):
        raise InputError(f"{what}, not {list(array.shape)}")
    made = array.astype(kind).reshape(tensor.shape)
    if kind.kind in "iu" and not np.array_equal(made, array.reshape(tensor.shape)):
        raise InputError(f"{what}: {array.min()}..{array.max()} is out of range")
    return made
