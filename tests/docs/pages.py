"""Run the commands and code of a documentation page and compare their output with the page.

A page is Markdown. Its fenced blocks are executed from top to bottom in one folder:

- the text of a block with a title, such as ```python title="annealing.py", is written to the file named in the title;
- ```diff title="FILE" changes FILE, which must contain the consecutive lines with " " or "-" exactly once;
- ```console has commands after "$ ", each of which is followed by the command's standard output;
- ```python is executed with the names that earlier blocks defined; a ```text block right after it is its output.

In expected output, a line "..." matches any lines, and "..." within a line matches any characters. Trailing blanks are
ignored.
With MLA_UPDATE_DOCS=1 a block that differs is replaced by the actual output.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_SECONDS = 600


class PageError(AssertionError):
    """Exception raised if a block's output or prerequisites differ from the page."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, title and text, and the position of the text in the page."""

    kind: str
    title: str
    text: str
    start: int
    end: int


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    return [
        Block(each[1], each[2] or "", each[3], each.start(3), each.end(3)) for each in _FENCE.finditer(page)
    ]


def matches(expected: str, printed: str) -> bool:
    """Return True if a text matches the output on a page, which may be abbreviated with "..."."""
    pattern = ""
    for line in expected.rstrip().splitlines():
        if line.strip() == "...":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += ".*?".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ ]*\n"
    return re.fullmatch(pattern, printed.rstrip("\n") + "\n" if printed.strip() else "") is not None


def commands(text: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with its output; a trailing backslash continues a line."""
    found: list[tuple[str, str]] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command = command[:-1] + next(lines).strip()
            found.append((command, ""))
        elif found:
            found[-1] = found[-1][0], f"{found[-1][1]}{line}\n"
        else:
            raise PageError(f"a console block must begin with a command, not {line!r}")
    return found


def apply(folder: Path, name: str, diff: str) -> None:
    """Apply a diff to a file that contains its unchanged and removed lines exactly once, consecutively."""
    path = folder / name
    lines = path.read_text().splitlines()
    changes = [line for line in diff.splitlines() if line]
    old = [line[1:] for line in changes if line[0] in " -"]
    new = [line[1:] for line in changes if line[0] in " +"]
    places = [at for at in range(len(lines)) if lines[at : at + len(old)] == old]
    if len(places) != 1:
        raise PageError(f"{name}: the lines of the diff are there {len(places)} times, not once:\n{diff}")
    lines[places[0] : places[0] + len(old)] = new
    path.write_text("\n".join(lines) + "\n")


class Runner:
    """Executor of the blocks of one page.

    Parameters
    ----------
    page : Path
        Markdown file.
    folder : Path
        Empty working folder, in which the runner creates links to the project's folders.
    copy : tuple of str
        Folders of the project that the page changes; the working folder has copies of them instead of links.
    """

    def __init__(self, page: Path, folder: Path, copy: tuple[str, ...] = ()):
        self.page, self.folder, self.text = page, folder, page.read_text()
        self._names: dict[str, object] = {"__name__": "__main__"}
        self._printed = ""
        for name in {"scripts", "examples", "compiler", "cosim", "hw", "tests"} - set(copy):
            (folder / name).symlink_to(ROOT / name)
        for name in copy:
            command = ["cp", "-rp", str(ROOT / name), str(folder / name)]
            subprocess.run(command, check=True)
        tools = folder / ".tools"
        tools.mkdir()
        for name, line in (("python", ""), ("mla", " -m compiler.cli.main")):
            (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{line} "$@"\n')
            (tools / name).chmod(0o755)
        self._environment = os.environ | {
            "PATH": f"{tools}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(folder),
        }

    def run(self) -> None:
        """Execute all blocks.

        Raises
        ------
        PageError
            A command fails, or its output differs from the page.
        """
        page = blocks(self.text)
        replaced: list[tuple[Block, str]] = []
        for number, block in enumerate(page):
            if block.kind == "diff":
                apply(self.folder, block.title, block.text)
            elif block.title:
                (self.folder / block.title).write_text(block.text)
            elif block.kind == "console":
                printed = [
                    (command, expected, self._command(command)) for command, expected in commands(block.text)
                ]
                if not all(matches(expected, out) for _, expected, out in printed):
                    replaced.append((block, "".join(f"$ {command}\n{out}" for command, _, out in printed)))
            elif block.kind == "python":
                out = self._python(block.text)
                after = page[number + 1] if number + 1 < len(page) else None
                if (
                    after is None
                    or after.kind != "text"
                    or self.text[block.end + 4 : after.start - 8].strip()
                ):
                    if out:
                        raise PageError(f"{self.page.name}: prints what the page does not say:\n{out}")
                elif not matches(after.text, out):
                    replaced.append((after, out))
        if replaced and os.environ.get("MLA_UPDATE_DOCS") == "1":
            for block, text in reversed(replaced):
                self.text = self.text[: block.start] + text + self.text[block.end :]
            self.page.write_text(self.text)
        elif replaced:
            block, text = replaced[0]
            raise PageError(f"{self.page.name} says\n{block.text}\nand this is printed\n{text}")

    def _command(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise PageError(
                f"{self.page.name}: {command}: status {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def _python(self, text: str) -> str:
        """Execute a block with the names that earlier blocks defined."""
        printed, before = io.StringIO(), Path.cwd()
        os.chdir(self.folder)
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(text, str(self.page), "exec"), self._names)
        finally:
            os.chdir(before)
        return printed.getvalue()
