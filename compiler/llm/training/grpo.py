"""Group-relative policy optimization (GRPO), which raises the likelihood of low-cost answers within each group.

The objective follows DeepSeekMath (Shao et al. 2024): the clipped likelihood ratio times the advantage, minus an
estimate of the KL divergence from the sampling policy. The advantage of an answer is its negative log cost,
standardized within its group. Examples from the training corpus are mixed in to prevent forgetting.
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
from compiler.llm.training.dataset import TokenizedExample, batch_of, batches, length_batches
from compiler.llm.training.loop import autocast, loss_of
from compiler.llm.training.torch_transformer import TorchTransformer

#: Value added to the standard deviation of log costs in a group, which prevents amplification of small differences.
_DEVIATION_OFFSET = 0.01
_CLIP_NORM, _WARMUP_STEPS, _REPORT_STEPS = 1.0, 10, 25


@dataclass(frozen=True)
class GrpoPolicy:
    """Hyperparameters of GRPO.

    Parameters
    ----------
    passes : int
        Number of passes over all answers.
    batch, words : int
        Maximum number of answers per step, and maximum number of their tokens, including prompts and padding.
    rate : float
        Learning rate after warmup.
    clip : float
        Clipping range of the likelihood ratio: 1 - clip to 1 + clip.
    near : float
        Weight of the KL divergence from the sampling policy.
    beside : float
        Weight of the loss on corpus examples.
    seed : int
        Random seed for the order of the answers.
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
class ScoredAnswer(TokenizedExample):
    """Tokenized answer with its advantage."""

    advantage: float = 0.0


def advantages(costs: Sequence[float]) -> list[float]:
    """Return the advantage of each answer: its negative log cost, standardized within the group."""
    gains = [-log(cost) for cost in costs]
    mean, spread = fmean(gains), pstdev(gains) + _DEVIATION_OFFSET
    return [(gain - mean) / spread for gain in gains]


def tokenize_answers(groups: Sequence[RolloutGroup], max_tokens: int) -> list[ScoredAnswer]:
    """Return the tokenized answers of groups with unequal costs, except answers longer than `max_tokens`."""
    found: list[ScoredAnswer] = []
    for group in groups:
        prompt = LANGUAGE.encode(group.prompt)
        if max(group.costs) > min(group.costs):
            for answer, advantage in zip(group.answers, advantages(group.costs), strict=True):
                tokens = (*prompt, *LANGUAGE.encode(answer))
                found.append(ScoredAnswer(tokens, len(prompt), group.ask, advantage))
    return [each for each in found if len(each.tokens) <= max_tokens]


def reinforce(
    model: Gpt,
    groups: Sequence[RolloutGroup],
    corpus: Sequence[Sequence[TokenizedExample]],
    policy: GrpoPolicy,
    say: Callable[[str], None] = lambda _text: None,
) -> Gpt:
    """Train a model on rollouts.

    Parameters
    ----------
    model : Gpt
        Model that generated the answers.
    groups : sequence of RolloutGroup
        Answers with their costs.
    corpus : sequence of sequences of TokenizedExample
        Groups of corpus examples to mix in, as for `fit`; may be empty.
    policy : GrpoPolicy
        Hyperparameters of GRPO.
    say : callable
        Called with progress messages.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module, reference = (TorchTransformer(model.shape).to(device) for _ in range(2))
    module.load_weights(model)
    reference.load_weights(model)
    optimizer = torch.optim.AdamW(module.parameters(), lr=policy.rate, betas=(0.9, 0.98), weight_decay=0.0)
    rng = random.Random(policy.seed)
    corpus_batches = (
        batches(corpus, policy.batch, policy.words, random.Random(rng.random())) if corpus else None
    )
    steps = list(_batches(tokenize_answers(groups, model.shape.context), policy, rng))
    total = 0.0
    for step, answers in enumerate(steps, 1):
        for group in optimizer.param_groups:
            group["lr"] = policy.rate * min(step / _WARMUP_STEPS, 1.0)
        loss = policy_loss(module, reference, answers, policy, device)
        if corpus_batches is not None:
            loss = loss + policy.beside * loss_of(module, next(corpus_batches), device)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), _CLIP_NORM)
        optimizer.step()
        total += float(loss.detach())
        if step % _REPORT_STEPS == 0 or step == len(steps):
            say(f"step {step} of {len(steps)}: loss {total / (step % _REPORT_STEPS or _REPORT_STEPS):.3f}")
            total = 0.0
    return module.gpt(profile=model.profile, known=model.known)


def _batches(
    answers: Sequence[ScoredAnswer], policy: GrpoPolicy, rng: random.Random
) -> Iterator[list[ScoredAnswer]]:
    """Yield all answers in random order, in batches of similar length."""
    for _ in range(policy.passes):
        shuffled = rng.sample(answers, len(answers))
        chunk = policy.batch * 8
        found = [
            batch
            for start in range(0, len(shuffled), chunk)
            for batch in length_batches(shuffled[start : start + chunk], policy.batch, policy.words)
        ]
        rng.shuffle(found)
        yield from ([each for each in batch if isinstance(each, ScoredAnswer)] for batch in found)


def policy_loss(
    module: TorchTransformer,
    reference: TorchTransformer,
    answers: Sequence[ScoredAnswer],
    policy: GrpoPolicy,
    device: torch.device,
) -> torch.Tensor:
    """Return the policy loss of answers, averaged over their tokens.

    Parameters
    ----------
    module, reference : TorchTransformer
        Model being trained, and the model that sampled the answers.
    answers : sequence of ScoredAnswer
        Answers with their advantages.
    policy : GrpoPolicy
        Hyperparameters of GRPO.
    device : torch.device
        Device to compute on.
    """
    batch = batch_of(answers)
    tokens, mask, following = (
        torch.from_numpy(each).to(device) for each in (batch.tokens, batch.mask, batch.following)
    )
    targets = following[mask]
    with autocast(device):
        log_new = -functional.cross_entropy(module(tokens, mask).float(), targets, reduction="none")
        with torch.no_grad():
            log_old = -functional.cross_entropy(reference(tokens, mask).float(), targets, reduction="none")
    weight = torch.tensor([each.advantage for each in answers], device=device)[mask.nonzero()[:, 0]]
    ratio = (log_new - log_old).exp()
    gain = torch.minimum(ratio * weight, ratio.clamp(1 - policy.clip, 1 + policy.clip) * weight)
    # Estimator of the Kullback-Leibler divergence that is never negative (Schulman 2020).
    divergence = (log_old - log_new).exp() - (log_old - log_new) - 1
    return -(gain - policy.near * divergence).mean()
