"""Fixtures for tests of the command line."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from compiler.cli.main import main


class Result(NamedTuple):
    """Exit status and output of a run of `mla`."""

    status: int
    out: str
    err: str


@pytest.fixture
def mla(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Return a function that runs `mla` with the given arguments in this process."""

    def run(*arguments: object) -> Result:
        texts: Sequence[str] = [str(argument) for argument in arguments]
        capsys.readouterr()
        try:
            status = main(texts)
        except SystemExit as leaving:
            assert isinstance(leaving.code, int)
            status = leaving.code
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


@pytest.fixture
def complains(mla: Callable[..., Result]) -> Callable[..., None]:
    """Return a function that asserts `mla`'s exit status and a one-line message that contains a string."""

    def run(status: int, text: str, *arguments: object) -> None:
        result = mla(*arguments)
        assert (result.status, result.out) == (status, "")
        assert text in result.err
        assert result.err.count("\n") == 1

    return run
