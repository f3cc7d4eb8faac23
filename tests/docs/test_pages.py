"""The commands and code of the tutorials give the stated output, and the page runner detects deviations."""

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, PageError, Runner, apply, blocks, commands, matches

TUTORIALS = ROOT / "docs" / "tutorials"
#: Pages that change sources, each with the folders of which the page needs copies.
COPIES = {"first_operator": ("compiler", "cosim", "hw")}


@pytest.mark.parametrize("name", sorted(path.stem for path in TUTORIALS.glob("*.md")))
def test_tutorials_run_as_written(tmp_path: Path, name: str) -> None:
    Runner(TUTORIALS / f"{name}.md", tmp_path, COPIES.get(name, ())).run()


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "a  \n", True),
        ("a\n", "b\n", False),
        ("a\n", "a\nb\n", False),
        ("", "", True),
        ("", "a\n", False),
        ("a\n", "", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\nd\n", "a\nd\n", True),
        ("a\n...\nd\n", "a\nb\n", False),
        ("...\n", "", True),
        ("...\n", "a\nb\n", True),
        ("x ... z\n", "x y z\n", True),
        ("x ... z\n", "x y\nz\n", False),
        ("1.5 (a)\n", "1x5 (a)\n", False),
    ],
)
def test_abbreviated_output_matches(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) == same


def test_blocks_and_commands() -> None:
    found = blocks('a\n```python title="x.py"\nprint(1)\n```\n```console\n$ a \\\n  b\nout\n$ c\n```\n')
    assert [(each.kind, each.title) for each in found] == [("python", "x.py"), ("console", "")]
    assert commands(found[1].text) == [("a b", "out\n"), ("c", "")]
    with pytest.raises(PageError, match="must begin with a command"):
        commands("out\n$ a\n")


def test_diffs_apply_at_matching_lines(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a\nb\nc\nb\n")
    apply(tmp_path, "x", " a\n-b\n+B\n")
    assert (tmp_path / "x").read_text() == "a\nB\nc\nb\n"
    with pytest.raises(PageError, match="2 times"):
        (tmp_path / "x").write_text("a\na\n")
        apply(tmp_path, "x", " a\n+b\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```console\n$ echo a\nb\n```\n", "and this is printed"),
        ("```console\n$ false\n```\n", "status 1"),
        ("```python\nprint(1)\n```\n", "does not say"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "and this is printed"),
    ],
)
def test_wrong_pages_are_detected(tmp_path: Path, monkeypatch, text: str, message: str) -> None:
    monkeypatch.delenv("MLA_UPDATE_DOCS", raising=False)
    page, folder = tmp_path / "page.md", tmp_path / "folder"
    folder.mkdir()
    page.write_text(text)
    with pytest.raises(PageError, match=message):
        Runner(page, folder).run()


def test_pages_can_be_updated(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MLA_UPDATE_DOCS", "1")
    page, folder = tmp_path / "page.md", tmp_path / "folder"
    folder.mkdir()
    page.write_text("```console\n$ echo a\nb\n```\n```python\nx = 1\nprint(x)\n```\n\n```text\n2\n```\n")
    Runner(page, folder).run()
    assert (
        page.read_text()
        == "```console\n$ echo a\na\n```\n```python\nx = 1\nprint(x)\n```\n\n```text\n1\n```\n"
    )
