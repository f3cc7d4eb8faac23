"""For every operator, damaged TFLite files give a message that names the operator, never a traceback."""

import random
import re
import zlib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from compiler.frontends.tflite import read_tflite
from hw.errors import InputError
from tests.frontends.tflite.test_host_operators import CASES as ON_HOST
from tests.frontends.tflite.test_operators import CASES as ON_ACCELERATOR
from tests.frontends.tflite.test_operators import FLOATS
from tests.support.tflite_models import Draft

CASES: dict[str, tuple[Callable[[Draft], None], str]] = {
    **{name: (case, "int8") for name, (case, _) in ON_ACCELERATOR.items()},
    **{name: (case, "float32") for name, case in FLOATS.items()},
    **{f"host {name}": (case, "float32") for name, (case, _) in ON_HOST.items()},
}
#: Operators whose shape operand is redundant, since the shape of the result is the same.
_UNREAD = ("TRANSPOSE_CONV",)


def drafted(name: str) -> Draft:
    """Return the model of a test case, which has the same constants each time."""
    case, dtype = CASES[name]
    draft = Draft(np.random.default_rng(zlib.crc32(name.encode())), dtype)
    case(draft)
    return draft


def message(folder: Path, data: bytes) -> str | None:
    """Return the one-line message with which a file is rejected, or None if the file can be read."""
    path = folder / "model.tflite"
    path.write_bytes(data)
    try:
        read_tflite(path)
    except InputError as error:
        text = str(error)
        assert text.startswith(f"{path}: ") and "\n" not in text and len(text) < 1000
        return text.removeprefix(f"{path}: ")
    return None


def names_operator(draft: Draft, text: str) -> bool:
    """Return True if a message names an operator of the draft by type and index."""
    numbered = [f"'{each.kind.lower()}_{i}'" for i, each in enumerate(draft.operators)]
    return any(name in text for name in numbered)


def integers(draft: Draft) -> list[str]:
    """Return the names of constants that configure operators: axes, sizes and others."""
    return [
        name
        for name, given in draft.tensors.items()
        if isinstance(given, np.ndarray) and given.dtype == np.int32 and name.startswith("c")
    ]


@pytest.mark.parametrize("name", CASES)
def test_wrong_shapes_name_the_operator(name: str, tmp_path: Path) -> None:
    """An operand or result with a different rank or a larger dimension is rejected."""
    whole = drafted(name)
    for changed, (shape, dtype) in ((k, v) for k, v in whole.tensors.items() if isinstance(v, tuple)):
        for other in ((*shape, 3), (*shape[:-1], 97), (13, 11)):
            draft = deepcopy(whole)
            draft.tensors[changed] = (other, dtype)
            text = message(tmp_path, draft.file())
            assert text is None or names_operator(draft, text), text
            if changed in draft.outputs and shape != other:
                assert text is not None, f"{changed}: {list(other)} for {list(shape)}"


@pytest.mark.parametrize("name", [name for name in CASES if integers(drafted(name))])
def test_missing_and_out_of_range_constants(name: str, tmp_path: Path) -> None:
    whole = drafted(name)
    for changed in integers(whole):
        users = [each.kind for each in whole.operators if changed in each.inputs]
        values = whole.tensors[changed]
        draft = deepcopy(whole)
        draft.tensors[changed] = (values.shape, "int32")
        text = message(tmp_path, draft.file())
        assert text is None or names_operator(draft, text), text
        assert text is not None or set(users) <= {*_UNREAD, "GATHER"}
        for bad in (-99, 99, 2**31 - 1, -(2**31)):
            for place in range(values.size):
                draft = deepcopy(whole)
                draft.tensors[changed].reshape(-1)[place] = bad
                text = message(tmp_path, draft.file())
                assert text is None or names_operator(draft, text), text
        draft = deepcopy(whole)
        draft.tensors[changed] = np.full((2, 3, 7), 99, np.int32)
        text = message(tmp_path, draft.file())
        assert text is not None or set(users) <= set(_UNREAD)


@pytest.mark.parametrize("name", CASES)
def test_missing_operands_and_options(name: str, tmp_path: Path) -> None:
    whole = drafted(name)
    for i, operator in enumerate(whole.operators):
        for count in range(len(operator.inputs)):
            draft = deepcopy(whole)
            draft.operators[i].inputs = list(operator.inputs)[:count]
            text = message(tmp_path, draft.file())
            assert text is None or names_operator(draft, text), text
            assert text is not None or count
        draft = deepcopy(whole)
        draft.operators[i].options = None
        text = message(tmp_path, draft.file())
        assert text is None or re.search(r"operator '\w+' lacks its options", text), text


@pytest.mark.parametrize("name", CASES)
def test_changed_bytes_give_a_graph_or_a_message(name: str, tmp_path: Path) -> None:
    seed = zlib.crc32(name.encode())
    print("seed", seed)
    rng, whole = random.Random(seed), drafted(name).file()
    for _ in range(40):
        data = bytearray(whole)
        if rng.random() < 0.2:
            del data[rng.randrange(8, len(data)) :]
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(8, len(data)) if len(data) > 8 else 0] = rng.getrandbits(8)
        message(tmp_path, bytes(data))


#: Case, values of its first integer constant, expected message.
BAD_CONSTANTS = [
    ("split", 9, "axis must be within -4..3, not 9"),
    ("transpose", [0, 0], "an order of 2 dimensions cannot be [0, 0]"),
    ("pad", [[-1, 0]] * 4, "paddings must not be negative: [(-1, 0), (-1, 0), (-1, 0), (-1, 0)]"),
    ("gather", [[0, 99]], "indices must be within 0..0, not 0..99"),
    ("mirror_pad", [1, 2, 3], "its paddings must be 8 numbers, not 3"),
    ("reverse", [4], "axis must be within -4..3, not 4"),
    ("resize", [0, 5], "cannot make [0, 5] pixels of"),
    ("space_to_batch", [0, 2], "no blocks of [0, 2] with edges"),
    ("mean", [7], "axis must be within -4..3, not 7"),
    ("slice", [0, 0, 0, 99], "has no"),
]


@pytest.mark.parametrize(("name", "values", "wanted"), BAD_CONSTANTS)
def test_bad_constants_name_the_operator(name: str, values: object, wanted: str, tmp_path: Path) -> None:
    draft = drafted(name)
    draft.tensors[integers(draft)[0]] = np.array(values, np.int32)
    text = message(tmp_path, draft.file())
    assert text is not None and text.startswith(f"operator '{draft.operators[0].kind.lower()}_0': ")
    assert wanted in text


def test_unsupported_types(tmp_path: Path) -> None:
    draft = drafted("relu")
    draft.tensors["x0"] = (draft.tensors["x0"][0], "float64")
    assert message(tmp_path, draft.file()) == "tensor 'x0': type FLOAT64 is not supported"


def test_tensors_without_elements(tmp_path: Path) -> None:
    """A tensor without elements is accepted if no operator reads it; otherwise the message names the tensor."""
    draft = Draft(np.random.default_rng(0), "int8")
    x = draft.input((1, 4))
    draft.op("RESHAPE", [x, draft.held(np.zeros(0))], (4,), like=x)
    assert message(tmp_path, draft.file()) is None
    draft = drafted("relu")
    draft.tensors[draft.outputs[0]] = ((0, 3), "int8")
    assert message(tmp_path, draft.file()) == f"tensor '{draft.outputs[0]}' has no elements"


def test_all_unknown_operators_are_named_in_one_message(tmp_path: Path) -> None:
    draft = Draft(np.random.default_rng(0), "int8")
    x = draft.input((2, 30, 4))
    for kind in ("TOPK_V2", "RELU", "UNIQUE"):
        draft.op(kind, [x], (2, 30, 4))
    text = message(tmp_path, draft.file())
    assert text == (
        "there is no conversion for node 'topk_v2_0' (TOPK_V2), 'unique_2' (UNIQUE); "
        "docs/operators.md lists the operators"
    )


def test_all_operators_that_cannot_be_converted_are_named_in_one_message(tmp_path: Path) -> None:
    """Operators that depend on such an operator are not listed."""
    draft = Draft(np.random.default_rng(0), "int8")
    x = draft.input((2, 30, 4))
    for _ in range(2):
        y = draft.op("TRANSPOSE", [x, draft.held(np.array([0, 0]))], (2, 30, 4))
        draft.op("RELU", [y], (2, 30, 4))
    text = message(tmp_path, draft.file()) or ""
    wrong = "its order of dimensions must be 3 numbers, not 2"
    assert text == f"operator 'transpose_0': {wrong}; operator 'transpose_2': {wrong}"
