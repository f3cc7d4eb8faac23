"""Suites of `mla bench` on the golden model give exact results and unknown cycles."""

import pytest

from compiler.bench import format_document, run_suite
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.device import open_device
from cosim.golden import GoldenDevice
from hw.config import load_target
from hw.errors import InputError


def golden(network: CompiledNetwork) -> GoldenDevice:
    return open_device(network, "golden", 1, 100, 16, print)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("suite", "case", "macs"),
    [
        ("gemm", "9x21x40", 7560),
        ("conv", "9x7x5-11-3-2", 5 * 4 * 11 * 9 * 5),
        ("conv", "9x7x6-6-3-1-dw", 9 * 7 * 9 * 6),
    ],
)
def test_each_case_is_exact_on_the_golden_model(suite, case, macs):
    document = run_suite(suite, load_target("n8"), target="own", case=case, open_machine=golden)
    assert document["target"] == "own" and f"{suite} on own, DRAM" in format_document(document)
    (result,) = document["results"]
    assert result["exact"] and result["max_abs_diff"] == 0 and result["reference"] == "numpy int64"
    assert result["macs"] == macs and result["cycles"] is None and result["where"] is None
    assert result["floor_cycles"] >= macs // 64
    assert case in format_document(document) and "yes" in format_document(document)


@pytest.mark.parametrize(
    ("target", "case", "judged"), [("n16", None, True), ("n16", "8x8x8", False), ("n8", None, False)]
)
def test_speed_thresholds(monkeypatch, target, case, judged):
    """Speed thresholds apply to only one case of one target; the golden model, which has no clock, misses both."""
    monkeypatch.setattr("compiler.bench.suite._SPEED_CASE", "16x16x16")
    monkeypatch.setattr("compiler.bench.suite._bare_khz", lambda: 800.0)
    document = run_suite("sim", load_target(target), target=target, case=case, open_machine=golden)
    assert (document["bars"] is not None) == judged
    if judged:
        assert not document["bars"]["sim_khz_met"] and not document["bars"]["bare_array_share_met"]
    assert ("(bar: 0.25, MISSED)" in format_document(document)) == judged


def test_document_as_table():
    result = {
        "name": "1x1x1",
        "cycles": 100,
        "macs": 1,
        "utilization": 0.5,
        "floor_cycles": 50,
        "exact": False,
    }
    result |= {"reference": "numpy int64", "max_abs_diff": 3, "where": {"useful": 60, "idle": 40}}
    document = {
        "suite": "sim",
        "target": "n8",
        "dram": {"latency": 7, "bytes_per_cycle": 8},
        "results": [result],
    }
    document |= {"sim_khz": 100.0, "bare_array_khz": 400.0}
    text = format_document(document)
    assert "off by 3" in text and "idle 40.0%" in text and "useful" not in text.splitlines()[2]
    assert "0.25 of that" in text


@pytest.mark.parametrize(
    ("suite", "case", "message"),
    [
        ("gemm", "4x4", "must be MxNxK like 64x64x64, not '4x4'"),
        ("gemm", "0x4x4", "must be MxNxK"),
        ("conv", "4x4x4-4-3", "must be HxWxC-O-k-s"),
        ("conv", "4x4x4-8-3-1-dw", "must keep its channels, not turn 4 into 8"),
        ("tiny", "lenet", "a tiny case must be one of ad01_int8, .*, not 'lenet'"),
        ("blocks", "lenet", "a blocks case must be one of vit_197x192, .*, not 'lenet'"),
        ("conditions", "4x4", "measured all or not at all: no case '4x4'"),
        ("mnist", None, "suite must be gemm, conv, nets, blocks, tiny, conditions or sim, not 'mnist'"),
    ],
)
def test_invalid_suites_and_cases(suite, case, message):
    with pytest.raises(InputError, match=message):
        run_suite(suite, load_target("n8"), target="own", case=case, open_machine=golden)
