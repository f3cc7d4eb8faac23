"""Tests of ONNX files with external data, and of sizes given on the command line."""

import os
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from compiler.cli.main import main
from compiler.frontends.onnx import read_onnx
from hw.errors import InputError
from tests.support.onnx_models import node, small


def external(folder: Path, location: str, **entries: int) -> str | None:
    """Return the message for a model with a constant in an external file, or None if the model can be read."""
    made = small(node("Add", "x c", "y"), c=np.zeros(3, np.float32))
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    try:
        graph = read_onnx(path)
    except InputError as error:
        return str(error).removeprefix(f"{path}: ")
    np.testing.assert_array_equal(graph.tensors["c"].data, [1, 2, 3])  # type: ignore[arg-type]
    return None


def test_external_data_must_be_within_the_folder(tmp_path: Path) -> None:
    folder, numbers = tmp_path / "folder", np.array([9, 1, 2, 3], "<f4").tobytes()
    (folder / "part").mkdir(parents=True)
    for path in (folder / "part" / "data.bin", tmp_path / "outside.bin"):
        path.write_bytes(numbers)
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    (folder / "inner.bin").symlink_to(folder / "part" / "data.bin")
    (folder / "loop.bin").symlink_to(folder / "loop.bin")
    os.mkfifo(folder / "pipe.bin")
    assert external(folder, "part/data.bin", offset=4) is None
    assert external(folder, "inner.bin", offset=4, length=12) is None
    for location in ("../outside.bin", str(tmp_path / "outside.bin"), "part/../../outside.bin", ""):
        assert (
            external(folder, location, offset=4)
            == f"tensor 'c': external data must be in a file below the model's folder, not {location!r}"
        )
    assert external(folder, "link.bin", offset=4) == (
        "tensor 'c': external data 'link.bin' is a link that leads out of the model's folder"
    )
    assert external(folder, "pipe.bin") == "tensor 'c': external data 'pipe.bin' must be a file"
    assert str(external(folder, "loop.bin")).startswith("tensor 'c': external data 'loop.bin' cannot be")
    assert external(folder, "part/none.bin") == (
        "tensor 'c': external data 'none.bin' cannot be read: No such file or directory"
    )
    assert external(folder, "part/data.bin", offset=8) == (
        "tensor 'c': external data 'data.bin' must hold bytes 8..20, but has 16"
    )
    assert external(folder, "part/data.bin", length=13) == (
        "tensor 'c': takes 12 bytes, but its external data is 13 bytes long"
    )
    assert external(folder, "part/data.bin", offset=-4) == (
        "tensor 'c': offset of external data must be a number, not '-4'"
    )


def test_size_option_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(small(node("Relu", "x", "y"), shape=("n", "width")).SerializeToString())
    assert main(["graph", str(path), "--size", "width=5"]) == 0
    assert "%y: float32[1, 5] = clip(%x) [low=0.0, high=inf]" in capsys.readouterr().out
    assert main(["graph", str(path)]) == 2
    assert "--size width=N" in capsys.readouterr().err
    for wrong in ("width", "width=0", "=3", "width=x"):
        with pytest.raises(SystemExit) as caught:
            main(["graph", str(path), "--size", wrong])
        assert caught.value.code == 2
        assert "must be NAME=N" in capsys.readouterr().err
