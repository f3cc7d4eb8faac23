"""Group-relative policy optimization (GRPO): raises the likelihood of answers that cost less than their group.

The objective is that of DeepSeekMath (Shao et al. 2024): a clipped likelihood ratio times the advantage, which is the
distance of an answer from the mean of its group in standard deviations, minus an estimate of the KL divergence from
the sampling policy. Examples of the corpus are mixed in to prevent forgetting.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean, pstdev

import torch  # pyright: ignore[reportMissingImports]  an extra
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from compiler.llm.data.self_training import RolloutGroup
from compiler.llm.model.numpy_transformer import Gpt
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.llm.training.dataset import TokenizedExample, batch_of, batches, parts
from compiler.llm.training.loop import loss_of, products
from compiler.llm.training.torch_transformer import TorchTransformer

#: Added to the standard deviation of log costs in a group, so that small differences are not amplified.
_SOFT = 0.01
_CLIP_NORM, _WARM, _SAY = 1.0, 10, 25


@dataclass(frozen=True)
class GrpoPolicy:
    """Hyperparameters of GRPO.

    Parameters
    ----------
    passes : int
        Number of passes over all answers.
    batch, words : int
        Maximum answers per step, and maximum tokens of them including prompts.
    rate : float
        Learning rate.
    clip : float
        Clipping range of the likelihood ratio: 1 - clip to 1 + clip.
    near : float
        Weight of the KL divergence from the sampling policy.
    beside : float
        Weight of the loss on corpus examples.
    seed : int
        Random seed of the order of answers.
    """

    passes: int = 2
    batch: int = 64
    words: int = 64 * 160
    rate: float = 1e-4
    clip: float = 0.2
    near: float = 0.02
    beside: float = 0.2
    seed: int = 0


@dataclass(frozen=True)
class Judged(TokenizedExample):
    """Tokenized answer with its advantage."""

    advantage: float = 0.0


def advantages(costs: Sequence[float]) -> list[float]:
    """Return the advantage of each answer: standardized negative log cost within the group."""
    gains = [-log(cost) for cost in costs]
    middle, spread = fmean(gains), pstdev(gains) + _SOFT
    return [(gain - middle) / spread for gain in gains]


def judged_answers(groups: Sequence[RolloutGroup], longest: int) -> list[Judged]:
    """Return the answers of groups with different costs, up to a number of tokens."""
    found: list[Judged] = []
    for group in groups:
        question = LANGUAGE.encode(group.question)
        if max(group.costs) > min(group.costs):
            for words, advantage in zip(group.answers, advantages(group.costs), strict=True):
                whole = (*question, *LANGUAGE.encode(words))
                found.append(Judged(whole, len(question), group.ask, advantage))
    return [each for each in found if len(each.words) <= longest]


def reinforce(
    model: Gpt,
    groups: Sequence[RolloutGroup],
    beside: Sequence[Sequence[TokenizedExample]],
    policy: GrpoPolicy,
    say: Callable[[str], None] = lambda _text: None,
) -> Gpt:
    """Train a model on rollouts.

    Parameters
    ----------
    model : Gpt
        Model that produced the answers.
    groups : sequence of RolloutGroup
        Answers with their costs.
    beside : sequence of sequences of TokenizedExample
        Corpus examples to mix in, as for `fit`; empty for none.
    policy : GrpoPolicy
        Hyperparameters of the training.
    say : callable
        Called with progress messages.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module, before = (TorchTransformer(model.shape).to(device) for _ in range(2))
    module.take(model)
    before.take(model)
    optimizer = torch.optim.AdamW(module.parameters(), lr=policy.rate, betas=(0.9, 0.98), weight_decay=0.0)
    rng = random.Random(policy.seed)
    others = batches(beside, policy.batch, policy.words, random.Random(rng.random())) if beside else None
    steps = list(_batches(judged_answers(groups, model.shape.context), policy, rng))
    total = 0.0
    for step, part in enumerate(steps, 1):
        for group in optimizer.param_groups:
            group["lr"] = policy.rate * min(step / _WARM, 1.0)
        loss = policy_loss(module, before, part, policy, device)
        if others is not None:
            loss = loss + policy.beside * loss_of(module, next(others), device)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), _CLIP_NORM)
        optimizer.step()
        total += float(loss.detach())
        if step % _SAY == 0 or step == len(steps):
            say(f"step {step} of {len(steps)}: loss {total / (step % _SAY or _SAY):.3f}")
            total = 0.0
    return module.gpt(profile=model.profile)


def _batches(answers: Sequence[Judged], policy: GrpoPolicy, rng: random.Random) -> Iterator[list[Judged]]:
    """Yield all answers in random order, those of similar length together."""
    for _ in range(policy.passes):
        mixed = rng.sample(answers, len(answers))
        some = policy.batch * 8
        found = [
            part
            for at in range(0, len(mixed), some)
            for part in parts(mixed[at : at + some], policy.batch, policy.words)
        ]
        rng.shuffle(found)
        yield from ([each for each in part if isinstance(each, Judged)] for part in found)


def policy_loss(
    module: TorchTransformer,
    before: TorchTransformer,
    answers: Sequence[Judged],
    policy: GrpoPolicy,
    device: torch.device,
) -> torch.Tensor:
    """Return the policy loss of answers, averaged over their tokens.

    Parameters
    ----------
    module, before : TorchTransformer
        Model in training, and the sampling policy.
    answers : sequence of Judged
        Answers with their advantages.
    policy : GrpoPolicy
        Hyperparameters of the training.
    device : torch.device
        Device to compute on.
    """
    made = batch_of(answers)
    words, counts, following = (
        torch.from_numpy(each).to(device) for each in (made.words, made.counts, made.following)
    )
    said = following[counts]
    with products(device):
        now = -functional.cross_entropy(module(words, counts).float(), said, reduction="none")
        with torch.no_grad():
            then = -functional.cross_entropy(before(words, counts).float(), said, reduction="none")
    worth = torch.tensor([each.advantage for each in answers], device=device)[counts.nonzero()[:, 0]]
    ratio = (now - then).exp()
    gain = torch.minimum(ratio * worth, ratio.clamp(1 - policy.clip, 1 + policy.clip) * worth)
    away = (
        (then - now).exp() - (then - now) - 1
    )  # of a Kullback-Leibler divergence, never negative (Schulman 2020)
    return -(gain - policy.near * away).mean()
