"""Folder of training rounds, which contains the initial inputs, the models, and the evaluation curve."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compiler.llm.data.examples import CORPUS
from compiler.llm.evaluation import GROUP_SIZE
from compiler.util.files import read_input, write_output
from compiler.visualize.charts import draw_rounds
from hw.errors import InputError
from scripts.eval_lm import evaluate_model


def model_of(folder: Path, number: int) -> Path:
    """Return the path of the model of a round; round 0 is the initial model."""
    return folder / str(number) / "model.safetensors"


def corpus_of(folder: Path) -> Path:
    """Return the path of the folder's copy of the corpus; the original file may be rewritten later."""
    return folder / f"corpus{CORPUS.suffix}"


def begin(folder: Path, options: Mapping[str, Any], llm: Path, corpus: Path) -> None:
    """Copy model, corpus and options to a new folder; check that an existing folder was created with the same options.

    Raises
    ------
    InputError
        The folder was created with other inputs, or a file cannot be read.
    """
    path, options = (
        folder / "asked.json",
        {**options, "llm": str(llm.resolve()), "corpus": str(corpus.resolve())},
    )
    if path.exists():
        try:
            before = dict(json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path}: cannot be read: {error}; choose another --folder") from None
        other = [f"--{option}" for option in options if before.get(option) != options[option]]
        if other:
            raise InputError(
                f"{folder}: was created with another {', '.join(other)}: choose another --folder"
            )
        return
    model, data = read_input(llm), read_input(corpus)
    model_of(folder, 0).parent.mkdir(parents=True, exist_ok=True)
    write_output(model_of(folder, 0), model)
    write_output(corpus_of(folder), data)
    write_output(path, (json.dumps(options) + "\n").encode())


def evaluate(folder: Path, number: int, layers: int, samples: int, workers: int) -> dict[str, Any]:
    """Return a point of the curve: the quality of single answers about layers that are the same in every round."""
    log(f"round {number}: evaluating")
    file = folder / f"judged.{number}.jsonl"
    return {"round": number} | evaluate_model(model_of(folder, number), layers, samples, workers, file)


def log(text: str) -> None:
    """Print progress immediately."""
    print(text, flush=True)


def write_curve(folder: Path, points: Sequence[Mapping[str, Any]]) -> str:
    """Write all values (curve.json) and their chart (curve.svg); return the last values as a line of text."""
    lines = {
        "one answer": [each["one"] for each in points],
        f"best of {GROUP_SIZE}": [each["some"] for each in points],
        "one, median": [each["one_median"] for each in points],
        f"best of {GROUP_SIZE}, median": [each["some_median"] for each in points],
    }
    picture = draw_rounds(
        "Cost of the model's answers",
        "cycles of held-out layers relative to the static compiler's, n16",
        lines,
        "equal to the static compiler",
    )
    write_output(folder / "curve.json", (json.dumps(points, indent=1) + "\n").encode())
    write_output(folder / "curve.svg", picture.encode())
    last = points[-1]
    return (
        f"round {last['round']}: one answer {last['one']:.4f}, best of {GROUP_SIZE} {last['some']:.4f} times the "
        "static compiler's cycles"
    )
