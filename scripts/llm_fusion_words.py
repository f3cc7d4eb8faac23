"""Training of the words for fusions of two layers, with all other weights unchanged.

`python -m scripts.llm_fusion_words --out FILE` asks the fusion engine for the options with the largest predicted gains
for pairs of layers of the training networks, and trains the embeddings of the words that only occur in prompts and
answers about fusions (`compiler.llm.tokens.layer_prompt.FUSION_TOKENS`), so that the model proposes such options.
Answers about single layers and programs remain the same, bit by bit. One network in twenty is used for validation only.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from compiler.cost.learned.model import find_model
from compiler.llm.data.examples import CORPUS, TrajectoryPrompts
from compiler.llm.data.held_out import MACHINES, is_validation
from compiler.llm.data.trajectories import Trajectory, read
from compiler.llm.model.numpy_transformer import Gpt
from compiler.llm.model.weights import SHIPPED, load, save
from compiler.llm.tokens.layer_prompt import BEST, FUSION_TOKENS, Ask, PromptSubject, pair_tokens
from compiler.llm.tokens.schedule_delta import encode_pair_delta
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.llm.training.dataset import TokenizedExample, batch_of, length_batches
from compiler.pipeline import ModelCompiler
from compiler.schedule.schedule import Schedule
from compiler.tuning.fusion.engine import FusionEngine, FusionOption
from hw.errors import InputError, MlaError

#: Number of options per pair whose predicted gains are the largest, and minimum gain as a fraction of the cycles.
_OPTIONS, _MIN_GAIN = 2, 0.005
#: Maximum number of examples, and of tokens, of a batch; learning rate; steps between reports.
_BATCH, _BATCH_TOKENS, _RATE, _REPORT = 16, 4096, 5e-3, 25


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
    prompt = LANGUAGE.encode(pair_tokens(*subjects, BEST))
    return TokenizedExample((*prompt, *LANGUAGE.encode(answer)), len(prompt), Ask.FUSION)


def train_words(
    model: Gpt,
    examples: Sequence[TokenizedExample],
    held_out: Sequence[TokenizedExample],
    steps: int,
    seed: int,
) -> Gpt:
    """Return the model with trained embeddings of the words for fusions, those with the least validation loss."""
    import torch  # an extra

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
    """Collect the examples, train the words and write the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="model file to write")
    parser.add_argument("--llm", type=Path, default=SHIPPED, help="model to start from")
    parser.add_argument("--networks", type=int, default=600, help="number of networks of the training data")
    parser.add_argument("--steps", type=int, default=300, help="number of training steps")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        model, about = load(args.llm)
        found: tuple[list[TokenizedExample], list[TokenizedExample]] = [], []
        several = [each for each in read(CORPUS) if len(each.first) > 1]
        for number, trajectory in enumerate(several[: args.networks]):
            try:
                found[is_validation(trajectory)].extend(pair_examples(trajectory))
            except (
                InputError,
                ValueError,
            ):  # the network or its schedule is of an earlier version of the compiler
                continue
            if number % 50 == 0:
                print(f"{number} networks, {len(found[0])} and {len(found[1])} examples", flush=True)
        words = train_words(model, found[0], found[1], args.steps, args.seed)
        save(words, args.out, about)
    except MlaError as error:
        print(f"llm_fusion_words: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
