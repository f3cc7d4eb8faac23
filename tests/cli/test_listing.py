"""Listings of compiled networks can be written, edited and assembled again; errors are reported with their line."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from compiler.runtime.package_writer import read_package, to_bytes
from compiler.runtime.program_text import listing, programs_of, readable, with_programs
from hw.isa.program import Program
from tests.lowering.test_partition import compiled
from tests.support.control_models import early_exit
from tests.support.trained_networks import NETWORKS, model

KWS = model("kws_ref_model")


@pytest.fixture
def package(mla, tmp_path):
    path = tmp_path / "kws.mla"
    assert mla("compile", KWS, "-o", path, "--target", "n4").status == 0
    return path


@pytest.mark.parametrize("name", NETWORKS)
def test_listing_round_trip_of_trained_networks(mla, tmp_path, name):
    path, text, again = tmp_path / "a.mla", tmp_path / "a.s", tmp_path / "b.mla"
    assert mla("compile", model(name), "-o", path, "--listing", text).status == 0
    printed = mla("disasm", path)
    assert (printed.status, printed.out, printed.err) == (0, text.read_text(), "")
    assert mla("asm", text, "--network", path, "-o", again) == (0, "", "")
    assert again.read_bytes() == path.read_bytes()


def test_listing_round_trip_with_host_stages_and_branches(mla, tmp_path):
    mixed = compiled(3)[1]
    assert to_bytes(with_programs(mixed, programs_of(listing(mixed), "mixed"))) == to_bytes(mixed)
    onnx.save(early_exit(np.random.default_rng(0)), tmp_path / "exit.onnx")
    assert mla("compile", tmp_path / "exit.onnx", "-o", tmp_path / "exit.mla", "--target", "n4").status == 0
    network = read_package(tmp_path / "exit.mla")
    assert any(stage.control for stage in network.stages) and len(network.codes) > 1
    assert to_bytes(with_programs(network, programs_of(listing(network), "exit"))) == to_bytes(network)


def test_unprintable_names_are_escaped_and_restored():
    network = compiled(3)[1]
    names = iter(["a;b", "new\nline", " \t ", "halt\x1b"])

    def renamed(program: Program) -> Program:
        return replace(program, name=next(names, program.name))

    stages = []
    for stage in network.stages:
        if stage.code:
            parts = tuple(replace(part, program=renamed(part.program)) for part in stage.code.parts)
            stage = replace(stage, code=replace(stage.code, parts=parts))
        stages.append(stage)
    network = replace(network, stages=tuple(stages))
    text = listing(network)
    assert ".name a_b\n" in text and ".name new_line\n" in text and "\x1b" not in text
    assert to_bytes(with_programs(network, programs_of(text, "odd"))) == to_bytes(network)
    assert readable(" \t ") == "_" and readable("   ") == "program"


def test_rejected_edit_names_stage_and_line(mla, package, tmp_path):
    text, changed = tmp_path / "kws.s", tmp_path / "changed.mla"
    lines = mla("disasm", package).out.splitlines()
    second = [number for number, line in enumerate(lines) if line.startswith(".name")][1]
    number = next(n for n in range(second, len(lines)) if "issue fuse, wait(matrix:0" in lines[n])
    lines[number] = lines[number].replace("issue fuse, wait(matrix:0)", "issue fuse")
    text.write_text("\n".join(lines))
    assert mla("asm", text, "--network", package, "-o", changed).status == 0
    refused = mla("validate", changed, "--json", "-")
    assert refused.status == 1 and '"stage": 0' in refused.out
    shown = mla("validate", changed).out
    place = shown.split("(line ")[1].split(" of mla disasm)")[0]
    assert shown.startswith(f"rejected: {changed}: stage 0, program '") and ", for layer '" in shown
    printed = mla("disasm", changed).out.splitlines()[int(place) - 1]
    assert printed.split(";")[0].strip() == shown.split("`")[1]
    run = mla("run", changed, "--target", "n4", "--device", "golden")
    assert (run.status, run.out) == (2, "") and "program '" in run.err


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda lines: lines[: lines.index("")], "the network has "),
        (
            lambda lines: [line.replace(".name ", ".name x") for line in lines],
            "program 1 must be 'conv_2d_0', not 'xconv",
        ),
        (lambda lines: [*lines, "frobnicate"], "'frobnicate' is not an instruction"),
        (lambda lines: lines + ["halt"] * 3000, "must have 1..2048 instructions, not "),
    ],
)
def test_listings_that_do_not_fit_the_network(complains, mla, package, tmp_path, edit, text):
    source = tmp_path / "kws.s"
    lines = edit(mla("disasm", package).out.splitlines())
    source.write_text("\n".join(lines))
    complains(2, text, "asm", source, "--network", package, "-o", tmp_path / "out.mla")
    assert not (tmp_path / "out.mla").exists()


def test_error_names_line_of_whole_listing(complains, mla, package, tmp_path):
    source = tmp_path / "kws.s"
    lines = mla("disasm", package).out.splitlines()
    lines[-3] = "    frobnicate r1"
    source.write_text("\n".join(lines))
    text = f"{source}:{len(lines) - 2}: 'frobnicate' is not an instruction"
    complains(2, text, "asm", source, "--network", package, "-o", tmp_path / "out.mla")


def test_listing_of_several_programs_needs_network(complains, mla, package, tmp_path):
    source = tmp_path / "kws.s"
    source.write_text(mla("disasm", package).out)
    text = "a second program, 'depthwise_conv_2d_1', begins before this line"
    complains(2, text, "asm", source, "-o", tmp_path / "out")
    complains(2, text, "validate", source)
    complains(
        2,
        "--target cannot be combined with --network",
        "asm",
        source,
        "--network",
        package,
        "--target",
        "n4",
        "-o",
        "out",
    )
    complains(
        2, "absent.mla: cannot be read", "asm", source, "--network", "absent.mla", "-o", tmp_path / "out"
    )
    complains(2, "cannot be read", "disasm", "absent.mla")


def test_error_in_binary_names_last_branch_target(mla, tmp_path):
    source, image = tmp_path / "loop.s", tmp_path / "loop.mlap"
    source.write_text(".name loop\n    loop 2, end\n    tag 1\nend:\n    tag 2\n    issue store\n    halt\n")
    assert mla("asm", source, "-o", image).status == 0
    shown = mla("validate", image).out
    assert (
        f"rejected: {image}: instruction 3, 1 after target 2 (line 5 of its disassembly), `issue store`"
        in shown
    )
    assert mla("validate", source).out.startswith(f"rejected: {source}:6: `issue store`")
