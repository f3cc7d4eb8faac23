"""`mla llm sample`: prints samples of the language model for a network."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from compiler.cli.options import dram_of
from compiler.util.files import report
from hw.errors import InputError

if TYPE_CHECKING:
    from compiler.llm.evaluation import AgreementMeter
    from compiler.llm.generate.requests import LmRequest
    from compiler.llm.generate.sampler import TokenReader
    from compiler.llm.model.accelerated import ChipGpt
    from compiler.llm.model.numpy_transformer import Gpt
    from compiler.tuning.generators.generator import GeneratorTask
    from compiler.util.progress import ProgressTask

#: Types of answers other than whole programs.
_SCHEDULES, _EDITS, _FUSIONS = "schedules", "edits", "fusions"
ANSWER_TYPES = (_SCHEDULES, _EDITS, "programs", _FUSIONS)
#: What a request is about, by type of answer.
_ABOUT = {_SCHEDULES: "layer", _FUSIONS: "pair"}


def run(args: argparse.Namespace) -> int:
    """Measure the network once, sample answers about its layers and print them."""
    from compiler.cli.compile import source_of
    from compiler.cli.run import head
    from compiler.profile.measurement import HardwareProfile
    from compiler.tuning.generators.generator import GeneratorTask
    from compiler.tuning.measure.measurer import Measurer
    from compiler.util.progress import log, progress
    from hw.config import load_target

    model = model_of(args)
    source, options = source_of(args)
    conditions = HardwareProfile(load_target(args.target), dram_of(args))
    with Measurer(source.graph, conditions, options, 1, args.seed, log) as measurer:
        prepared, schedule = measurer.prepared, measurer.first.schedule
        if args.layer is not None and args.layer not in schedule.layers:
            names = ", ".join(map(repr, schedule.layers))
            raise InputError(f"--layer must be one of {names}, not {args.layer!r}")
        measured = measurer.baseline()
    about = tuple(schedule.layers) if args.layer is None else (args.layer,)
    task = GeneratorTask(prepared, conditions, schedule, about, measured, seed=args.seed)
    with _reader(model, args) as (reader, statistics):
        requests = list(_requests(task, args.ask, 0 if args.on_machine else model.known))
        with progress("sampling", len(requests) * args.answers, "answers") as sampling:
            found = [
                _answered(reader, cycles, request, args, sampling, profile=model.profile)
                for cycles, request in requests
            ]
        machine, line = statistics()
    if found and all(each["reason"] for each in found):
        what = _ABOUT.get(args.ask, "program")
        raise InputError(f"{what} {found[0][what]!r} {found[0]['reason']}")
    what = _ABOUT.get(args.ask, "program") + "s"
    whole = head(args, "rtl", conditions.rate) | {"cycles": measured.cycles, what: found} | machine
    report(whole, "\n".join([*(line for each in found for line in _lines(each)), *line]), args.json)
    return 0


def _requests(task: "GeneratorTask", ask: str, known: int) -> "Iterator[tuple[int, LmRequest]]":
    """Yield the cycles of each layer or program, with the request for it; `known` as for `Schedules`.

    Raises
    ------
    InputError
        No program of the network is editable, or no layers can be fused.
    """
    from compiler.llm.generate.program_request import ProgramRequest
    from compiler.llm.generate.requests import Edits, Schedules, fusion_requests
    from compiler.llm.tokens.layer_prompt import Programs, subjects_of

    if ask == _SCHEDULES:
        for name, subject in subjects_of(task).items():
            yield sum(subject.where.values()), Schedules(task, name, subject, known=known)
        return
    if ask == _FUSIONS:
        every = fusion_requests(replace(task, layers=tuple(task.schedule.layers)))
        requests = [request for request in every if set(request.names) & set(task.layers)]
        if not requests:
            raise InputError("--ask: no two layers can be fused")
        for request in requests:
            yield sum(sum(subject.where.values()) for subject in request.subjects), request
        return
    programs = Programs(task)
    if not programs.programs:
        raise InputError("--ask: no program of the network is a straight-line sequence of commands")
    for piece in programs.programs:
        yield piece.cycles(task.measured), (Edits if ask == _EDITS else ProgramRequest)(programs, piece)


#: Returns statistics of the reader as JSON fields and as lines of text.
_Statistics = Callable[[], tuple[dict[str, Any], list[str]]]


@contextmanager
def _reader(model: "Gpt", args: argparse.Namespace) -> "Iterator[tuple[TokenReader, _Statistics]]":
    """Yield the model to sample from, and a function that returns the statistics after sampling."""
    if not args.on_machine:
        yield model, lambda: ({}, [])
        return
    with on_machine(model, args) as chip:
        yield chip.meter, chip.statistics


def model_of(args: argparse.Namespace) -> "Gpt":
    """Load the model that `--llm` names, or the model included in the compiler."""
    from compiler.llm.model.weights import SHIPPED, load

    if args.temperature < 0:
        raise InputError(f"--temperature must be at least 0, not {args.temperature:g}")
    return load(args.llm or SHIPPED)[0]


def _answered(
    model: "TokenReader",
    cycles: int,
    request: "LmRequest",
    args: argparse.Namespace,
    sampling: "ProgressTask",
    *,
    profile: bool,
) -> dict[str, Any]:
    import numpy as np

    from compiler.llm.generate.sampler import SampledAnswer, draw
    from compiler.llm.tokens.layer_prompt import Ask
    from compiler.llm.tokens.vocabulary import LANGUAGE

    rng = np.random.default_rng(args.seed)
    what = {Ask.SCHEDULE: "layer", Ask.FUSION: "pair"}.get(request.ask, "program")
    grammar = None if args.unconstrained else request.grammar
    answers: list[SampledAnswer] = []
    prompt: Sequence[str] = ()
    reason: str | None = None
    try:
        prompt = request.prompt(profile=profile)
        while len(answers) < args.answers and (grammar is not None or args.unconstrained):
            count = min(request.answers_per_draw, args.answers - len(answers))
            answers += draw(model, LANGUAGE, prompt, grammar, count, rng, args.temperature)
            sampling.advance(count)
    except ValueError as error:  # a size has no token, or the prompt exceeds the context
        reason = f"cannot be expressed as a prompt: {error}"
        sampling.advance(args.answers - len(answers))
    return {
        what: request.about,
        "cycles": cycles,
        "question": list(prompt),
        "answers": [
            {"words": list(each.tokens), "log_likelihood": each.likelihood, "complete": each.complete}
            for each in answers
        ],
        "reason": reason,
    }


def _lines(found: dict[str, Any]) -> list[str]:
    name = next(found[what] for what in (*_ABOUT.values(), "program") if what in found)
    if found["reason"]:
        return [f"{name}: {found['cycles']:,} cycles; {found['reason']}"]
    return [
        f"{name}: {found['cycles']:,} cycles; log likelihood and text of answers:",
        *(f"  {each['log_likelihood']:7.2f}  {' '.join(each['words'])}" for each in found["answers"]),
    ]


#: Context length in tokens, and number of calibration texts.
CONTEXT_TOKENS, CALIBRATION_TEXTS = 128, 8


@dataclass(frozen=True)
class OnMachine:
    """Language model on the accelerator, compared with the same model on the host.

    Parameters
    ----------
    chip : ChipGpt
        The model on the accelerator.
    meter : AgreementMeter
        Reader that runs both models and counts how often their most likely tokens agree.
    target : str
        Name of the target, for reports.
    """

    chip: "ChipGpt"
    meter: "AgreementMeter"
    target: str

    def statistics(self) -> tuple[dict[str, Any], list[str]]:
        """Return the statistics as JSON fields and as lines of text."""
        chip, tally = self.chip, self.meter.tally
        rate = 1e6 * chip.tokens / max(chip.cycles, 1)
        found = {"words": chip.tokens, "cycles": chip.cycles, "words_per_million_cycles": rate}
        found |= {"compared": tally.tokens, "same": tally.same}
        text = (
            f"{chip.tokens:,} tokens processed on {self.target} in {chip.cycles:,} cycles, {rate:.2f} per million "
            f"cycles; the host predicts the same token for {tally.same} of {tally.tokens}"
        )
        return {"machine": found}, [text]


@contextmanager
def on_machine(model: "Gpt", args: argparse.Namespace) -> "Iterator[OnMachine]":
    """Compile the language model for the accelerator and open the simulated chip."""
    from pathlib import Path

    from compiler.llm.data.examples import texts
    from compiler.llm.evaluation import AgreementMeter
    from compiler.llm.model.accelerated import ChipGpt
    from compiler.llm.tokens.vocabulary import LANGUAGE
    from compiler.util.progress import building, log
    from cosim.rtl.rtl_device import RtlDevice
    from hw.config import MlaConfig, load_target

    dram = dram_of(args)

    def opened(config: MlaConfig, size: int) -> RtlDevice:
        rate = dram.bytes_per_cycle or config.beat_bytes
        return RtlDevice(
            config,
            size,
            latency=dram.latency,
            bytes_per_cycle=rate,
            throttle=dram.throttle,
            monitor=building,
        )

    log("quantizing and compiling the language model")
    known = [LANGUAGE.encode(text) for text in texts(CALIBRATION_TEXTS)]
    chip = ChipGpt(model, load_target(args.target), opened, CONTEXT_TOKENS, known, args.answers, dram, log)
    try:
        yield OnMachine(chip, AgreementMeter(chip, model), Path(args.target).stem)
    finally:
        chip.close()
