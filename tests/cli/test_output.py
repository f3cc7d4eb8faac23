"""Output files are written completely or not at all."""

import errno
import io
import json
import sys
from pathlib import Path

import pytest

from compiler.cli.exit_status import open_standard_streams
from compiler.util.files import atomic_output, check_output, read_input, report, write_output
from hw.errors import InputError, WorkError


def test_replaces_only_on_success(tmp_path):
    target = tmp_path / "file"
    write_output(target, b"old")
    with pytest.raises(ZeroDivisionError), atomic_output(target) as path:
        path.write_bytes(b"half")
        raise ZeroDivisionError
    assert target.read_bytes() == b"old"
    write_output(target, b"new")
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_characters_that_standard_output_lacks_are_escaped(monkeypatch):
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, "ascii"))
    open_standard_streams()
    report({}, "layer \u5c64", None)
    sys.stdout.flush()
    assert data.getvalue() == b"layer \\u5c64\n"


def test_link_target_is_replaced(tmp_path):
    target, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(target)
    write_output(link, b"data")
    assert link.is_symlink()
    assert target.read_bytes() == b"data"


def test_invalid_paths_are_rejected(tmp_path):
    with pytest.raises(InputError, match="cannot be written: it is a folder"):
        write_output(tmp_path, b"")
    with pytest.raises(InputError, match="absent/file cannot be written: No such file"):
        write_output(tmp_path / "absent" / "file", b"")
    with pytest.raises(InputError, match="absent cannot be read: No such file"):
        read_input(tmp_path / "absent")


def test_paths_are_checked_before_the_work(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for path in (tmp_path, tmp_path / "absent" / "file", Path("/proc/file"), tmp_path / ("x" * 300), loop):
        with pytest.raises(InputError, match=f"{path} cannot be written"):
            check_output(path)
    loop.unlink()
    write_output(tmp_path / "file", b"old")
    for path in (tmp_path / "file", tmp_path / "new", Path("/dev/full")):
        check_output(path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_full_device_raises_work_error(tmp_path, monkeypatch):
    # /dev/full reports the error only for a full page of data.
    with pytest.raises(WorkError, match="/dev/full cannot be written: No space left"):
        write_output(Path("/dev/full"), bytes(1 << 16))
    assert Path("/dev/full").is_char_device()
    target = tmp_path / "file"
    with pytest.raises(WorkError, match="file cannot be written: Disk quota"), atomic_output(target):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")
    assert list(tmp_path.iterdir()) == []


def test_other_os_errors_propagate(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_output(tmp_path / "file"):
        raise FileNotFoundError(errno.ENOENT, "no compiler")


def test_report_as_json(tmp_path, capsys):
    report({"x": 1}, "text", "-")
    assert json.loads(capsys.readouterr().out) == {"schema_version": 1, "x": 1}
    report({"x": 1}, "text", str(tmp_path / "file"))
    assert capsys.readouterr().out == "text\n"
    assert json.loads((tmp_path / "file").read_text()) == {"schema_version": 1, "x": 1}
