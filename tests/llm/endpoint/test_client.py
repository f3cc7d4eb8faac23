"""Tests of requests to a local server: accepted replies, retries, and the secrecy of the API key."""

import json
import logging
import os
import pickle
import signal
import threading
import traceback
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from compiler.llm.endpoint.client import EndpointClient, LimitError
from compiler.llm.endpoint.http import MAX_BYTES
from compiler.llm.endpoint.settings import Endpoint, Patience, Prices, SpendingLimits
from hw.errors import InputError, MlaError, WorkError
from tests.llm.endpoint.conftest import AMPLE, BRIEF, SOON
from tests.support.chat_server import MODEL, ChatServer, Reply, refused, said

HELLO = [{"role": "user", "content": "hello"}]
KEY = "sk-not-for-anybody-9f3c"


def client(server: ChatServer, limits: SpendingLimits = AMPLE, **more) -> EndpointClient:
    return EndpointClient(replace(Endpoint(server.url, MODEL, limits, patience=SOON), **more))


def test_request_and_reply() -> None:
    with ChatServer("hi") as server:
        asking = client(server, fields={"top_p": 0.5, "temperature": None})
        asking.check()
        found = asking.chat(HELLO, seed=7)
    assert found.text == "hi" and (found.input_tokens, found.output_tokens) == (100, 10)
    (asked,) = server.asked
    assert asked.path == "/v1/chat/completions" and "Authorization" not in asked.headers
    assert asked.body == {"model": MODEL, "messages": HELLO, "max_tokens": 4096, "seed": 7, "top_p": 0.5}
    spent = asking.usage
    assert (spent.requests, spent.failed, spent.input_tokens, spent.output_tokens) == (1, 0, 100, 10)


def test_key_is_sent_to_the_server_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", f" {KEY}\n")
    with ChatServer("hi") as server:
        asking = client(server, key="MY_KEY")
        asking.check()
        asking.chat(HELLO)
    assert [each.headers["Authorization"] for each in (*server.listed, *server.asked)] == [
        f"Bearer {KEY}"
    ] * 2
    assert KEY not in repr(vars(asking))
    with pytest.raises(TypeError, match="a key must not be sent to other processes"):
        pickle.dumps(asking)


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (
            refused(401, f"bad {KEY}"),
            InputError,
            r"MLA_ENDPOINT_KEY must contain a key that .* accepts \(401: bad \[key\]",
        ),
        (
            refused(404, "no such model"),
            InputError,
            f"does not have the model '{MODEL}', or is not the base URL .*404: no such model",
        ),
        (refused(400, "too long"), InputError, r"rejects the request \(400: too long\)"),
        (
            refused(307, "", Location=f"http://elsewhere/{KEY}?x"),
            InputError,
            r"redirects to http://elsewhere/\[key\],",
        ),
        (refused(500, f"{KEY} broke\nit"), WorkError, r"status 500: \[key\] broke it$"),
        (
            Reply(403, json.dumps({"error": KEY}).replace("sk", "\\u0073k").encode()),
            InputError,
            r"403: \[key\]",
        ),
        (Reply(200, b"\xff" * 99), WorkError, "not return a chat completion"),
        (Reply(200, b"[" * 100_000), WorkError, "not return a chat completion"),
        (Reply(200, b'{"choices": [{"message": "hi"}]}'), WorkError, "not return a chat completion"),
        (Reply(200, b"9" * 5000), WorkError, "not return a chat completion"),
        (Reply(200, b"x" * (MAX_BYTES + 1)), WorkError, "longer than 4,194,304 bytes"),
        (Reply(200, headers={"X": "y" * 200_000}), WorkError, "its answer is not HTTP"),
        (Reply(401, reason=KEY), InputError, r"\(401\)"),
        (
            Reply(200, headers={"Content-Encoding": "gzip"}, body=b"x"),
            WorkError,
            "not return a chat completion",
        ),
    ],
)
def test_error_messages_do_not_contain_the_key(
    reply: Reply,
    kind: type[MlaError],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MLA_ENDPOINT_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    with ChatServer(reply) as server:
        asking = client(server)
        with pytest.raises(kind, match=words) as caught:
            asking.chat(HELLO)
    assert server.asked and server.asked[0].headers["Authorization"].endswith(KEY)
    frames = caught.tb.tb_next  # frames of the client's request, which carries the key
    escaped = b"u0073" in reply.body  # sanitized only where it is used
    whole = traceback.TracebackException(caught.type, caught.value, frames, capture_locals=not escaped)
    seen = (
        "".join(whole.format()) + caplog.text + repr(caught.value) + json.dumps(asking.usage.document(AMPLE))
    )
    assert KEY not in seen
    assert "\n" not in str(caught.value) and caught.value.__context__ is None
    assert asking.usage.failed == asking.usage.requests > 0


def test_slow_servers_time_out() -> None:
    with ChatServer(Reply(hang=30)) as server, pytest.raises(WorkError, match=r"no answer in 0\.3 s"):
        client(server, patience=BRIEF).chat(HELLO)
    with ChatServer(Reply(drip=0.01)) as server:
        asking = client(server, SpendingLimits(seconds=0.4))
        with pytest.raises(WorkError, match=r"no complete answer in 0\.4 s"):
            asking.chat(HELLO)
        with pytest.raises(LimitError, match="the limit of seconds is reached"):
            asking.chat(HELLO)
    assert len(server.asked) == 1 and asking.usage.estimated_requests == 1


def test_interrupt_ends_a_request() -> None:
    with ChatServer(Reply(hang=30)) as server:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            client(server, patience=Patience()).chat(HELLO)
        timer.join()
    assert len(server.asked) == 1


def test_temporary_errors_are_retried() -> None:
    date = format_datetime(datetime.now(UTC) - timedelta(seconds=5), usegmt=True)
    for first in (refused(429, Retry_After="0"), refused(503, Retry_After=date), refused(500), refused(529)):
        with ChatServer(first, "hi") as server:
            asking = client(server)
            assert asking.chat(HELLO).text == "hi" and asking.usage.requests == 2 and asking.usage.failed == 1
    with ChatServer(refused(500)) as server, pytest.raises(WorkError, match="status 500"):
        client(server).chat(HELLO)
    assert len(server.asked) == SOON.attempts
    with (
        ChatServer(refused(429, Retry_After="3600")) as server,
        pytest.raises(LimitError, match="a pause of 3,600 s"),
    ):
        client(server).chat(HELLO)
    assert len(server.asked) == 1


def test_unreachable_servers() -> None:
    with ChatServer("hi") as server:
        url, host = server.url, server.host
    gone = EndpointClient(Endpoint(url, MODEL, AMPLE, patience=BRIEF))
    with pytest.raises(
        WorkError, match=f"the endpoint http://{host}/v1 cannot be reached: connection refused"
    ):
        gone.check()
    with pytest.raises(WorkError, match="does not answer: connection refused: no server may be running"):
        gone.chat(HELLO)
    assert gone.usage.requests == BRIEF.attempts and not gone.usage.input_tokens
    with pytest.raises(WorkError, match=r"endpoint http://nobody\.invalid/v1 cannot be reached: "):
        EndpointClient(Endpoint("http://nobody.invalid/v1", MODEL, AMPLE, patience=SOON)).check()
    with ChatServer("hi") as server, pytest.raises(WorkError, match="no secure connection"):
        EndpointClient(Endpoint(server.url.replace("http:", "https:"), MODEL, AMPLE, patience=SOON)).check()


def test_check_of_the_model_list() -> None:
    with ChatServer("hi") as server:
        other = EndpointClient(Endpoint(server.url, "absent", AMPLE, patience=SOON))
        with pytest.raises(InputError, match=f"does not have the model 'absent'; models: {MODEL}, other$"):
            other.check()
        for reply, words in (
            (Reply(200, b"<html>"), "does not return a list of models: the URL must be"),
            (
                refused(404),
                "does not have the model .* or is not the base URL of an OpenAI-compatible endpoint",
            ),
            (refused(401, "who?"), r"MLA_ENDPOINT_KEY must contain the key for .*\(401: who\?\)"),
        ):
            server.models = reply
            with pytest.raises(InputError, match=words):
                client(server).check()
        for body in ({"data": []}, {"data": [{"id": MODEL}, 3, {"id": None}]}):
            server.models = Reply(200, json.dumps(body).encode())
            client(server).check()
        server.models = refused(503, "loading the model")
        with pytest.raises(WorkError, match="status 503: loading the model"):
            client(server).check()


@pytest.mark.parametrize(
    ("limits", "words", "asked"),
    [
        (SpendingLimits(requests=2), r"the limit of requests is reached \(2 of 2\)", 2),
        (SpendingLimits(tokens=350), r"budget is too small for another request", 3),
        (
            SpendingLimits(cost=1.0, prices=Prices(1000, 10000)),
            r"budget is too small for another request",
            2,
        ),
    ],
)
def test_spending_limits_end_the_requests(limits: SpendingLimits, words: str, asked: int) -> None:
    with ChatServer("hi") as server:
        asking = client(server, limits)
        with pytest.raises(LimitError, match=words):
            for _ in range(9):
                asking.chat(HELLO)
    assert len(server.asked) == asking.usage.requests == asked
    lengths = [each.body["max_tokens"] for each in server.asked]
    assert lengths == sorted(lengths, reverse=True) and all(each >= 0 for each in lengths)


def test_spending_beyond_a_limit_is_reported() -> None:
    limits = SpendingLimits(cost=1.0, prices=Prices(2, 0))
    with ChatServer(said("hi", (600_000, 5))) as server:
        asking = client(server, limits)
        asking.chat(HELLO)
        assert asking.usage.document(limits)["cost"] == 1.2
        with pytest.raises(LimitError, match=r"the limit of cost is reached \(1\.2 of 1\)"):
            asking.chat(HELLO)


def test_tokens_are_estimated_without_usage() -> None:
    counts = ({"prompt_tokens": -1, "completion_tokens": True}, {"prompt_tokens": 1e300}, "many", None)
    with ChatServer(*(said("x" * 30, None, usage=each) for each in counts)) as server:
        asking = client(server)
        for _ in counts:
            asking.chat([{"role": "user", "content": "y" * 300}])
    spent = asking.usage
    assert (spent.input_tokens, spent.output_tokens, spent.estimated_requests) == (400, 40, 4)


def test_proxies_do_not_receive_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLA_ENDPOINT_KEY", KEY)
    with ChatServer("proxied") as proxy, ChatServer("straight") as server:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{proxy.host}")
        monkeypatch.setenv("NO_PROXY", "")
        monkeypatch.setenv("no_proxy", "")
        assert client(server).chat(HELLO).text == "straight" and not proxy.asked
        far = EndpointClient(Endpoint("https://models.invalid/v1", MODEL, AMPLE, patience=SOON))
        with pytest.raises(WorkError, match="the proxy of the environment does not allow the connection"):
            far.chat(HELLO)
        assert [each.method for each in proxy.asked] == ["CONNECT"] and KEY not in repr(proxy.asked)
        for bad in ("nothing://x", "socks5://127.0.0.1:1", "http://[::x"):
            monkeypatch.setenv("HTTPS_PROXY", bad)
            monkeypatch.setenv("https_proxy", bad)
            with pytest.raises(WorkError, match="the proxy of the environment must have the form"):
                far.check()


@pytest.mark.parametrize("key", ["two words", "gr\u00fc\u00df", "a\nb"])
def test_invalid_keys_are_rejected(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLA_ENDPOINT_KEY", key)
    with pytest.raises(
        InputError, match="must contain a key of printable ASCII characters without blanks"
    ) as caught:
        EndpointClient(Endpoint("http://x/v1", MODEL))
    assert key not in str(caught.value)


def test_key_given_as_variable_name_is_not_shown() -> None:
    with pytest.raises(InputError, match=r"the environment variable .* is not set") as caught:
        EndpointClient(Endpoint("http://x/v1", MODEL, key=KEY))
    assert KEY not in str(caught.value)
