"""Tests of user-defined search methods and generators, in modules and installed packages, and of their errors."""

import json
import re
import sys
from pathlib import Path

import pytest

from compiler.tuning.registry import GENERATORS, METHODS
from hw.config import TARGETS
from scripts.networks.digits import MODEL
from tests.support import plugins

DOCS = TARGETS.parents[1] / "docs"
TUNE = ("tune", MODEL, "--devices", "1", "--target", "n4", "--no-cache")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a plug-in module into the current folder and return its name."""
    return plugins.write_module(tmp_path, monkeypatch)


def example(page: str, name: str) -> str:
    """Return the source text of an example module of the documentation."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    (found,) = (block for block in blocks if block.startswith(f"# {name}.py\n"))
    return found


@pytest.mark.parametrize(
    ("page", "name", "options"),
    [
        ("tuning.md", "annealing", ("--method", "annealing:Annealing")),
        ("generators.md", "halve", ("--generator", "halve:Halve")),
    ],
)
def test_examples_of_documentation(mla, tmp_path, monkeypatch, page, name, options):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path(f"{name}.py").write_text(example(page, name))
    result = mla(*TUNE, "--trials", "6", *options, "--json", "-")
    assert result.status == 0, result.err
    document = json.loads(result.out)
    assert (
        document["trials"] == 6
        and document["exact"]
        and document["best_cycles"] <= document["baseline_cycles"]
    )
    # Some trials were measured successfully.
    assert document["rejected"] < 6
    assert (document["method"], document["generators"]) in (
        ("annealing:Annealing", None),
        ("generators", ["halve:Halve"]),
    )


def test_plugin_output_goes_to_standard_error(mla, module):
    result = mla(*TUNE, "--trials", "2", "--method", f"{module}:Good", "--json", "-")
    assert result.status == 0, result.err
    assert json.loads(result.out)["method"] == f"{module}:Good"
    assert "imported\n" in result.err and result.err.count("proposing\n") == 2
    assert len(sys.modules[module].Good.heard) == 2


def test_generators_from_registry_and_module(mla, module):
    result = mla(
        *TUNE,
        "--trials",
        "2",
        "--method",
        f"{module}:Asks",
        "--generator",
        "polish",
        "--generator",
        f"{module}:Sub",
        "--json",
        "-",
    )
    assert result.status == 0, result.err
    assert json.loads(result.out)["generators"] == ["polish", f"{module}:Sub"]


def test_repeating_generator_is_abandoned(mla, module):
    """A generator that repeats its proposals endlessly is abandoned, and random changes follow."""
    result = mla(*TUNE, "--trials", "1", "--generator", f"{module}:Endless")
    assert result.status == 0, result.err
    assert "trial 1 of 1" in result.err


def test_errors_of_search_methods_are_one_line(mla, module):
    result = mla(*TUNE, "--trials", "1", "--method", f"{module}:Raises")
    assert (result.status, result.out) == (2, "")
    *_, last = result.err.splitlines()
    text = f"{module}:Raises: propose failed: ZeroDivisionError: division by zero ({module}.py, line "
    assert last.startswith("mla tune: ") and text in last
    assert "Traceback" not in result.err


def test_failing_generator_is_reported_and_left_out(mla, module, tmp_path):
    report, names = tmp_path / "report.json", ("Fails", "Sub")
    options = [text for name in names for text in ("--generator", f"{module}:{name}")]
    result = mla(*TUNE, "--trials", "2", *options, "--json", str(report))
    assert result.status == 0, result.err
    text = f"{module}:Fails: propose failed: ValueError: oh ({module}.py, line "
    (failure,) = json.loads(report.read_text())["left_out"]
    assert failure["generator"] == "quiet" and text in failure["reason"]
    assert result.err.count(text) == 1 and "Traceback" not in result.err


def test_method_must_respect_forbidden_changes(mla, module):
    result = mla(*TUNE, "--trials", "1", "--method", f"{module}:Forbidden", "--forbid", "tiling")
    assert result.status == 2
    assert f"{module}:Forbidden: propose must change no tiling, which is forbidden" in result.err


def test_invalid_options(complains, module):
    tune = (*TUNE, "--trials", "1")
    complains(2, "invalid choice: 'evolutoin' (did you mean evolution?)", *tune, "--method", "evolutoin")
    complains(2, "choose from fusion, nearest, tiling, peephole, module:Class)", *tune, "--generator", "x")
    complains(2, "such as generators, not random", *tune, "--method", "random", "--generator", "peephole")
    complains(2, "such as generators, not llm", *tune, "--method", "llm", "--generator", "peephole")
    complains(2, "absent:X: absent cannot be imported: ModuleNotFoundError", *tune, "--method", "absent:X")
    complains(2, "--generator requires --adapt", "serve", MODEL, "--generator", "peephole")


def test_serve_rejects_bad_plugin_before_serving(mla, module):
    result = mla(
        "serve", MODEL, "--requests", "1", "--target", "n4", "--adapt", "--method", f"{module}:value"
    )
    assert (result.status, result.out) == (2, "")
    assert result.err.endswith(f"{module}:value must be a subclass of compiler.SearchMethod, not 3\n")


def test_serve_uses_plugin(mla, module):
    """The search process of `mla serve` imports the module from the current folder."""
    result = mla(
        "serve",
        MODEL,
        "--requests",
        "2",
        "--target",
        "n4",
        "--adapt",
        "--trials-per-request",
        "1",
        "--generator",
        f"{module}:Sub",
    )
    assert result.status == 0, result.err
    assert len([line for line in map(json.loads, result.out.splitlines()) if "index" in line]) == 2
    tried = re.search(r"(\d+) rejected candidate", result.err)
    assert tried is not None and int(tried[1]) >= 1, result.err


def install(folder: Path, name: str, *entries: str) -> None:
    """Write the metadata of a distribution, as an installer would."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("".join(f"{entry}\n" for entry in entries))


def test_installed_packages_add_names(mla, complains, module, tmp_path, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    (site / f"{module}_pkg.py").write_text(plugins.SOURCE)
    install(
        site,
        "extras",
        "[mla.search_methods]",
        f"good = {module}_pkg:Good",
        f"broken = {module}_pkg:value",
        "gone = nowhere_at_all:X",
        f"random = {module}_pkg:Raises",
        "[mla.generators]",
        f"sub = {module}_pkg:Sub",
    )
    monkeypatch.syspath_prepend(site)
    assert list(METHODS)[-3:] == ["broken", "gone", "good"] and list(GENERATORS)[-1] == "sub"
    assert (
        METHODS["random"].__module__ == "compiler.tuning.search.method"
    )  # plug-ins cannot override names of the project
    assert "edits, broken, gone, good, retrieval, llm, module:Class" in " ".join(
        mla("tune", "--help").out.split()
    )
    for options in (("--method", "good"), ("--generator", "sub")):
        result = mla(*TUNE, "--trials", "1", *options)
        assert result.status == 0, result.err
    tune = (*TUNE, "--trials", "1", "--method")
    complains(2, f"search method broken ({module}_pkg:value) must be a subclass of", *tune, "broken")
    complains(2, "search method gone (nowhere_at_all:X) cannot be imported: ModuleNotFound", *tune, "gone")
    complains(2, "invalid choice: 'goood' (did you mean good?)", *tune, "goood")
    install(site, "others", "[mla.search_methods]", f"good = {module}_pkg:Raises")
    complains(
        2, f"good: several installed packages add it: {module}_pkg:Good, {module}_pkg:Raises", *tune, "good"
    )


def test_registry_names_equal_class_names():
    """The generator's name in candidates equals its name in the registry."""
    assert {name: kind.name for name, kind in GENERATORS.items()} == {name: name for name in GENERATORS}
    assert "hpm" in METHODS and "nothing" not in METHODS and len(METHODS) == len(list(METHODS))
    with pytest.raises(KeyError):
        METHODS["nothing"]
