"""The folder of a board build never loses user files, and only a complete new build replaces an earlier one."""

from pathlib import Path

import pytest

from hw.boards.board import BOARDS
from hw.boards.build_dir import MARK, build_directory
from hw.boards.flow import build_component
from hw.errors import InputError, WorkError

NAMES = ("top.lpf", "tool.log", "board.bit")


def contents(folder: Path) -> dict[str, str]:
    """Return the contents of all files in a folder by name, except for the marker file."""
    return {path.name: path.read_text() for path in folder.iterdir() if path.name != MARK}


def fill(folder: Path, text: str, names: tuple[str, ...] = NAMES) -> None:
    """Run a successful build that writes a text to each file."""
    with build_directory(folder, names) as work:
        for name in names:
            (work / name).write_text(text)


@pytest.mark.parametrize("name", ["top.lpf", "top.v", "report.txt", "ulx3s-85f.bit"])
def test_folder_with_user_files_is_rejected(tmp_path, name):
    mine = {"thesis.txt": "mine", name: "mine too"}
    for each, text in mine.items():
        (tmp_path / each).write_text(text)

    def make() -> None:
        pytest.fail("the folder must be refused before anything is built")

    with pytest.raises(InputError, match=f"cannot be used: no build of this program made the {name} in it"):
        build_component(BOARDS["ulx3s-85f"], make, seeds=1, folder=tmp_path)
    assert contents(tmp_path) == mine


def test_unrelated_files_are_kept(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    fill(tmp_path, "first")
    fill(tmp_path, "second", ("top.lpf", "tool.log"))
    assert contents(tmp_path) == {"thesis.txt": "mine", "top.lpf": "second", "tool.log": "second"}
    (tmp_path / "board.bit").write_text("mine")
    with pytest.raises(InputError, match=r"made the board\.bit in it"):
        fill(tmp_path, "third")


@pytest.mark.parametrize("blow", [KeyboardInterrupt, SystemExit, OSError])
def test_interrupt_leaves_folder_unchanged(tmp_path, blow):
    fill(tmp_path / "old", "good")
    for folder in (tmp_path / "old", tmp_path / "new"):
        with pytest.raises(blow), build_directory(folder, NAMES) as work:
            (work / "board.bit").write_text("half")
            raise blow
    assert contents(tmp_path / "old") == dict.fromkeys(NAMES, "good")
    assert not (tmp_path / "new").exists()


def test_failure_keeps_only_logs(tmp_path):
    fill(tmp_path, "good")
    with (
        pytest.raises(WorkError, match=f"^tool failed: {tmp_path}/tool.log$"),
        build_directory(tmp_path, NAMES) as work,
    ):
        for name in NAMES:
            (work / name).write_text("bad")
        raise WorkError(f"tool failed: {work / 'tool.log'}")
    assert contents(tmp_path) == {"top.lpf": "good", "tool.log": "bad", "board.bit": "good"}
    fill(tmp_path, "better")
    assert contents(tmp_path) == dict.fromkeys(NAMES, "better")


def test_marker_with_outside_paths_deletes_no_outside_files(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / MARK).write_text("../thesis.txt\n..\n")
    fill(tmp_path / "out", "new")
    assert (tmp_path / "thesis.txt").read_text() == "mine"
