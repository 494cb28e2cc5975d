"""How messages travel: the child's end of its connection, and JSON between the processes that are trusted."""

import json
import os
from typing import Any

from .protocol import HEADER, LENGTH, MAX_MESSAGE


def send_json(connection: Any, message: Any) -> None:
    """Send a message through a socket."""
    data = json.dumps(message).encode()
    connection.sendall(LENGTH.pack(len(data)) + data)


def send(connection: int, kind: bytes, payload: bytes) -> None:
    message = memoryview(HEADER.pack(kind, len(payload)) + payload)
    while message:
        message = message[os.write(connection, message) :]


def read_message(connection: int) -> bytes:
    """The next message of the judge.

    Raises:
        EOFError: there is none any more.
    """
    message = bytearray(os.read(connection, 1 << 16))  # nearly always all of it
    while len(message) < LENGTH.size or len(message) < LENGTH.size + LENGTH.unpack_from(message)[0]:
        part = os.read(connection, 1 << 20)
        if not part:
            raise EOFError("the trusted side closed the connection")
        message += part
    return bytes(message[LENGTH.size :])


def describe(error: BaseException) -> bytes:
    """Class name and text of an exception."""
    try:
        text = str(error)[:MAX_MESSAGE]
    except BaseException:  # a hostile __str__
        text = ""
    return json.dumps([_name(error)[:100], text]).encode()


def _name(error: BaseException) -> str:
    try:
        return str(type(error).__name__)
    except BaseException:  # a hostile metaclass
        return "Exception"
