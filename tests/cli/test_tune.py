"""Tests of `mla tune` on n4."""

import json

import onnx
from onnx import TensorProto, helper

from scripts.networks.digits import MODEL


def test_tune_report_and_schedule(mla, tmp_path):
    schedule, out = tmp_path / "best.json", tmp_path / "tune.json"
    result = mla(
        "tune",
        MODEL,
        "--trials",
        "3",
        "--method",
        "random",
        "--devices",
        "1",
        "--target",
        "n4",
        "--no-cache",
        "--save-schedule",
        schedule,
        "--json",
        out,
    )
    assert result.status == 0, result.err
    document = json.loads(out.read_text())
    assert document["trials"] == 3 and document["exact"] and document["method"] == "random"
    assert document["best_cycles"] <= document["baseline_cycles"] and document["curve"][0][0] == 0
    assert "trial 3 of 3" in result.err and "\n3 trials (random) closed " in result.out
    figures = [f"{document[f'{name}_cycles']:,}" for name in ("baseline", "best", "floor")]
    assert result.out.splitlines()[1].split() == ["cycles", *figures]
    compiled = mla("compile", MODEL, "--target", "n4", "--schedule", schedule, "-o", tmp_path / "x.mla")
    assert compiled.status == 0, compiled.err


def test_usage_errors_exit_2(complains, tmp_path):
    complains(2, "cannot be read", "tune", tmp_path / "absent.tflite", "--trials", "1")
    complains(2, "--trials: must be an integer of at least 1", "tune", MODEL, "--trials", "0")
    complains(2, "required: --trials", "tune", MODEL)
    complains(2, "invalid choice", "tune", MODEL, "--trials", "1", "--method", "luck")


def test_search_does_without_a_default_database_that_is_unusable(mla, tmp_path, monkeypatch):
    file = tmp_path / "text.db"
    file.write_text("not a database")
    words = ("tune", MODEL, "--trials", "1", "--devices", "1", "--target", "n4", "--method", "random")
    monkeypatch.setenv("MLA_DB", str(file))
    result = mla(*words)
    assert result.status == 0 and "measurements are not kept" in result.err and "--no-db" in result.err
    result = mla(*words, "--db", file)
    assert result.status == 2 and result.err == f"mla tune: {file} is not a measurement database\n"
    assert file.read_text() == "not a database"


def test_random_outputs_are_blamed_on_their_node(mla, tmp_path):
    file = tmp_path / "random.onnx"
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])
    found = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["noise"], name="noisy"),
        helper.make_node("Add", ["x", "noise"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "noise", [given], [found])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), file)
    result = mla("tune", file, "--trials", "1", "--devices", "1", "--target", "n4", "--no-db")
    assert result.status == 1 and "outputs are random, because of 'noisy' (RandomNormalLike)" in result.err
