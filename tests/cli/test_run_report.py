"""Tests of reports of `mla run`, `mla compile` and `mla profile`: values, time, memory, warnings."""

import json
from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.cli.run_report import show_outputs, top_classes
from compiler.cost.energy import at_clock
from compiler.ir.tensor import Quantization, Tensor
from hw.errors import InputError
from tests.support.onnx_models import model, node

DIGITS = Path(__file__).parents[2] / "scripts/networks/digits_int8.onnx"
#: Quantization of the digits network's output.
SCALE, ZERO = np.float32(0.157406), 13


@pytest.fixture
def samples(tmp_path):
    path = tmp_path / "samples.npy"
    np.save(path, np.random.default_rng(5).integers(0, 17, (6, 1, 8, 8)).astype(np.int8))
    return path


@pytest.fixture
def noisy(tmp_path):
    """Write a float model that loses accuracy in 8 bits, and its calibration data."""
    rng = np.random.default_rng(7)
    weights, row = rng.standard_normal((16, 16)).astype(np.float32) / 4, np.ones(16, np.float32)
    weights[0, 0], row[0] = 300, 0
    given = rng.standard_normal((4, 1, 16)).astype(np.float32)
    given[0, 0, 0] = 100
    nodes = [node("MatMul", "x w", "h"), node("Abs", "h", "a"), node("Mul", "a row", "y")]
    made = model(nodes, {"x": given[0]}, ["y"], {"w": weights, "row": row})
    (tmp_path / "noisy.onnx").write_bytes(made.SerializeToString())
    np.save(tmp_path / "given.npy", given)
    return tmp_path / "noisy.onnx", tmp_path / "given.npy"


@pytest.mark.parametrize("batch", [1, 2])
def test_show_prints_values_and_classes(mla, samples, tmp_path, batch):
    out = tmp_path / "out.npz"
    run = ("run", DIGITS, "--input", samples, "--device", "golden", "--batch", batch)
    result = mla(*run, "--show", "--out", out, "--json", tmp_path / "report.json")
    assert result.status == 0, result.err
    values = np.load(out)["scores"]
    lines = result.out.splitlines()
    shown = [line for line in lines if line.startswith("scores, sample ")]
    assert len(shown) == 4 and lines[-1] == "scores: 2 more samples are not shown (--out writes all)"
    for number, line in enumerate(shown):
        text = line.removeprefix(f"scores, sample {number}: [").removesuffix("]")
        assert [int(each) for each in text.split(",")] == values[number].tolist()
        best = int(values[number].argmax())
        real = (int(values[number, best]) - ZERO) * SCALE
        top = lines[lines.index(line) + 1]
        assert top.startswith(f"  top 5: class {best} ({real:.4g}, stored {values[number, best]}), class ")
    tops = json.loads((tmp_path / "report.json").read_text())["outputs"]["scores"]["top"]
    assert [top[0]["class"] for top in tops] == values.argmax(1).tolist()
    stored = [[each["stored"] for each in top] for top in tops]
    assert stored == [sorted(row)[:-6:-1] for row in values.tolist()]
    plain = mla(*run, "--json", tmp_path / "report.json")
    assert "sample 0: [" not in plain.out
    assert "top" not in json.loads((tmp_path / "report.json").read_text())["outputs"]["scores"]


def test_large_outputs_are_abbreviated():
    tensor = Tensor("y", (1, 2, 500), "float32")
    values = np.arange(3000, dtype=np.float32).reshape(3, 2, 500)
    lines = show_outputs([tensor], {"y": values})
    assert lines[0] == "y, sample 0:" and any("..." in line for line in lines)
    assert len("\n".join(lines)) < 500 and not any("top" in line for line in lines)


@pytest.mark.parametrize(
    ("tensor", "values", "wanted"),
    [
        (Tensor("y", (1, 3), "float32"), [[0.5, 3, -1]], [(1, 3.0, None), (0, 0.5, None), (2, -1.0, None)]),
        (
            Tensor("y", (1, 1, 1, 2), "uint8", Quantization.per_tensor(0.5, 10)),
            [[[[12, 8]]]],
            [(0, 1.0, 12), (1, -1.0, 8)],
        ),
        (
            Tensor("y", (3,), "int8", Quantization.per_tensor(1.0)),
            [[4, 5, 4]],
            [(1, 5.0, 5), (0, 4.0, 4), (2, 4.0, 4)],
        ),
        (Tensor("y", (1, 3), "int64"), [[4, 5, 4]], None),
        (Tensor("y", (1, 2, 2), "float32"), [[[4, 5], [4, 1]]], None),
        (Tensor("y", (1,), "float32"), [4], None),
        (Tensor("y", (), "float32"), [4], None),
    ],
)
def test_top_classes_only_for_vectors_of_scores(tensor, values, wanted):
    values = np.array(values, tensor.dtype)
    found = top_classes(tensor, values)
    if wanted is None:
        assert found is None
    else:
        assert found == [[dict(zip(("class", "score", "stored"), each, strict=True)) for each in wanted]]
    assert show_outputs([tensor], {"y": values})[0].startswith("y, sample 0:")


def test_time_and_power_at_a_clock():
    found = at_clock(60.0, 24_000, 12_000, 10_000, 36.0)
    assert found == {
        "clock_mhz": 60.0,
        "milliseconds": pytest.approx(0.2),  # 12,000 cycles of 1/60 us each
        "inferences_per_second": pytest.approx(6_000),
        "milliwatts": pytest.approx(90),  # 36 uJ in 400 us
    }
    assert at_clock(60.0, 24_000, 12_000, None, 36.0)["inferences_per_second"] == pytest.approx(5_000)
    without = {"milliseconds": None, "inferences_per_second": None, "milliwatts": None}
    assert at_clock(None, 24_000, 12_000, 10_000, 36.0) == {"clock_mhz": None} | without
    assert at_clock(60.0, None, None, None, None) == {"clock_mhz": 60.0} | without
    assert at_clock(60.0, 0, 0, None, 0.0) == {"clock_mhz": 60.0} | without


@pytest.mark.parametrize("verb", ["run", "profile"])
def test_reports_at_a_clock(mla, samples, tmp_path, verb):
    run = (
        verb,
        DIGITS,
        "--target",
        "n4",
        "--input",
        samples,
        "--limit",
        2,
        "--json",
        tmp_path / "report.json",
    )
    result = mla(*run, "--clock", 40)
    assert result.status == 0, result.err
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["clock_mhz"] == 40
    assert report["milliseconds"] == pytest.approx(report["cycles_per_sample"] / 40_000)
    assert report["inferences_per_second"] == pytest.approx(40e6 / report["steady_cycles_per_sample"])
    seconds = report["cycles"] / 40e6
    assert report["milliwatts"] == pytest.approx(report["energy_uj"] / seconds / 1000)
    (line,) = (line for line in result.out.splitlines() if line.startswith("at 40 MHz: "))
    assert f"{report['milliseconds']:.4g} ms" in line and "45 nm" in line


def test_golden_model_reports_no_time(mla, complains, tmp_path):
    report = json.loads(mla("run", DIGITS, "--device", "golden", "--json", "-", "--clock", "60").out)
    assert report["milliseconds"] is report["milliwatts"] is report["inferences_per_second"] is None
    assert "MHz" not in mla("run", DIGITS, "--device", "golden", "--clock", "60").out
    for wrong in ("0", "-1", "nan", "fast", "1e9"):
        complains(
            2, "clock: must be a frequency in MHz above 0, at most 100000", "run", DIGITS, f"--clock={wrong}"
        )


def test_memory_report_of_compile_and_run(mla, tmp_path):
    package = tmp_path / "digits.mla"
    compiled = mla("compile", DIGITS, "-o", package, "--json", tmp_path / "compiled.json")
    ran = mla("run", package, "--device", "golden", "--json", tmp_path / "ran.json")
    one, other = (
        json.loads((tmp_path / f"{name}.json").read_text())["memory"] for name in ("compiled", "ran")
    )
    assert one == other and one["dram"]["inputs"] == 64 and one["dram"]["outputs"] == 10
    assert 0 < one["scratchpad"]["peak_bytes"] <= one["scratchpad"]["bytes"] == 256 * 1024
    assert 0 < one["accumulator"]["peak_bytes"] <= one["accumulator"]["bytes"] == 64 * 1024
    assert one["instruction_store"]["words"] <= one["instruction_store"]["available"]
    for result in (compiled, ran):
        assert f"memory: scratchpad {one['scratchpad']['peak_bytes']:,} of 262,144 bytes (" in result.out
        assert f"total {one['dram']['total']:,} bytes" in result.out


def test_packages_without_peaks(mla, tmp_path):
    """Packages of earlier versions, which did not store peak memory use, can be read."""
    import zipfile

    package, old = tmp_path / "digits.mla", tmp_path / "old.mla"
    assert mla("compile", DIGITS, "-o", package).status == 0
    with zipfile.ZipFile(package) as source, zipfile.ZipFile(old, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name == "manifest.json":
                manifest = json.loads(data)
                for stage in manifest["stages"]:
                    stage["code"].pop("peak", None)
                data = json.dumps(manifest).encode()
            target.writestr(name, data)
    result = mla("run", old, "--device", "golden")
    assert result.status == 0 and "scratchpad unknown of 262,144 bytes" in result.out


def test_warnings_are_in_the_report(mla, noisy, caplog):
    path, given = noisy
    run = ("run", path, "--device", "golden", "--calibrate", given, "--json", "-", "--no-cache")
    result = mla(*run)
    random, low = sorted(json.loads(result.out)["warnings"])
    assert random == "no --input file: using one random sample (seed 0)" and random in result.err.splitlines()
    assert (
        low.startswith("warning: noisy: output y has a signal-to-noise ratio below 20 dB (")
        and low in caplog.text
    )
    assert "--keep-float" in low
    assert json.loads(mla(*run, "--input", given).out)["warnings"] == [low]
    without = json.loads(mla("run", path, "--device", "golden", "--input", given, "--json", "-").out)[
        "warnings"
    ]
    assert without == [caplog.records[-1].getMessage()]
    assert len(without) == 1 and "random samples (seed 0)" in without[0]


def test_compile_prints_warnings(mla, noisy, tmp_path, caplog):
    path, given = noisy
    command = ("compile", path, "-o", tmp_path / "noisy.mla", "--calibrate", given)
    (low,) = json.loads(mla(*command, "--json", "-").out)["warnings"]
    result = mla(*command)
    assert "below 20 dB" in low and caplog.text.count(low) == 2 and low not in result.out


@pytest.mark.parametrize("verb", ["eval", "serve", "explore", "fuse", "tune"])
@pytest.mark.parametrize("calibrated", [False, True])
def test_every_verb_warns_about_low_quality(mla, noisy, tmp_path, verb, calibrated, caplog):
    path, given = noisy
    np.savez(tmp_path / "data.npz", x=np.load(given), y=np.zeros(4, np.int64))
    options = {
        "eval": ("--data", tmp_path / "data.npz", "--device", "golden", "--no-reference"),
        "serve": ("--requests", 1, "--device", "golden", "--out", tmp_path / "lines"),
        "explore": ("--targets", "n4,n8", "--device", "golden"),
        "fuse": ("--trials", 0),
        "tune": ("--trials", 1, "--method", "random"),
    }[verb]
    calibration = ("--calibrate", given) if calibrated else ()
    result = mla(verb, path, *options, *calibration, "--json", tmp_path / "report.json", "--no-cache")
    assert result.status == 0, result.err
    warnings = json.loads((tmp_path / "report.json").read_text())["warnings"]
    # Without --calibrate, eval quantizes with the labeled samples.
    text = "below 20 dB" if calibrated or verb == "eval" else "random samples (seed 0)"
    assert len([line for line in warnings if text in line]) == 1 and text in caplog.text


def test_values_that_integers_cannot_represent(mla, noisy, tmp_path, caplog):
    path, given = noisy
    compiled = tmp_path / "noisy.mla"
    assert mla("compile", path, "-o", compiled, "--calibrate", given).status == 0
    far, undefined, masked = np.load(given), np.load(given), np.load(given)
    far[1, 0, :3] = 1e4, -1e5, 2e4
    undefined[2, 0, 5] = np.nan
    masked[3, 0, 0] = np.inf
    for name, values in (("far", far), ("undefined", undefined), ("near", np.load(given) * 1.001)):
        np.save(tmp_path / f"{name}.npy", values)
    run = ("run", compiled, "--device", "golden", "--json", "-", "--input")
    (_, line) = json.loads(mla(*run, tmp_path / "far.npy").out)["warnings"]
    assert "18.8% of the values of input 'x' are outside of the range of the calibration samples" in line
    assert "and are clipped (for example, -1e+05)" in line and line in caplog.text
    assert len(json.loads(mla(*run, tmp_path / "near.npy").out)["warnings"]) == 1  # about the quality
    result = mla(*run, tmp_path / "undefined.npy")
    assert result.status == 2
    assert (
        "sample 2: input 'x' must not have NaN, which integers cannot represent: 1 of 16 values" in result.err
    )
    network = compiler.compile(path, calibration=np.load(given))
    with pytest.raises(InputError, match=r"input 'x' must not have NaN.* the first at \[0, 5\]"):
        network(undefined[2])
    caplog.clear()
    network(masked[3])
    network(far[1])
    assert caplog.text.count("outside of the range") == 1 and "(for example, inf)" in caplog.text


def test_warnings_of_packages_and_python(mla, noisy, tmp_path, caplog):
    path, given = noisy
    network = compiler.compile(path, calibration=np.load(given))
    assert "below 20 dB" in caplog.text and network.quantization is not None
    caplog.clear()
    assert mla("compile", path, "-o", tmp_path / "noisy.mla", "--calibrate", given).status == 0
    caplog.clear()
    assert mla("run", tmp_path / "noisy.mla", "--device", "golden").status == 0
    assert "below 20 dB" in caplog.text


def test_keep_float_option(mla, complains, noisy, tmp_path):
    path, given = noisy
    run = ("run", path, "--device", "golden", "--calibrate", given, "--input", given, "--json", "-")
    for kept in ("Mul:y", "mul"):
        report = json.loads(mla(*run, "--keep-float", kept).out)
        assert ("Mul:y", "asked to stay float") in {
            (each["node"], each["reason"]) for each in report["host_ops"]
        }
    assert not any(each["node"] == "Mul:y" for each in json.loads(mla(*run).out)["host_ops"])
    both = json.loads(
        mla(*run, "--keep-float", "Mul:y", "--keep-float", "Abs:a", "--keep-float", "MatMul:h").out
    )
    assert both["quantization"]["tensors"] == [] and both["warnings"] == []
    complains(2, "has no node and no operator 'nothing' to keep float", *run, "--keep-float", "nothing")
    package = tmp_path / "noisy.mla"
    assert mla("compile", path, "-o", package, "--calibrate", given, "--keep-float", "Mul:y").status == 0
    complains(
        2,
        "is already compiled: --keep-float applies to float models",
        "run",
        package,
        "--keep-float",
        "Mul:y",
    )
    complains(2, "--keep-float is for float models; ", "run", DIGITS, "--keep-float", "scores")
