"""The trained MLPerf Tiny networks, from MLCommons' public repository, and their suite, compared with LiteRT."""

import hashlib
import os
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

from compiler.bench.case import Case, Work
from compiler.util.files import write_output
from cosim.rtl.cache import cache_folder
from hw.errors import InputError, WorkError, shown

COMMIT = "1afd2c9820f795965a6134facd0b4dfae41ef23f"
SOURCE = f"https://raw.githubusercontent.com/mlcommons/tiny/{COMMIT}/benchmark/training"
#: Path in the repository and SHA-256 of each network.
NETWORKS = {
    "ad01_int8": (
        "anomaly_detection/trained_models",
        "87cf24194ef93d1d9b11a591d805526b98008e351655d29883c825c9c106ba24",
    ),
    "kws_ref_model": (
        "keyword_spotting/trained_models",
        "aeea436800704fce17b17292e4412630ad856e9d777c044c64ef748a880bd0ae",
    ),
    "pretrainedResnet_quant": (
        "image_classification/trained_models",
        "3c002613d1b2475eb51dd78dfb85a546c8ae658dee71cf6ade43b022fe205415",
    ),
    "vww_96_int8": (
        "visual_wake_words/trained_models",
        "597a384c8c2c8a1276f04702f25013b7838f2f814f1ca7c174d295b73e3d6b7b",
    ),
}
#: Maximum size of a network in bytes.
_MOST_BYTES = 1 << 20
_SECONDS = 60
_BESIDE = Path(__file__).parents[3] / "shared" / "models"


def models_folder() -> Path:
    """Return the folder of the networks: MLA_MODELS, a folder next to the repository, or the cache."""
    named = os.environ.get("MLA_MODELS")
    if named:
        return Path(named)
    return _BESIDE if _BESIDE.is_dir() else cache_folder() / "models"


def model_path(name: str, source: str = SOURCE) -> Path:
    """Return the path of a network's file, which is downloaded if it is missing.

    Raises
    ------
    InputError
        The network is unknown, or MLA_MODELS names a folder without it.
    WorkError
        The download fails, or the downloaded file has a wrong hash.
    """
    if name not in NETWORKS:
        raise InputError(f"network must be one of {', '.join(NETWORKS)}, not {name!r}")
    path = models_folder() / f"{name}.tflite"
    if path.is_file():
        return path
    if os.environ.get("MLA_MODELS"):
        raise InputError(f"{path} does not exist: MLA_MODELS must name a folder with {', '.join(NETWORKS)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_output(path, _fetch(name, source))
    return path


def _fetch(name: str, source: str) -> bytes:
    folder, wanted = NETWORKS[name]
    url = f"{source}/{folder}/{name}.tflite"
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            data = answer.read(_MOST_BYTES + 1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise WorkError(
            f"{url} cannot be fetched: {reason}; put the file into a folder and name that in MLA_MODELS"
        ) from None
    found = hashlib.sha256(data).hexdigest()
    if found != wanted:
        raise WorkError(f"{url} has SHA-256 {found}, not {wanted}: it is not used")
    return data


CASES = tuple(NETWORKS)
#: Allowed difference between LiteRT's float softmax and its fixed-point one.
_SOFTMAX = 1


def tiny_case(name: str) -> Case:
    """Return the case for the name of a network.

    Raises
    ------
    InputError
        The network is unknown.
    """
    if name not in NETWORKS:
        raise InputError(f"a tiny case must be one of {', '.join(NETWORKS)}, not {shown(name)}")
    return Case(name, "LiteRT reference kernels", lambda rng: _work(name, rng))


def _work(name: str, rng: np.random.Generator) -> Work:
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except ImportError:
        raise WorkError(
            "ai-edge-litert, whose kernels are the reference of this suite, is not installed: `make setup`, or "
            "`pip install -e '.[test]'` in the checkout, installs it"
        ) from None
    path = model_path(name)
    interpreter = Interpreter(str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    interpreter.allocate_tensors()
    inputs = {
        detail["name"]: rng.integers(-128, 128, detail["shape"]).astype(detail["dtype"])
        for detail in interpreter.get_input_details()
    }
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], inputs[detail["name"]])
    interpreter.invoke()
    outputs = {d["name"]: interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()}
    return Work(path, inputs, outputs, dict.fromkeys(outputs, _SOFTMAX))
