"""Fusions of two layers by the language model: measured answers and searches, and training of the words for fusions.

`python -m scripts.llm_fusions --measure MODEL...` samples answers about the pairs of layers of some networks, and
measures them. `--search` compares searches of the method `llm` with and without fusions on the same networks. `--out
FILE` asks the fusion engine for the options with the largest predicted gains for pairs of layers of the training
networks, and trains the embeddings of the words that only occur in prompts and answers about fusions
(`compiler.llm.tokens.layer_prompt.FUSION_TOKENS`) on them. Answers about single layers and programs remain the same,
bit by bit. One network in twenty is used for validation only.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean

import numpy as np

from compiler.cost.learned_model import find_model
from compiler.llm.data.examples import CORPUS, TrajectoryPrompts
from compiler.llm.data.held_out import MACHINES, is_validation
from compiler.llm.data.trajectories import Trajectory, read
from compiler.llm.generate.candidate_pool import CandidateKind
from compiler.llm.generate.lm_generator import LmGenerator
from compiler.llm.generate.requests import fusion_requests
from compiler.llm.generate.sampler import draw
from compiler.llm.model.numpy_transformer import Gpt
from compiler.llm.model.weights import SHIPPED, load, save
from compiler.llm.tokens.layer_prompt import BEST, FUSION_TOKENS, Ask, PromptSubject, pair_tokens
from compiler.llm.tokens.schedule_delta import encode_pair_delta
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.llm.training.dataset import TokenizedExample, batch_of, length_batches
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.schedule.schedule import Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.fusion_engine import FusionEngine, FusionOption
from compiler.tuning.generators.generator import GeneratorTask
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.tuner import tune
from hw.config import load_target
from hw.errors import InputError, MlaError

#: Number of options per pair whose predicted gains are the largest, and minimum gain as a fraction of the cycles.
_OPTIONS, _MIN_GAIN = 2, 0.005
#: Maximum number of examples, and of tokens, of a batch; learning rate; steps between reports.
_BATCH, _BATCH_TOKENS, _RATE, _REPORT = 16, 4096, 5e-3, 25


#: Networks of several layers whose shapes are not in the training data.
NETWORKS = (
    CalibrationNetwork(
        (14, 14, 24), (CalibrationOp("conv", 40), CalibrationOp("depthwise", 0, 3), CalibrationOp("conv", 24))
    ),
    CalibrationNetwork((10, 10, 36), (CalibrationOp("conv", 52, 3), CalibrationOp("max_pool", 0, 2, 2))),
    CalibrationNetwork((4, 4, 88), (CalibrationOp("conv", 72), CalibrationOp("conv", 40))),
    CalibrationNetwork((1, 1, 300), (CalibrationOp("dense", 200), CalibrationOp("dense", 72))),
    CalibrationNetwork(
        (7, 9, 40), (CalibrationOp("conv", 40, 3), CalibrationOp("add"), CalibrationOp("conv", 56))
    ),
    CalibrationNetwork(
        (12, 12, 20),
        (CalibrationOp("depthwise", 0, 3), CalibrationOp("conv", 44), CalibrationOp("avg_pool", 0, 2, 2)),
    ),
)


def _tasks() -> Iterator[tuple[Measurer, GeneratorTask]]:
    """Yield a measurer and the task of each network."""
    for network in NETWORKS:
        options = CompileOptions(rounding="reference")
        with Measurer(network.graph(5), HardwareProfile(load_target("n16")), options, devices=1) as measurer:
            schedule, baseline = measurer.first.schedule, measurer.baseline()
            layers = tuple(schedule.layers)
            yield measurer, GeneratorTask(measurer.prepared, measurer.conditions, schedule, layers, baseline)


def measured_answers(path: Path, count: int, seed: int) -> str:
    """Return how many answers about pairs of layers are exact and faster, and their relative cycles, as text."""
    (model, _), costs, best, asked = load(path), list[float](), list[float](), 0
    for measurer, task in _tasks():
        for request in fusion_requests(task):
            rng = np.random.default_rng(seed)
            answers = draw(model, LANGUAGE, request.prompt(), request.grammar, count, rng)
            asked += len(answers)
            schedules = [request.candidate(each.tokens).schedule for each in answers if each.complete]
            found = [
                log(result.cycles / task.measured.cycles)
                for result in measurer.measure(schedules)
                if isinstance(result, Measurement) and result.exact
            ]
            costs += found
            best.append(min([0.0, *found]))
    faster = sum(cost < 0 for cost in costs)
    return (
        f"{path}: {len(best)} pairs, {asked} answers, {len(costs)} exact, {faster} faster; relative cycles "
        f"{exp(fmean(costs)):.4f}, of the best of {count} {exp(fmean(best)):.4f}"
    )


def searched(kinds: Sequence[CandidateKind], trials: int, seed: int) -> str:
    """Return the relative cycles that searches with some kinds of candidates reach, as text."""
    found = []
    for measurer, task in _tasks():
        result = tune(measurer, "llm", trials, seed=seed, language_model=LmGenerator(kinds=kinds))
        found.append(result.best.cost / task.measured.cycles if result.best.cost else 1.0)
    costs = ", ".join(f"{each:.4f}" for each in found)
    return f"{', '.join(kinds)}: {exp(fmean(map(log, found))):.4f} ({costs})"


def pair_examples(trajectory: Trajectory) -> Iterator[TokenizedExample]:
    """Yield prompts about pairs of layers of a network under the static schedule, each with a promising fusion."""
    prompts, machine = TrajectoryPrompts(trajectory), MACHINES[trajectory.machine]
    prepared = ModelCompiler(trajectory.point.graph(), machine.conditions.config, machine.options)
    names = [layer.name for layer in prompts.layers]
    if len(names) < 2:
        return
    schedule = Schedule(prepared.fusions, dict(zip(names, prompts.schedules(0), strict=True)))
    engine = FusionEngine(prepared, machine.conditions, find_model(machine.conditions))
    options: dict[tuple[str, ...], list[FusionOption]] = {}
    for option in engine.options(schedule, engine.opportunities(schedule)):
        least = _MIN_GAIN * (option.prediction.cycles + option.gain)
        if (
            len(option.opportunity.layers) == 2
            and option.gain > least
            and option.schedule.fusions == schedule.fusions
        ):
            options.setdefault(option.opportunity.layers, []).append(option)
    for pair, found in options.items():
        subjects = [prompts.layer_prompt(0, names.index(name)) for name in pair]
        if all(subjects):
            for option in found[:_OPTIONS]:
                yield _example([each for each in subjects if each], option, pair)


def _example(
    subjects: Sequence[PromptSubject], option: FusionOption, pair: Sequence[str]
) -> TokenizedExample:
    answer = encode_pair_delta(
        [option.schedule.layers[name] for name in pair], [subject.schedule for subject in subjects]
    )
    first, second = subjects
    prompt = LANGUAGE.encode(pair_tokens(first, second, BEST))
    return TokenizedExample((*prompt, *LANGUAGE.encode(answer)), len(prompt), Ask.FUSION)


def train_words(
    model: Gpt,
    examples: Sequence[TokenizedExample],
    held_out: Sequence[TokenizedExample],
    steps: int,
    seed: int,
) -> Gpt:
    """Return the model with trained embeddings of the words for fusions, those with the least validation loss."""
    import torch  # pyright: ignore[reportMissingImports]  an extra

    from compiler.llm.training.torch_transformer import TorchTransformer

    torch.manual_seed(seed)
    module = TorchTransformer(model.shape)
    module.load_weights(model)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    words = module.weights["words"]
    rows = torch.tensor([LANGUAGE.number(token) for token in FUSION_TOKENS])
    trained = torch.nn.Parameter(words.detach()[rows].clone())
    optimizer = torch.optim.AdamW([trained], lr=_RATE, weight_decay=0.0)
    frozen = words.detach().clone()

    def loss_of(some: Sequence[TokenizedExample]) -> "torch.Tensor":
        batch = batch_of(some)
        tokens, following, mask = (torch.tensor(each) for each in (batch.tokens, batch.following, batch.mask))
        table = frozen.index_copy(0, rows, trained)
        scores = torch.func.functional_call(module, {"weights.words": table}, (tokens, mask))
        return torch.nn.functional.cross_entropy(scores, following[mask])

    def validation() -> float:
        with torch.no_grad():
            parts = list(length_batches(held_out, _BATCH, _BATCH_TOKENS))
            losses = [
                (float(loss_of(part)), sum(len(e.tokens) - e.prompt_length for e in part)) for part in parts
            ]
        return sum(loss * count for loss, count in losses) / sum(count for _, count in losses)

    best, chosen = validation(), trained.detach().clone()
    print(f"step 0: loss per token of validation {best:.4f}", flush=True)
    rng = random.Random(seed)
    for step in range(1, steps + 1):
        some = rng.sample(examples, min(_BATCH, len(examples)))
        optimizer.zero_grad()
        loss_of(some).backward()
        optimizer.step()
        if step % _REPORT == 0 or step == steps:
            found = validation()
            print(f"step {step}: loss per token of validation {found:.4f}", flush=True)
            if found < best:
                best, chosen = found, trained.detach().clone()
    table = model.weights["words"].copy()
    table[rows.numpy()] = chosen.numpy()
    return Gpt(
        model.shape, {**model.weights, "words": np.asarray(table)}, profile=model.profile, known=model.known
    )


def main() -> int:
    """Measure, search or train, as the arguments request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", type=Path, nargs="+", help="model files whose answers are measured")
    parser.add_argument("--search", action="store_true", help="compare searches with and without fusions")
    parser.add_argument("--trials", type=int, default=24, help="number of trials of a search")
    parser.add_argument("--answers", type=int, default=12, help="number of answers about each pair")
    parser.add_argument("--out", type=Path, help="model file to write")
    parser.add_argument("--llm", type=Path, default=SHIPPED, help="model to start from")
    parser.add_argument("--networks", type=int, default=600, help="number of networks of the training data")
    parser.add_argument("--steps", type=int, default=300, help="number of training steps")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        for path in args.measure or ():
            print(measured_answers(path, args.answers, args.seed), flush=True)
        if args.search:
            for kinds in (
                tuple(CandidateKind),
                tuple(each for each in CandidateKind if each != CandidateKind.FUSIONS),
            ):
                print(searched(kinds, args.trials, args.seed), flush=True)
        if args.out:
            _train(args)
    except MlaError as error:
        print(f"llm_fusions: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def _train(args: argparse.Namespace) -> None:
    """Collect examples, train the words and write the model."""
    model, about = load(args.llm)
    found: tuple[list[TokenizedExample], list[TokenizedExample]] = [], []
    several = [each for each in read(CORPUS) if len(each.first) > 1]
    for number, trajectory in enumerate(several[: args.networks]):
        try:
            found[is_validation(trajectory)].extend(pair_examples(trajectory))
        except (InputError, ValueError):  # of an earlier version of the compiler
            continue
        if number % 50 == 0:
            print(f"{number} networks, {len(found[0])} and {len(found[1])} examples", flush=True)
    words = train_words(model, found[0], found[1], args.steps, args.seed)
    save(words, args.out, about)


if __name__ == "__main__":
    sys.exit(main())
