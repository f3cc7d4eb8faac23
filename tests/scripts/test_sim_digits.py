"""The digits demo serves images on the chip while its programs improve, with exact outputs and a complete report."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from compiler.online_tuning.observers import ServingHistory
from compiler.online_tuning.serve import open_machine, serve
from compiler.visualize.charts import draw_serving
from scripts import sim_report
from scripts.networks.digits import Digits, load_digits_split
from scripts.sim import plan, requests_of
from scripts.sim_accuracy import AccuracyCheck

IMAGES = 48
#: Maximum cycles per image with improved programs, slightly above the measured value.
CEILING = 3000


def some(count: int) -> Digits:
    _, held_out = load_digits_split()
    return Digits(held_out.images[:count], held_out.labels[:count])


def test_adaptive_serving_gets_faster():
    digits = some(IMAGES)
    serving, compiled = plan(IMAGES, adapt=True)
    marks, history = AccuracyCheck(compiled, digits.labels), ServingHistory(clocked=True)
    with open_machine(serving) as device:
        assert serve(serving, device, requests_of(compiled, digits), [marks, history]) == 0
    assert marks.images == marks.exact == IMAGES and marks.accuracy > 0.9
    first = next(event for event in history.events if event["event"] == "reload")
    assert first["why"] == "first" and history.last is not None
    assert history.last <= CEILING and min(history.cycles[: first["request"] - 4]) > 2 * CEILING
    text = sim_report.report(marks, history, compiled.floor.macs)
    assert f"outputs  {IMAGES} of {IMAGES} bit by bit" in text
    assert ("times as fast" in text) == ("array utilized" in text) == (len(history.windows) > 1)
    document = json.loads(json.dumps(sim_report.document("rtl", marks, history)))
    assert (
        document["exact_images"] == IMAGES and document["reloads"] >= 1 and len(document["cycles"]) == IMAGES
    )
    ElementTree.fromstring(draw_serving("digits", history.cycles, history.events))


def test_golden_model_classifies():
    digits = some(12)
    serving, compiled = plan(12, adapt=False)
    marks, history = AccuracyCheck(compiled, digits.labels), ServingHistory(clocked=False)
    with open_machine(serving, "golden") as device:
        assert serve(serving, device, requests_of(compiled, digits), [marks, history]) == 0
    assert marks.exact == 12 and not history.windows
    beside = marks.compare_with_onnxruntime()
    assert beside is not None and beside[0] == 12 and beside[1] <= 3
    assert sim_report.report(marks, history, 1).count("\n") == 2


@pytest.mark.parametrize("where", ["network", "labels"])
def test_wrong_outputs_and_labels_are_detected(where):
    digits = some(6)
    serving, compiled = plan(6, adapt=False)
    marks = AccuracyCheck(compiled, digits.labels if where == "network" else (digits.labels + 1) % 10)
    if where == "network":
        serving.network.codes[0].image[:] ^= np.uint8(0x15)
    with open_machine(serving, "golden") as device:
        marks.compiled = plan(6, adapt=False)[1]
        serve(serving, device, requests_of(compiled, digits), [marks])
    assert (marks.exact < 6) == (where == "network") and marks.right < 6
