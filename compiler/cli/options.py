"""Options that several verbs share, and the check that output files do not overwrite input files."""

import argparse
import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.util.files import check_output
from compiler.util.progress import log
from hw.config import DEFAULT_TARGET, target_names
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from compiler.options import DramTiming, PerformanceTargets
    from compiler.runtime.compiled import CompiledNetwork

#: Limits of the DRAM model in cycles and in bytes per cycle.
_MAX_LATENCY = _MAX_RATE = 1_000_000
#: Largest clock frequency in MHz.
_MAX_MHZ = 100_000


def add_renamed(parser: argparse.ArgumentParser, name: str, *, former_name: str, **settings: Any) -> None:
    """Add an option that is also accepted under its former name, which the help does not show.

    Parameters
    ----------
    parser : ArgumentParser
        Parser of the verb.
    name : str
        Name of the option, such as `--max-in-flight`.
    former_name : str
        Name that the option had in earlier releases.
    settings : dict
        Other keyword arguments of `ArgumentParser.add_argument`.
    """
    option = parser.add_argument(name, **settings)
    hidden: dict[str, Any] = {"dest": option.dest, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument(former_name, **settings | hidden)


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return an argparse type for integers of at least `low` and, if `high` is given, at most `high`."""
    rule = f"of at least {low}" if high is None else f"in {low}..{high}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"must be an integer {rule}, not {shown(text)}")
        return value

    return parse


def _throttle(text: str) -> float:
    """Parse an argument: the share of the cycles in which the clock of the chip is stalled."""
    from cosim.checks import MAX_THROTTLE  # needs numpy, without which `mla doctor` must run

    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_THROTTLE:
        raise argparse.ArgumentTypeError(f"must be in 0..{float(MAX_THROTTLE)}, not {shown(text)}")
    return value


def frequency(text: str) -> float:
    """Parse an argument: a clock frequency in MHz."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= _MAX_MHZ:
        raise argparse.ArgumentTypeError(
            f"must be a frequency in MHz above 0, at most {_MAX_MHZ}, not {shown(text)}"
        )
    return value


#: What `--clock` does in verbs that run a network.
_CLOCK_HELP = "clock frequency: also report milliseconds, inferences per second and estimated milliwatts"


def add_clock(parser: argparse.ArgumentParser, text: str = _CLOCK_HELP) -> None:
    """Add `--clock`, which `text` describes in the help."""
    parser.add_argument("--clock", metavar="MHZ", type=frequency, help=text)


#: Units of times, in seconds.
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def positive(text: str) -> float:
    """Parse an argument: a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {shown(text)}")
    return value


def _latency(text: str) -> tuple[float, bool]:
    """Parse an argument: cycles, or a time with its unit; return the cycles or seconds, and True for seconds."""
    unit = next((each for each in _TIMES if text.endswith(each)), None)
    try:
        value = positive(text.removesuffix(unit or ""))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"must be a number of cycles above 0, or a time such as 1.5ms or 80us, not {shown(text)}"
        ) from None
    return value * _TIMES.get(unit or "", 1.0), unit is not None


def add_performance_targets(
    parser: argparse.ArgumentParser, effect: str = "report whether", note: str = ""
) -> None:
    """Add the options for targets of one inference, which `performance_targets` reads; `effect` begins their help."""
    parser.add_argument(
        "--target-latency",
        metavar="CYCLES",
        type=_latency,
        help=f"{effect} an inference takes at most this number of cycles, or a time such as 1.5ms or 80us at --clock",
    )
    parser.add_argument(
        "--target-energy",
        metavar="UJ",
        type=positive,
        help=f"{effect} an inference takes at most this energy in microjoules",
    )
    parser.add_argument(
        "--target-throughput",
        metavar="RATE",
        type=positive,
        help=f"{effect} at least this number of inferences per second is reached at --clock{note}",
    )


def performance_targets(args: argparse.Namespace) -> "PerformanceTargets":
    """Return the targets that the options specify.

    Raises
    ------
    InputError
        A time or a rate is given without the clock frequency.
    """
    from compiler.options import PerformanceTargets

    latency, rate = args.target_latency, args.target_throughput
    for option, there in (
        ("--target-latency with a time", latency is not None and latency[1]),
        ("--target-throughput", rate is not None),
    ):
        if there and args.clock is None:
            raise InputError(f"{option} needs --clock MHZ")
    cycles = None if latency is None else latency[0] * (args.clock * 1e6 if latency[1] else 1)
    return PerformanceTargets(cycles, args.target_energy, rate, args.clock)


def add_target(
    parser: argparse.ArgumentParser, default: str | None = DEFAULT_TARGET, default_text: str = ""
) -> None:
    """Add `--target`, a value for `hw.config.load_target`; `default_text` describes the default in the help."""
    parser.add_argument(
        "--target",
        metavar="T",
        default=default,
        help=f"target: {', '.join(target_names())} or a TOML file of the same fields "
        f"(default: {default_text or default})",
    )


def targets(text: str) -> list[str]:
    """Parse an argument: names of different targets, separated by commas."""
    names = text.split(",")
    for name in names:
        if not name or names.count(name) > 1:
            raise argparse.ArgumentTypeError(f"must be different targets, T,T,..., not {shown(text)}")
    return names


def target_labels(names: list[str]) -> dict[str, str]:
    """Return the name of each target in the report: of a file without folder and ending, unless two would be equal."""
    stems = [Path(name).stem for name in names]
    return {name: stem if stems.count(stem) == 1 else name for name, stem in zip(names, stems, strict=True)}


def add_memory(parser: argparse.ArgumentParser, note: str = "") -> None:
    """Add the options for the timing of DRAM and clock, with `note` in their help; the default rate is a beat."""
    parser.add_argument(
        "--dram-latency",
        metavar="CYCLES",
        type=integer(1, _MAX_LATENCY),
        default=100,
        help=f"DRAM latency from address to first read beat{note} (default: %(default)s)",
    )
    parser.add_argument(
        "--dram-bytes-per-cycle",
        metavar="BYTES",
        type=integer(1, _MAX_RATE),
        help=f"DRAM bandwidth of reads and writes together{note} (default: width of the bus)",
    )
    parser.add_argument(
        "--throttle",
        metavar="SHARE",
        type=_throttle,
        default=0.0,
        help=f"share of the cycles in which the clock of the chip is stalled, while DRAM continues{note} (default: 0)",
    )


def dram_of(args: argparse.Namespace) -> "DramTiming":
    """Return the timing of DRAM and clock that the options of `add_memory` give."""
    from compiler.options import DramTiming

    return DramTiming(args.dram_latency, args.dram_bytes_per_cycle, args.throttle)


def add_samples(parser: argparse.ArgumentParser, models: str) -> None:
    """Add the arguments for the model and its input samples; `models` is the help of the model argument."""
    parser.add_argument("model", metavar="MODEL", type=Path, help=models)
    parser.add_argument(
        "--input",
        metavar="FILE",
        type=Path,
        help=".npy, or .npz with one array per input; the first axis indexes samples. A single sample may be a .png of "
        "the input's size or a 16-bit mono .wav of its length (default: one random sample)",
    )
    parser.add_argument(
        "--input-scale",
        metavar="MEAN,STD",
        type=_scale,
        help="scale the pixels p of a .png to (p - MEAN) / STD "
        "(default: 0,255 for float inputs; for 8-bit inputs the pixel range maps to the full integer range)",
    )
    parser.add_argument("--limit", metavar="K", type=integer(1), help="use only the first K samples")


def add_reset(parser: argparse.ArgumentParser) -> None:
    """Add the option that resets the states of the model before each sample."""
    parser.add_argument(
        "--reset-state",
        action="store_true",
        help="reset the states of a recurrent or streaming model before each sample (default: the samples are "
        "consecutive steps of one stream, and the states carry over from each sample to the next)",
    )


def check_reset(args: argparse.Namespace, network: "CompiledNetwork") -> None:
    """Report the states that a network keeps between samples; raise InputError for `--reset-state` without states."""
    names = [state.name for state in network.states]
    if names and not args.reset_state:
        log(f"keeps state from one sample to the next: {', '.join(map(shown, names))}")
    if args.reset_state and not names:
        raise InputError(f"--reset-state: {network.name} keeps no state from one sample to the next")


def _scale(text: str) -> tuple[float, float]:
    """Parse an argument: `MEAN,STD`."""
    try:
        mean, std = (float(part) for part in text.split(","))
    except ValueError:
        mean = std = 0.0
    if not (math.isfinite(mean) and math.isfinite(std) and std > 0):
        raise argparse.ArgumentTypeError(f"must be MEAN,STD with STD above 0, not {shown(text)}")
    return mean, std


def size(text: str) -> tuple[str, int | range]:
    """Parse an argument, `NAME=N`, or `NAME=FIRST..LAST[:STEP]` for several lengths: the size of a named dimension."""
    name, _, value = text.rpartition("=")
    found = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18})(?::(\d{1,18}))?)?", value, re.ASCII)
    first, last, step = (0, 0, 0) if found is None else (int(each or 0) for each in found.groups())
    if found is not None and found[2] is None and name and first:
        return name, first
    if not name or found is None or not 1 <= first < last or (found[3] is not None and not step):
        raise argparse.ArgumentTypeError(
            f"must be NAME=N, N at least 1, or NAME=FIRST..LAST or NAME=FIRST..LAST:STEP, FIRST below LAST, not "
            f"{shown(text)}"
        )
    return name, range(first, last + 1, step or 1)


def fixed_sizes(args: argparse.Namespace) -> dict[str, int]:
    """Return the sizes of named dimensions; raise InputError if one has several lengths."""
    from hw.errors import InputError

    for name, value in args.size:
        if not isinstance(value, int):
            raise InputError(f"--size: mla {args.verb} takes one size of {name!r}, not several lengths")
    return dict(args.size)


def bound(text: str) -> tuple[str, int | float | bool | Path]:
    """Parse an argument, `NAME=VALUE`: the value of an input, as a number, true, false, or a .npy file."""
    name, _, value = text.partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, not {shown(text)}")
    if value.endswith(".npy"):
        return name, Path(value)
    if value in ("true", "false"):
        return name, value == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    raise argparse.ArgumentTypeError(
        f"VALUE must be a number, true, false or a .npy file, not {shown(value)}"
    )


#: Default of `--db`, for the help.
DEFAULT_DB = "the one that MLA_DB names, else profile.db in the cache"


def add_db(parser: argparse.ArgumentParser, note: str = "", *, optional: bool = True) -> None:
    """Add `--db`, the location of a `TuningDatabase`, and `--no-db` if the verb works without one.

    `note` follows the description of the default in the help.
    """
    parser.add_argument(
        "--db",
        metavar="URL",
        type=database_url,
        help="measurement database: a file, or a URL such as postgresql://USER@HOST/NAME "
        f"(default: {DEFAULT_DB}{note})",
    )
    if optional:
        parser.add_argument("--no-db", action="store_true", help="use no measurement database")


def database_of(args: argparse.Namespace) -> "str | Path | bool":
    """Return the database of the verb's options, as `compiler.compile` takes it."""
    if args.no_db and args.db is not None:
        raise InputError("--no-db cannot be combined with --db")
    return False if args.no_db else True if args.db is None else args.db


def check_database(args: argparse.Namespace) -> None:
    """Raise InputError if `--db` names a file that does not exist."""
    from compiler.tuning_db.connection import file_of

    file = None if args.db is None else file_of(args.db)
    if file is not None and not file.exists():
        raise InputError(f"--db: there is no database {file}")


def database_url(text: str) -> str | Path:
    """Parse an argument: a URL, or the path of a file."""
    if not text:
        raise argparse.ArgumentTypeError("must be a file, or a URL such as postgresql://USER@HOST/NAME")
    return text if "://" in text else Path(text)


def used_database(args: argparse.Namespace) -> "str | Path | None":
    """Return the database of the verb's options for measurements; None for none."""
    from compiler.tuning_db.connection import default_database

    given = database_of(args)
    return None if given is False else default_database() if given is True else given


def add_seed(parser: argparse.ArgumentParser) -> None:
    """Add `--seed`, the seed of all random data of a run."""
    parser.add_argument(
        "--seed", metavar="S", type=integer(0), default=0, help="random seed (default: %(default)s)"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`, the value of which the verb passes to `compiler.util.files.report`."""
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON (- for standard output)")


#: Output files of the running verb; opening one for reading is an error.
_watched: list[Path] = []


def check_files(args: argparse.Namespace, *options: str) -> None:
    """Reject output files that are not writable or conflict with other files, and prevent reading them from now on.

    Parameters
    ----------
    args : Namespace
        Parsed arguments. `options` and `--json` are output files; all other paths are input files.
    options : str
        Names of the options whose values are output files.

    Raises
    ------
    InputError
        As in `check_outputs`. Until `unwatch_files` is called, opening an output file for reading raises it, too.
    """
    values = vars(args)
    written = [values[name] for name in options]
    others = (value for name, value in values.items() if name not in options)
    check_outputs(written, _paths(others), values.get("json"))
    _watch_files()
    _watched[:] = _all(written, values.get("json"))


def unwatch_files() -> None:
    """Permit reading the output files again; called when the verb has ended."""
    _watched.clear()


def check_outputs(
    outputs: Iterable[Path | None], inputs: Iterable[Path | None] = (), report: str | None = None
) -> None:
    """Raise InputError for outputs that cannot be written, name the same file, or would overwrite an input.

    Parameters
    ----------
    outputs, inputs : iterable of path
        Files that the verb writes, and files that it reads; None for options that were not given.
    report : str, optional
        Value of `--json`: a path, or `-` for standard output.
    """
    written = _all(outputs, report)
    read = [path for path in inputs if path]
    for number, path in enumerate(written):
        if any(_same(path, each) for each in read):
            raise _overwriting(path)
        if any(_same(path, each) for each in written[:number]):
            raise InputError(f"{path} is given for two outputs: they must be different files")
        check_output(path)


def _all(outputs: Iterable[Path | None], report: str | None) -> list[Path]:
    written = [path for path in outputs if path]
    return [*written, Path(report)] if report and report != "-" else written


def _paths(values: Iterable[Any]) -> Iterator[Path]:
    """Yield all paths among option values, including paths in the lists of repeatable options."""
    for value in values:
        yield from (
            each for each in (value if isinstance(value, list) else [value]) if isinstance(each, Path)
        )


def _same(one: Path, other: Path) -> bool:
    """Return whether two paths name the same file, which need not exist; False for devices such as /dev/null."""
    try:
        return one.samefile(other) and one.is_file()
    except OSError:
        return one.resolve() == other.resolve()


def _overwriting(path: Path) -> InputError:
    return InputError(f"{path} is an input: the output must be another file")


def _reject_read(event: str, args: tuple[Any, ...]) -> None:
    """Raise InputError if an output file is opened for reading; called as an audit hook."""
    if event != "open" or not _watched or args[2] & os.O_ACCMODE == os.O_WRONLY:
        return
    try:
        opened = os.stat(_source(args[0]))  # noqa: PTH116 - it may be a file descriptor
    except (OSError, ValueError, TypeError):
        return  # opening the file will raise the error
    for path in _watched:
        if path.is_file() and os.path.samestat(opened, path.stat()):
            raise _overwriting(path)


def _source(opened: Any) -> Any:
    """Return the source file if `opened` is a bytecode file, or `opened` otherwise."""
    text = os.fsdecode(opened) if isinstance(opened, (str, bytes)) else ""
    return importlib.util.source_from_cache(text) if text.endswith(".pyc") else opened


@cache
def _watch_files() -> None:
    """Install the audit hook once, because hooks cannot be removed."""
    sys.addaudithook(_reject_read)
