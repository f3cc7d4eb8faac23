"""`mla llm sample`."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from compiler.cli.output import report
from hw.errors import InputError

if TYPE_CHECKING:
    from compiler.llm.decode import Reader
    from compiler.llm.describe import Subject
    from compiler.llm.gpt import Gpt
    from compiler.specialize.task import Task


def run(args: argparse.Namespace) -> int:
    """Measure the network once, ask about its layers, print the answers."""
    from compiler.cli.compile import source_of
    from compiler.cli.run import head, say
    from compiler.llm.writer import subjects_of
    from compiler.measure.conditions import Conditions
    from compiler.measure.measurer import Measurer
    from compiler.schedule.dram import Dram
    from compiler.specialize.task import Task
    from hw.config import load_target

    model = model_of(args)
    source, options = source_of(args)
    conditions = Conditions(load_target(args.target), Dram(args.dram_latency, args.dram_bytes_per_cycle))
    with Measurer(source.graph, conditions, options, 1, args.seed, say) as measurer:
        prepared, schedule = measurer.prepared, measurer.first.schedule
        if args.layer is not None and args.layer not in schedule.layers:
            names = ", ".join(map(repr, schedule.layers))
            raise InputError(f"--layer must be one of {names}, not {args.layer!r}")
        measured = measurer.baseline()
    about = tuple(schedule.layers) if args.layer is None else (args.layer,)
    task = Task(prepared, conditions, schedule, about, measured, seed=args.seed)
    subjects = subjects_of(task)
    with _reader(model, args) as (reader, told):
        layers = [
            _layer(task, reader, name, subject, args, profile=model.profile)
            for name, subject in subjects.items()
        ]
        machine, line = told()
    whole = head(args, "rtl", conditions.rate) | {"cycles": measured.cycles, "layers": layers} | machine
    report(whole, "\n".join([*(line for each in layers for line in _lines(each)), *line]), args.json)
    return 0


#: What a report has of the reader's work: as JSON, and in lines of text.
_Told = Callable[[], tuple[dict[str, Any], list[str]]]


@contextmanager
def _reader(model: "Gpt", args: argparse.Namespace) -> "Iterator[tuple[Reader, _Told]]":
    """Who reads and writes, and what there is to tell of it afterwards."""
    from compiler.cli.llm_machine import on_machine

    if not args.on_machine:
        yield model, lambda: ({}, [])
        return
    with on_machine(model, args) as chip:
        yield chip.along, chip.told


def model_of(args: argparse.Namespace) -> "Gpt":
    """The model that is asked."""
    from compiler.llm.weights import load
    from compiler.llm.writer import SHIPPED

    if args.temperature < 0:
        raise InputError(f"--temperature must be at least 0, not {args.temperature:g}")
    return load(args.llm or SHIPPED)[0]


def _layer(
    task: "Task", model: "Reader", name: str, subject: "Subject", args: argparse.Namespace, *, profile: bool
) -> dict[str, Any]:
    import numpy as np

    from compiler.llm.decode import draw
    from compiler.llm.describe import BEST
    from compiler.llm.language import LANGUAGE
    from compiler.llm.writer import Fitting

    rng = np.random.default_rng(args.seed)
    grammar = None if args.unconstrained else Fitting(task, name, subject, set())
    try:
        question = subject.words(BEST, profile=profile)
        answers = draw(model, LANGUAGE, question, grammar, args.answers, rng, args.temperature)
    except ValueError as error:  # a size without words, or more words than there is room for
        raise InputError(f"layer {name!r} cannot be asked about: {error}") from None
    return {
        "layer": name, "cycles": sum(subject.where.values()), "question": question,
        "answers": [
            {"words": list(each.words), "log_likelihood": each.likelihood, "complete": each.complete}
            for each in answers
        ],
    }  # fmt: skip


def _lines(layer: dict[str, Any]) -> list[str]:
    return [
        f"{layer['layer']}: {layer['cycles']:,} cycles",
        *(f"  {each['log_likelihood']:7.2f}  {' '.join(each['words'])}" for each in layer["answers"]),
    ]
