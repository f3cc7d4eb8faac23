"""Working and output directories of board builds: only files of a completed build are moved to the output directory."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hw.errors import InputError, WorkError

MARK = ".mla-board-build"
"""Name of the file that lists, one per line, the files in its folder that builds have written; only these may be
replaced or removed."""


@contextmanager
def build_directory(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yield a hidden working folder inside `folder`; if the block succeeds, its files are moved to `folder`.

    Until then, `folder` and the files of an earlier build remain unchanged. After a WorkError only the logs are moved.

    Parameters
    ----------
    folder : Path
        Output folder, created if it does not exist.
    names : sequence of str
        Names of the files that the block may write to the working folder.

    Raises
    ------
    InputError
        The folder cannot be used, or it contains a file with one of these names that no earlier build wrote.
    """
    is_new = not folder.exists()
    if not is_new and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made = _made(folder)
        _refuse_strangers(folder, names, made)
        work_dir = tempfile.TemporaryDirectory(prefix=".mla-", dir=folder)
    except OSError as error:
        raise InputError(f"folder {folder} cannot be used: {error.strerror}") from error
    try:
        with work_dir:
            work = Path(work_dir.name)
            try:
                yield work
            except WorkError as error:
                _move(work, folder, [name for name in names if name.endswith(".log")], made)
                # The message contains the path of a log, which has been moved from the working folder to `folder`.
                raise WorkError(str(error).replace(str(work), str(folder))) from error
            _move(work, folder, names, made)
            _forget(folder, made.difference(names), names)
    finally:
        if is_new:
            with suppress(OSError):  # not empty
                folder.rmdir()


def _made(folder: Path) -> set[str]:
    """Return the names of an earlier build's files; files outside the folder are ignored, even if the mark file lists
    them.
    """
    mark = folder / MARK
    lines = mark.read_text(errors="replace").splitlines() if mark.is_file() else []
    return {line for line in lines if line not in ("", ".", "..") and "/" not in line}


def _refuse_strangers(folder: Path, names: Sequence[str], made: set[str]) -> None:
    strangers = [name for name in names if name not in made and _is_there(folder / name)]
    if strangers:
        raise InputError(
            f"folder {folder} cannot be used: no build of this program made the {strangers[0]} in it; "
            "name another folder, or move that file away"
        )


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _move(work: Path, folder: Path, names: Sequence[str], made: set[str]) -> None:
    """Move the named files that exist in `work` to `folder`.

    The mark file is written first, so that it lists the files even if the move is interrupted.
    """
    present = [name for name in names if (work / name).exists()]
    _write_mark(folder, {*made, *present})
    for name in present:
        (work / name).replace(folder / name)


def _forget(folder: Path, old: set[str], names: Sequence[str]) -> None:
    """Remove the files that an earlier build wrote and this build did not."""
    for name in old:
        if not (folder / name).is_dir():
            (folder / name).unlink(missing_ok=True)
    _write_mark(folder, set(names))


def _write_mark(folder: Path, names: set[str]) -> None:
    (folder / MARK).write_text("".join(f"{name}\n" for name in sorted(names)))
