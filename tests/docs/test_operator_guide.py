"""An operator that is added by the steps of the guide in docs/operators.md runs on the accelerator."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
#: A step of the guide: the file to change, the position, and the code to add.
STEP = re.compile(
    r"(?:In `(?P<table>\w+)` of|At the end of)\s+`(?P<path>[\w/.]+)`:\n\n(?P<code>   ```python\n.*?)   ```\n",
    re.S,
)
#: Comparison with onnxruntime, run in a new interpreter because the compiler reads its operator tables on import.
PROGRAM = """
import sys
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
import compiler
from compiler.api import compile

assert compiler.__file__.startswith(sys.argv[1]), compiler.__file__
shape = [1, 4, 5, 6]
graph = helper.make_graph(
    [helper.make_node("QuickGelu", ["x"], ["y"], "gelu", domain="com.microsoft", alpha=1.5)],
    "guide",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
)
opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
onnx.save(model, sys.argv[1] + "/guide.onnx")
x = np.random.default_rng(7).uniform(-4, 4, shape).astype(np.float32)
network = compile(sys.argv[1] + "/guide.onnx", "n8", calibration={"x": x[None]}, cache=False)
# Its steps are found by a batch too, and by the documentation.
compile(sys.argv[1] + "/guide.onnx", "n8", calibration={"x": x[None]}, cache=False, batch=2)
assert [layer.ops for layer in network.layers] == [("quick_gelu",)], network.layers
assert "quick_gelu" not in {node.op for node in network.host}, network.host
session = onnxruntime.InferenceSession(model.SerializeToString())
(wanted,) = session.run(None, {"x": x})
(given,) = network(x).values()
# Half a step of each quantization, over 8 and over 5 in 255 steps.
assert np.abs(given - wanted).max() < 0.06, np.abs(given - wanted).max()
"""


def steps() -> list[tuple[str, str | None, str]]:
    text = (ROOT / "docs/operators.md").read_text()
    section = text.partition("### A unary function")[2].partition("\n### ")[0]
    return [
        (each["path"], each["table"], dedent(each["code"]).removeprefix("```python\n"))
        for each in STEP.finditer(section)
    ]


def apply(path: Path, table: str | None, code: str) -> None:
    """Add code to a file, either after the line that opens a table or at the end of the file."""
    text = path.read_text()
    if table is None:
        path.write_text(f"{text}\n\n{code}")
        return
    (opening,) = re.finditer(rf"^{table}\b.*= \{{\n", text, re.M)
    path.write_text(text[: opening.end()] + "    " + code + text[opening.end() :])


def test_adding_a_table_operator(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "compiler", tmp_path / "compiler", ignore=shutil.ignore_patterns("__pycache__"))
    found = steps()
    assert len({path for path, _, _ in found}) == len(found) == 3
    for path, table, code in found:
        apply(tmp_path / path, table, code)
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
