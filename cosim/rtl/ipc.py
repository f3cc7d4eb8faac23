"""Messages between a device and its simulator process, which consist of a JSON header and raw bytes.

The messages are exchanged over a stream socket.
"""

import json
import socket
import struct
from typing import Any

LENGTHS = struct.Struct("<II")


def send(sock: socket.socket, header: dict[str, Any], payload: bytes = b"") -> None:
    """Send one message, which consists of a JSON header and a binary payload."""
    text = json.dumps(header).encode()
    sock.sendall(LENGTHS.pack(len(text), len(payload)) + text + payload)


def receive(sock: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Receive one message and return its header and payload.

    Raises
    ------
    EOFError
        The peer has closed the connection.
    """
    text_length, payload_length = LENGTHS.unpack(_exactly(sock, LENGTHS.size))
    return json.loads(_exactly(sock, text_length)), bytes(_exactly(sock, payload_length))


def _exactly(sock: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        try:
            count = sock.recv_into(view)
        except ConnectionError:
            count = 0
        if count == 0:
            raise EOFError("the peer has closed the connection")
        view = view[count:]
    return data
