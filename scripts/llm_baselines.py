"""Generators with the same freedom as the language model, but without it: copied or uniformly drawn answers.

Schedules are filtered and ordered by the cost model, and kinds of candidates are chosen by the bandit, as for the
language model. Only the answers come from another source.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from compiler.llm.generate.candidate_pool import CandidateKind
from compiler.llm.generate.known_layers import read_known_layers
from compiler.llm.generate.lm_generator import LmGenerator
from compiler.llm.generate.requests import Edits, LmRequest, Schedules
from compiler.llm.generate.sampler import SampledAnswer
from compiler.llm.model.numpy_transformer import Gpt
from compiler.llm.tokens.program_tokens import canonical, encode_edits
from compiler.llm.tokens.schedule_delta import encode_schedule_delta
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.edits.edit import Edit, draw_edits
from compiler.tuning.layer_space import LayerSpace

#: Fraction of drawn schedules with another tiling, and maximum number of changes of the others, as in the corpus.
_FRESH_FRACTION, _MAX_CHANGES = 0.4, 2
#: Maximum number of drawn edits per answer.
_MAX_EDITS = 3

Tokens = tuple[str, ...]


class UniformGenerator(LmGenerator):
    """Generator of schedules and edits that are drawn from the search spaces of random searches."""

    def sample(self, request: LmRequest, count: int, reasons: Sequence[str] = ()) -> list[SampledAnswer]:
        """Return drawn answers to a request; none for whole programs."""
        assert self._rng is not None
        rng = random.Random(int(self._rng.integers(1 << 62)))
        if isinstance(request, Schedules):
            answers = (_delta(request, schedule) for schedule in self.schedules(request, count, rng))
        elif isinstance(request, Edits):
            answers = (tokens for _ in range(count) if (tokens := _drawn_edits(request, rng)))
        else:
            answers = iter(())
        return [SampledAnswer(tokens, -float(number), complete=True) for number, tokens in enumerate(answers)]

    def schedules(self, request: Schedules, count: int, rng: random.Random) -> Iterator[LayerSchedule]:
        """Yield schedules of a layer, most promising first."""
        subject = request.subject
        space = LayerSpace(subject.layer, subject.spot)
        for _ in range(count):
            schedule = subject.schedule
            if rng.random() < _FRESH_FRACTION:
                schedule = space.draw(rng, schedule)
            else:
                for _ in range(rng.randint(1, _MAX_CHANGES)):
                    schedule = space.change(rng, schedule)
            yield schedule


class CopiesGenerator(UniformGenerator):
    """Generator that copies the best schedules of the most similar measured layers; edits are drawn."""

    def schedules(self, request: Schedules, count: int, rng: random.Random) -> Iterator[LayerSchedule]:
        """Yield copied schedules that have not been tried, nearest layers first."""
        nearest = read_known_layers().nearest(request.subject, count + len(request.tried))
        yield from islice((schedule for schedule in nearest if schedule not in request.tried), count)


def _delta(request: Schedules, schedule: LayerSchedule) -> Tokens:
    return tuple(encode_schedule_delta(schedule, request.subject.schedule))


def _drawn_edits(request: Edits, rng: random.Random) -> Tokens:
    """Return the tokens of random edits; empty if the program allows none."""
    config, commands = request.programs.editable.config, list(request.piece.unrolled.commands)
    edits: list[Edit] = []
    for _ in range(rng.randint(1, _MAX_EDITS)):
        found = draw_edits(config, commands, rng)
        if found is None:
            break
        edits.append(canonical(found[0], commands, config.n))
        commands = found[1]
    return tuple(encode_edits(edits)) if edits else ()


_ONLY_SCHEDULES = (CandidateKind.SCHEDULES,)
#: Generators by name of the method: the language model with copies among its candidates, the model alone, and the
#: baselines; `uniform-copies` has drawn schedules instead of the model's answers. Methods that end in `-schedules`
#: propose no edits and no programs.
GENERATORS: dict[str, Callable[[Gpt], LmGenerator]] = {
    "llm": LmGenerator,
    "llm-model": lambda model: LmGenerator(model, copied=0),
    "llm-model-schedules": lambda model: LmGenerator(model, kinds=_ONLY_SCHEDULES, copied=0),
    "copies": lambda model: CopiesGenerator(model, copied=0),
    "copies-schedules": lambda model: CopiesGenerator(model, kinds=_ONLY_SCHEDULES, copied=0),
    "uniform-copies": UniformGenerator,
    "uniform": lambda model: UniformGenerator(model, copied=0),
    "uniform-schedules": lambda model: UniformGenerator(model, kinds=_ONLY_SCHEDULES, copied=0),
}
