"""A local server that speaks OpenAI's chat protocol with scripted replies."""

import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

MODEL = "scribe-1"


@dataclass
class ChatRequest:
    """A request that the server received."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any

    @property
    def prompt(self) -> str:
        """Contents of all messages of a chat, joined by newlines."""
        return "\n".join(message["content"] for message in self.body["messages"])

    @property
    def last(self) -> str:
        """Content of the last message of a chat."""
        return self.body["messages"][-1]["content"]


@dataclass
class Reply:
    """A reply of the server.

    Attributes
    ----------
    status : int
        HTTP status.
    body : bytes
        Body of the response.
    headers : dict
        Headers besides Content-Length.
    hang : float
        Seconds before the response begins.
    drip : float
        Seconds between single bytes of an endless body; 0 sends `body`.
    reason : str or None
        Reason phrase of the status line.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hang: float = 0.0
    drip: float = 0.0
    reason: str | None = None


def said(text: Any, tokens: tuple[int, int] | None = (100, 10), finish: str = "stop", **more: Any) -> Reply:
    """Return a chat completion with this text; `tokens` is the reported usage (prompt, completion)."""
    message = {"role": "assistant", "content": text}
    content: dict[str, Any] = {"choices": [{"message": message, "finish_reason": finish}]}
    if tokens is not None:
        content["usage"] = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
    return Reply(200, json.dumps(content | more).encode())


def refused(status: int, message: str = "", **headers: str) -> Reply:
    """Return an error in the format of OpenAI-compatible servers."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, json.dumps({"error": {"message": message}}).encode(), named)


class ChatServer:
    """Chat server in a thread of this process.

    Parameters
    ----------
    script : Reply, str or callable
        Replies to chats, in order; the last one is repeated. A string is the content of a completion; a callable
        makes a reply or a string from the request.

    Attributes
    ----------
    asked : list of ChatRequest
        Chat requests received.
    models : Reply
        Reply to a request for the list of models.
    """

    def __init__(self, *script: Reply | str | Callable[[ChatRequest], "Reply | str"]):
        self.script, self.asked = deque(script), list[ChatRequest]()
        self.models = Reply(body=json.dumps({"data": [{"id": MODEL}, {"id": "other"}]}).encode())
        self._over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.listed.append(self.request_line())
                outer.send(self, outer.models)

            def do_POST(self) -> None:
                asked = self.request_line()
                outer.asked.append(asked)
                outer.send(self, outer.answer(asked))

            def do_CONNECT(self) -> None:
                outer.asked.append(self.request_line())
                self.send_error(403)

            def request_line(self) -> ChatRequest:
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size)
                return ChatRequest(
                    self.command, self.path, dict(self.headers), json.loads(body) if body else None
                )

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.listed = list[ChatRequest]()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def host(self) -> str:
        """Host name and port."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """Base URL for `--endpoint`."""
        return f"http://{self.host}/v1"

    def answer(self, asked: ChatRequest) -> Reply:
        """Return the next reply of the script."""
        step = self.script.popleft() if len(self.script) > 1 else self.script[0]
        made = step(asked) if callable(step) else step
        return said(made) if isinstance(made, str) else made

    def send(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        """Send a reply with its delays."""
        try:
            self._over.wait(reply.hang)
            handler.send_response(reply.status, reply.reason)
            for name, value in reply.headers.items():
                handler.send_header(name, value)
            if reply.drip:
                handler.end_headers()
                while not self._over.wait(reply.drip):
                    handler.wfile.write(b" ")
                    handler.wfile.flush()
                return
            handler.send_header("Content-Length", str(len(reply.body)))
            handler.end_headers()
            handler.wfile.write(reply.body)
        except OSError:
            pass  # the client has disconnected

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
