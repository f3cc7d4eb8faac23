"""Model files in safetensors format: int8 matrices with a scale per row, and float vectors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from compiler.llm.model.numpy_transformer import Gpt, TransformerShape
from compiler.llm.tokens.vocabulary import LANGUAGE, RELATED
from hw.errors import InputError, WorkError, reason_of, shown

#: Model file included in the compiler.
SHIPPED = Path(__file__).with_name("model.safetensors")
FORMAT = "mla-llm"
VERSION = 1
#: Maximum number of known schedules in a prompt.
_MAX_KNOWN = 8
#: Maximum size of a model file in bytes.
_MAX_BYTES = 1 << 24
#: Suffix of the tensor with the scales of a matrix.
_FACTOR = ".factor"
_EMBEDDING = "words"
#: Standard deviation of the embeddings of new tokens around the mean embedding.
_INITIAL_DEVIATION = 0.02
#: Maximum dimensions in files from untrusted sources.
_MAX_SIZES = {"words": 1 << 16, "width": 1024, "heads": 64, "layers": 64, "hidden": 4096, "context": 1 << 14}


def save(model: Gpt, path: Path, about: dict[str, Any]) -> None:
    """Write a model file.

    Parameters
    ----------
    model : Gpt
        Model to write.
    path : Path
        Path of the file.
    about : dict
        Training metadata, stored in the file as JSON.

    Raises
    ------
    WorkError
        The file cannot be written.
    """
    tensors: dict[str, np.ndarray] = {}
    for name, array in model.weights.items():
        if array.ndim == 1:
            tensors[name] = array
            continue
        factors = np.maximum(np.abs(array).max(axis=1, keepdims=True) / 127, 1e-12).astype(np.float32)
        tensors[name], tensors[name + _FACTOR] = np.rint(array / factors).astype(np.int8), factors
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "shape": json.dumps(vars(model.shape)),
        "language": json.dumps(LANGUAGE.tokens),
        "about": json.dumps(about),
        "profile": json.dumps(model.profile),
        "known": json.dumps(model.known),
    }
    try:
        save_file(tensors, path, header)
    except (OSError, SafetensorError) as error:
        raise WorkError(f"{path}: cannot be written: {reason_of(error)}") from None


def load(path: Path) -> tuple[Gpt, dict[str, Any]]:
    """Read a model file; return the model and its training metadata.

    Raises
    ------
    InputError
        The file cannot be read, is damaged, or has another vocabulary than this compiler.
    """
    model, language, about = _read(path)
    if language != LANGUAGE.tokens:
        raise InputError(
            f"{path}: the model has another vocabulary than this compiler: train a new one with mla llm train "
            f"(--from {path} starts from this model)"
        )
    return model, about


def load_extended(path: Path, seed: int = 0) -> Gpt:
    """Read a model for further training, and extend it to the current vocabulary.

    Parameters
    ----------
    path : Path
        Path of a model with the current vocabulary or an earlier vocabulary.
    seed : int
        Random seed for the embeddings of new tokens, which are those of related tokens (`RELATED`), or else close to
        the mean embedding.

    Raises
    ------
    InputError
        The file cannot be read or is damaged.
    """
    model, language, _ = _read(path)
    known = dict(zip(language, model.weights[_EMBEDDING], strict=True))
    rows = np.random.default_rng(seed).normal(0, _INITIAL_DEVIATION, (len(LANGUAGE), model.shape.width))
    rows += model.weights[_EMBEDDING].mean(axis=0)
    for number, token in enumerate(LANGUAGE.tokens):
        if (like := token if token in known else RELATED.get(token)) in known:
            rows[number] = known[like]
    return Gpt(
        replace(model.shape, words=len(LANGUAGE)),
        {**model.weights, _EMBEDDING: rows},
        profile=model.profile,
        known=model.known,
    )


def _read(path: Path) -> tuple[Gpt, tuple[str, ...], dict[str, Any]]:
    """Return a model, its vocabulary and its training metadata."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path}: a language model has at most {_MAX_BYTES:,} bytes")
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            shape, language = _shape(path, header)
            about, profile = _about(header), json.loads(header.get("profile", "true")) is not False
            count = json.loads(header.get("known", "0"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as a language model: {reason_of(error)}") from None
    if type(count) is not int or not 0 <= count <= _MAX_KNOWN:
        raise InputError(f"{path}: the number of known schedules must be 0..{_MAX_KNOWN}, not {shown(count)}")
    weights = {}
    for name, size in shape.tensors.items():
        array, factors = tensors.get(name), tensors.get(name + _FACTOR)
        known = array is not None and array.shape == size and array.dtype in (np.int8, np.float32)
        if array is None or not known or (factors is not None and factors.shape != (size[0], 1)):
            raise InputError(f"{path}: tensor {name!r} is missing or has another shape than {size}")
        weights[name] = array.astype(np.float32) * (1 if factors is None else factors.astype(np.float32))
        if not np.isfinite(weights[name]).all():
            raise InputError(f"{path}: tensor {name!r} has values that are not finite")
    return Gpt(shape, weights, profile=profile, known=count), language, about


def _shape(path: Path, header: dict[str, str]) -> tuple[TransformerShape, tuple[str, ...]]:
    """Return the dimensions and vocabulary of a model from the file header."""
    if header.get("format") != FORMAT or header.get("version") != str(VERSION):
        raise InputError(f"{path}: not a language model of version {VERSION}")
    language = json.loads(header.get("language", "null"))
    if not isinstance(language, list) or not all(isinstance(token, str) for token in language):
        raise InputError(f"{path}: the vocabulary is missing or invalid")
    sizes = json.loads(header.get("shape", "null"))
    complete = isinstance(sizes, dict) and sizes.keys() == _MAX_SIZES.keys()
    if not complete or not all(
        type(size) is int and 0 < size <= _MAX_SIZES[name] for name, size in sizes.items()
    ):
        raise InputError(f"{path}: the dimensions are not those of a language model")
    shape = TransformerShape(**sizes)
    if shape.words != len(language) or shape.width % (2 * shape.heads):
        raise InputError(f"{path}: the dimensions are inconsistent")
    return shape, tuple(language)


def _about(header: dict[str, str]) -> dict[str, Any]:
    found = json.loads(header.get("about", "{}"))
    return found if isinstance(found, dict) else {}
