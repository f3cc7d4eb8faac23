"""Tests of `mla tune` and `mla serve` with a language model at a local endpoint."""

import json
import re
from pathlib import Path

import pytest

from scripts.networks.digits import MODEL
from tests.support.chat_server import MODEL as NAME
from tests.support.chat_server import ChatRequest, ChatServer, Reply, refused

KEY = "sk-not-for-anybody-41d7"
TUNE = ("tune", MODEL, "--method", "llm", "--target", "n4", "--devices", "1")


def small(asked: ChatRequest) -> str:
    """Return an answer that shrinks the tiles of the first layer and repeats the API key."""
    name = re.findall(r'(?m)^"([^"]+)": ', asked.prompt)[0]
    return (
        f"{KEY}, take this:\n```json\n{json.dumps({'layers': {name: {'rows': 2, 'rows_per_load': 2}}})}\n```"
    )


def commented(asked: ChatRequest) -> str:
    """Return the first program with its first tag replaced by a comment, which saves a cycle."""
    text = re.findall(r"```asm\n(\.name [^N].*?)```", asked.prompt, re.DOTALL)[0]
    assert "tag 0\n" in text
    return f"```asm\n{text.replace('tag 0', f'; {KEY}', 1)}```"


def everything(folder: Path) -> bytes:
    """Return the names and contents of all files in a folder."""
    return b"".join(
        path.name.encode() + path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    )


def test_tune(mla, tmp_path, monkeypatch):
    monkeypatch.setenv("MLA_ENDPOINT_KEY", KEY)
    out = tmp_path / "tune.json"
    with ChatServer(small, commented, f"no idea, {KEY}") as server:
        result = mla(
            *TUNE,
            "--trials",
            "3",
            "--endpoint",
            server.url,
            "--endpoint-model",
            NAME,
            "--endpoint-prices",
            "1,10",
            "--endpoint-requests",
            "3",
            "--db",
            tmp_path / "x.db",
            "--json",
            out,
            "--save-schedule",
            tmp_path / "s.json",
        )
    assert result.status == 0, result.err
    document = json.loads(out.read_text())
    assert document["method"] == "llm" and document["exact"] and document["trials"] == 3
    asked = document["endpoint"]
    assert (asked["model"], asked["url"], asked["requests"]) == (NAME, server.url, 3)
    assert asked["cost"] == pytest.approx(3 * (100 * 1 + 10 * 10) / 1e6) and asked["candidates"] == 2
    assert asked["ended"] == "the limit of requests is reached (3 of 3)"
    assert result.err.count("the language model is no longer queried: the limit of requests is reached") == 1
    assert f"{NAME}: 3 requests, 300 input tokens and 30 output tokens in " in result.out
    assert all(each.headers["Authorization"] == f"Bearer {KEY}" for each in server.asked)
    assert KEY not in result.out + result.err and KEY.encode() not in everything(tmp_path)
    assert b"; [key]" in everything(tmp_path)


def test_serve(mla, tmp_path, monkeypatch):
    """The search of `mla serve` runs in a separate process, which reads the API key itself."""
    monkeypatch.setenv("MLA_ENDPOINT_KEY", KEY)
    out, lines = tmp_path / "serve.json", tmp_path / "lines.jsonl"
    with ChatServer(small, "no idea") as server:
        result = mla(
            "serve",
            MODEL,
            "--adapt",
            "--method",
            "llm",
            "--target",
            "n4",
            "--requests",
            "4",
            "--trials-per-request",
            "1",
            "--seed",
            "1",
            "--endpoint",
            server.url,
            "--endpoint-model",
            NAME,
            "--endpoint-requests",
            "2",
            "--json",
            out,
            "--out",
            lines,
            "--db",
            tmp_path / "x.db",
            "--no-cache",
        )
        assert result.status == 0, result.err
        assert len(server.asked) == 2 and server.asked[0].headers["Authorization"] == f"Bearer {KEY}"
    document = json.loads(out.read_text())
    assert document["requests"] == 4 and document["endpoint"]["requests"] == 2
    told = [each["reason"] for each in document["events"] if each["event"] == "endpoint"]
    assert told[0] == "no more queries: the limit of requests is reached (2 of 2)" and told[1].startswith(
        "2 requests,"
    )
    assert KEY not in result.out + result.err and KEY.encode() not in everything(tmp_path)


@pytest.mark.parametrize(
    ("models", "status", "words"),
    [
        (
            refused(401, f"not {KEY}"),
            2,
            r"the environment variable MLA_ENDPOINT_KEY must contain a key that http",
        ),
        (
            refused(404),
            2,
            "does not have the model 'scribe-1', or is not the base URL of an OpenAI-compatible endpoint",
        ),
        (Reply(200, b'{"data": [{"id": "llama"}]}'), 2, "does not have the model 'scribe-1'; models: llama"),
        (
            Reply(200, b"<html>"),
            2,
            "does not return a list of models: the URL must be the base URL of an OpenAI-compatible endpoint",
        ),
        (refused(308, Location="http://x/"), 2, "redirects to http://x/, to which the key is not sent"),
        (refused(500, f"{KEY}\nis broken"), 1, r"does not answer: status 500: [key] is broken"),
    ],
)
def test_unusable_endpoints_are_rejected_before_the_search(
    mla, complains, models, status, words, monkeypatch
):
    monkeypatch.setenv("MLA_ENDPOINT_KEY", KEY)
    with ChatServer("hi") as server:
        server.models = models
        asked = ("--endpoint", server.url, "--endpoint-model", NAME)
        for verb in ((*TUNE, "--trials", "1"), ("serve", MODEL, "--adapt", "--method", "llm")):
            result = mla(*verb, *asked)
            assert (result.status, result.out, result.err.count("\n")) == (status, "", 1)
            assert words in result.err and KEY not in result.err
    complains(
        1,
        "cannot be reached: connection refused: no server may be running there",
        *TUNE,
        "--trials",
        "1",
        *asked,
    )
    assert not server.asked


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--endpoint URL", "--endpoint needs --endpoint-model NAME"),
        ("--endpoint-model m", "--endpoint-model needs --endpoint URL"),
        ("--method random --endpoint-seconds 3", "--endpoint-seconds requires --method llm"),
        (
            "--endpoint localhost:80 --endpoint-model m",
            "URL must have the form http://localhost:8080/v1, not 'localhost",
        ),
        ("--endpoint URL --endpoint-model m --endpoint-cost 1", "a cost limit requires the prices"),
        (
            "--endpoint URL --endpoint-model m --endpoint-cost 0",
            "--endpoint-cost: must be a number above 0, not '0'",
        ),
        (
            "--endpoint URL --endpoint-model m --endpoint-prices 3",
            "--endpoint-prices: must be IN,OUT such as 2.5,10",
        ),
        (
            "--endpoint URL --endpoint-model m --endpoint-fields []",
            "--endpoint-fields: must be a JSON object such as",
        ),
        (
            "--endpoint URL --endpoint-model m --endpoint-context 100",
            "--endpoint-context: must be an integer of at",
        ),
        (
            "--endpoint URL --endpoint-model m --endpoint-context 4096",
            "must be at least twice an answer's 4,096",
        ),
        ("--endpoint URL --endpoint-model m --endpoint-grammar ebnf", "--endpoint-grammar: invalid choice"),
        (
            "--endpoint URL --endpoint-model m --endpoint-key NO_SUCH",
            "for the endpoint's key is not set",
        ),
    ],
)
def test_invalid_options(complains, options, words, monkeypatch):
    monkeypatch.delenv("MLA_ENDPOINT_KEY", raising=False)
    given = options.replace("URL", "http://127.0.0.1:1/v1").split()
    complains(2, words, *TUNE, "--trials", "1", *given)


def test_endpoint_requires_adapt(complains):
    complains(2, "--endpoint requires --adapt", "serve", MODEL, "--endpoint", "http://x")
