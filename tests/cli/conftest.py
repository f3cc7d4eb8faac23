"""Fixtures of the tests of the command line."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from compiler.cli.main import main


class Result(NamedTuple):
    """Status and output of a run of `mla`."""

    status: int
    out: str
    err: str


@pytest.fixture
def mla(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run `mla` with arguments in this process."""

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
    """Run `mla`; assert the exit status, and that standard error is one line that contains a string."""

    def run(status: int, text: str, *arguments: object) -> None:
        result = mla(*arguments)
        assert (result.status, result.out) == (status, "")
        assert text in result.err
        assert result.err.count("\n") == 1

    return run
