"""Tests of a search with a scripted model: its prompts, the use of its answers, and robustness to failures."""

import json
import re
from collections.abc import Callable

import pytest

from compiler.llm.endpoint.model import EndpointModel
from compiler.llm.endpoint.settings import Endpoint, SpendingLimits
from compiler.llm.generate.lm_generator import LmGenerator, language_model
from compiler.profile.measurement import Measurement
from compiler.tuning.constraints import Constraints
from compiler.tuning.generators.generator import GeneratorTask
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import LLM
from compiler.tuning.search.tuner import TuningResult, tune
from hw.errors import InputError
from tests.llm.endpoint.conftest import AMPLE, BRIEF, SOON
from tests.support.chat_server import MODEL, ChatRequest, ChatServer, Reply, refused, said

#: Schedule that saves 24 cycles in the small network.
BETTER = {"rows": 3, "rows_per_load": 3, "x_buffers": 2, "split_first_tile": False}
NOTHING = "I have no idea."


def schedule(**changes: object) -> Callable[[ChatRequest], str]:
    """Return a reply that changes the schedule of the first layer in the prompt."""

    def answer(asked: ChatRequest) -> str:
        name = re.findall(r'(?m)^"([^"]+)": ', asked.prompt)[0]
        return f"How about this:\n```json\n{json.dumps({'layers': {name: changes}})}\n```\n"

    return answer


def rewritten(old: str, new: str) -> Callable[[ChatRequest], str]:
    """Return a reply that repeats the program of the prompt with one fragment replaced."""

    def answer(asked: ChatRequest) -> str:
        (text,) = re.findall(r"```asm\n(\.name [^N].*?)```", asked.body["messages"][1]["content"], re.DOTALL)
        assert old in text
        return f"Sure.\n```asm\n{text.replace(old, new, 1)}```"

    return answer


def moved(piece: str, behind: str) -> Callable[[ChatRequest], str]:
    """Return a reply that repeats the program of the prompt with a line moved after another line."""

    def answer(asked: ChatRequest) -> str:
        lines = re.findall(r"(?s)```asm\n(.*?)```", asked.prompt)[-1].splitlines()
        line = next(each for each in lines if piece in each)
        lines.remove(line)
        lines.insert(next(at for at, each in enumerate(lines, 1) if behind in each), line)
        return "\n".join(["```asm", *lines, "```"])

    return answer


def at_length(answer: Callable[[ChatRequest], str]) -> Callable[[ChatRequest], Reply]:
    """Return a reply that reports a usage of 20,000 input tokens."""
    return lambda asked: said(answer(asked), (20_000, 10))


def run_search(
    measurer: Measurer, server: ChatServer, trials: int, constraints: Constraints | None = None, **more
) -> tuple[TuningResult, EndpointModel, list[str]]:
    heard: list[str] = []
    settings = {"limits": AMPLE, "patience": SOON, "retries": 3} | more
    author = EndpointModel(Endpoint(server.url, MODEL, **settings), heard.append)
    found = tune(
        measurer, LLM, trials, seed=1, language_model=author, constraints=constraints or Constraints()
    )
    assert isinstance(found.best.result, Measurement) and found.best.result.valid
    return found, author, heard


def test_better_schedule_then_better_program(measurer: Measurer, baseline: Measurement) -> None:
    with ChatServer(schedule(**BETTER), moved("tag 0", "issue load"), NOTHING) as server:
        found, author, _ = run_search(measurer, server, 3)
    assert [trial.cost for trial in found.trials[:2]] == [baseline.cycles - 24, baseline.cycles - 25]
    assert found.best.schedule.programs and found.best.cost == baseline.cycles - 25
    first, second, third = (each.body["messages"] for each in server.asked[:3])
    # The next question starts from the best result and also shows it as an example.
    assert len(first) == len(second) == 2 and "Earlier measurements" not in first[1]["content"]
    assert f"currently {baseline.cycles - 24:,} cycles" in second[1]["content"]
    assert f"unchanged: {baseline.cycles - 24:,} cycles" in second[1]["content"]
    assert (
        f"unchanged: {baseline.cycles - 25:,} cycles\nunchanged with the compiler's own programs"
        in third[1]["content"]
    )
    document = author.document()
    assert document["candidates"] == document["better"] == 2 and document["ended"] is None
    assert document["requests"] == len(server.asked) == document["answers"]
    assert document["input_tokens"] == 100 * len(server.asked)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (NOTHING, "the answer contains neither a JSON object with layers nor a program"),
        (
            said("```asm\n.na", finish="length"),
            "the answer was too long and was truncated: write a shorter one",
        ),
        (schedule(rows=0), "rows must be at least 1, not 0"),
        (schedule(stream_channel_blocks=2), "it cannot be compiled: "),
        (schedule(y_buffers=3), "it was not measured: the same programs were measured before"),
        (rewritten("halt", "stop"), r"it cannot be compiled: .*line \d+: 'stop' is not an instruction"),
        (rewritten("issue load, signal(matrix:0)", "issue load"), "the validator rejects it: .*deadlock"),
        (rewritten("set load.len, 2304", "set load.len, 1048575"), "the validator rejects it: .*bounds"),
        (rewritten("set fuse.clip_hi, 127", "set fuse.clip_hi, 5"), "its outputs are wrong"),
        (schedule(split_first_tile=False), r"1,\d{3} cycles, no better than 1,272\. "),
    ],
)
def test_rejection_is_reported_to_the_model(measurer: Measurer, answer, words: str) -> None:
    with ChatServer(answer, NOTHING) as server:
        found, author, _ = run_search(measurer, server, 2)
    told = server.asked[1].body["messages"]
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert re.search(words, told[3]["content"]), told[3]["content"]
    assert told[3]["content"].endswith("Propose other changes with a lower cost.")
    assert author.tally.better == 0 and author.tally.refused >= ("no better" not in words)
    # When the model fails on the whole network, the search asks about each layer.
    layers = [
        re.findall(r'(?m)^"([^"]+)": ', each.body["messages"][1]["content"])[0] for each in server.asked
    ]
    assert len(server.asked) >= 6 and len(set(layers)) == 2 and len(found.trials) == 2


def test_measured_candidates_become_examples(measurer: Measurer) -> None:
    with ChatServer(schedule(split_first_tile=False), schedule(**BETTER), NOTHING) as server:
        run_search(measurer, server, 3)
    again = server.asked[2].body["messages"]
    assert len(again) == 2 and re.search(r'"rows": 4.*: 1,\d{3} cycles', again[1]["content"])


def test_constraints_are_reported_to_the_model(measurer: Measurer) -> None:
    kept = Constraints(frozenset({"tiling", "micro-program"}))
    with ChatServer(schedule(rows=3), NOTHING) as server:
        found, *_ = run_search(measurer, server, 1, kept)
    assert "rows must not be changed" in server.asked[1].last
    assert all(kept.violation(trial.schedule, measurer.first.schedule) is None for trial in found.trials)


@pytest.mark.parametrize(
    ("reply", "limits", "words"),
    [
        (schedule(**BETTER), SpendingLimits(requests=1), "the limit of requests is reached (1 of 1)"),
        (
            at_length(schedule(**BETTER)),
            SpendingLimits(tokens=25_000),
            "the remaining budget is too small",
        ),
        (Reply(drip=0.05), SpendingLimits(seconds=0.4), "the limit of seconds is reached"),
        (refused(401, "no more"), AMPLE, "MLA_ENDPOINT_KEY must contain the key for"),
        (refused(500), AMPLE, "status 500"),
        (Reply(hang=9), AMPLE, "no answer in 0.3 s"),
        (Reply(200, b"garbage"), AMPLE, "not return a chat completion"),
    ],
)
def test_search_continues_without_the_model(
    measurer: Measurer, reply, limits: SpendingLimits, words: str
) -> None:
    with ChatServer(reply) as server:
        found, author, heard = run_search(measurer, server, 2, limits=limits, patience=BRIEF)
        asked = len(server.asked)
        assert len(found.trials) == 2 and author.ended is not None and words in author.ended
        assert heard == [f"the language model is no longer queried: {author.ended}"]
        assert not list(author.propose(_about(measurer, found))) and len(server.asked) == asked
    document = author.document()
    assert document["requests"] == asked >= 1 and document["ended"] == author.ended


def _about(measurer: Measurer, found: TuningResult) -> GeneratorTask:
    assert isinstance(found.best.result, Measurement)
    schedule = found.best.schedule
    return GeneratorTask(
        measurer.prepared, measurer.conditions, schedule, tuple(schedule.layers), found.best.result
    )


def test_too_little_context_for_any_prompt(measurer: Measurer) -> None:
    with ChatServer(NOTHING) as server:
        _, author, _ = run_search(measurer, server, 1, context=1024, answer=128)
    assert not server.asked and author.document()["requests"] == 0


def test_options_of_requests(measurer: Measurer) -> None:
    with ChatServer(NOTHING) as server:
        run_search(measurer, server, 1, grammar="response_format", fields={"top_k": 5}, retries=1)
    first, *_ = server.asked
    assert first.body["response_format"]["type"] == "json_schema" and first.body["top_k"] == 5
    assert first.body["seed"] == 1 and first.body["temperature"] == 0.7


def test_candidates_still_being_measured(measurer: Measurer, baseline: Measurement) -> None:
    """A candidate whose measurement is still pending is reported as pending, and the model is asked for another one."""
    with ChatServer(schedule(split_first_tile=False), NOTHING) as server:
        author = EndpointModel(Endpoint(server.url, MODEL, AMPLE, patience=SOON))
        layers = tuple(measurer.first.schedule.layers)
        task = GeneratorTask(
            measurer.prepared, measurer.conditions, measurer.first.schedule, layers, baseline
        )
        assert len(list(author.propose(task))) == 1
    assert "measurement pending" in server.asked[1].last


def test_default_is_the_built_in_model() -> None:
    assert isinstance(language_model(None), LmGenerator)


def test_method_requires_a_model(measurer: Measurer) -> None:
    with pytest.raises(InputError, match="the method llm needs a language model"):
        tune(measurer, LLM, 1)
