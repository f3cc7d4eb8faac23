"""Tests of `mla fuse`, and of the options of `mla tune` that forbid or allow transformations."""

import json

from scripts.networks.digits import MODEL


def test_fuse(mla, tmp_path):
    out = tmp_path / "fuse.json"
    result = mla("fuse", MODEL, "--json", out)
    assert result.status == 0, result.err
    assert "cycles predicted" in result.out and "more are impossible (--all lists the reasons)" in result.out
    document = json.loads(out.read_text())
    assert document["predicted_cycles"] > 1000 and document["measured_cycles"] is None
    sites = document["sites"]
    assert {site["kind"] for site in sites} == {
        "chain",
        "on_chip",
        "channel_blocks",
        "interleave",
        "same_program",
    }
    assert all(site["possible"] != bool(site["reason"]) for site in sites)
    assert all(not site["options"] or site["possible"] for site in sites)
    whole = mla("fuse", MODEL, "--all")
    assert "no: the next layer is not a depthwise convolution that reads its result" in whole.out


def test_fuse_reports_measurements(mla, tmp_path):
    out = tmp_path / "fuse.json"
    result = mla("fuse", MODEL, "--target", "n4", "--trials", "2", "--json", out)
    assert result.status == 0, result.err
    document = json.loads(out.read_text())
    options = [option for site in document["sites"] for option in site["options"]]
    measured = [each for each in options if each["measured_cycles"] is not None or each["rejected"]]
    assert document["measured_cycles"] > 1000 and len(measured) == 2


def test_forbid_and_allow_options(mla, tmp_path):
    schedule = tmp_path / "best.json"
    result = mla(
        "tune",
        MODEL,
        "--trials",
        "50",
        "--seconds",
        "1",
        "--method",
        "generators",
        "--devices",
        "1",
        "--target",
        "n4",
        "--forbid",
        "tiling",
        "--forbid",
        "program",
        "--sp-limit",
        "32768",
        "--save-schedule",
        schedule,
        "--json",
        tmp_path / "tune.json",
    )
    assert result.status == 0, result.err
    document = json.loads((tmp_path / "tune.json").read_text())
    assert document["forbidden"] == ["program", "tiling"] and document["trials"] < 50 and document["exact"]
    again = mla(
        "compile",
        MODEL,
        "--target",
        "n4",
        "--schedule",
        schedule,
        "--sp-limit",
        "32768",
        "-o",
        tmp_path / "x.mla",
    )
    assert again.status == 0, again.err


def test_usage_errors(complains, mla, tmp_path):
    complains(
        2,
        "--forbid: a transformation is one of tiling, order",
        "tune",
        MODEL,
        "--trials",
        "1",
        "--forbid",
        "x",
    )
    complains(
        2, "the limit of the scratchpad must be at least 512 bytes, not 3", "fuse", MODEL, "--sp-limit", "3"
    )
    complains(2, "must be an integer in 1..", "fuse", MODEL, "--acc-limit", "none")
    complains(2, "bytes of DRAM, but the limit is 100", "fuse", MODEL, "--dram-limit", "100")
    complains(2, "cannot be read", "fuse", tmp_path / "absent.tflite")
    mla("compile", MODEL, "-o", tmp_path / "x.mla")
    complains(
        2,
        "is already compiled: --sp-limit applies to models",
        "run",
        tmp_path / "x.mla",
        "--sp-limit",
        "65536",
    )
