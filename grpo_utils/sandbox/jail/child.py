"""Runs one candidate in a process of its own, forked for it and gone after it.

The request comes and the answers go over one socket that no other check ever sees. Everything below is
written for a hostile neighbour: the candidate can patch each object in this process and write what it likes
to the socket. All it can forge that way is its own return values.
"""

import builtins
import io
import marshal
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from . import encoder
from .protocol import HEADER, LENGTH, MAX_MESSAGE, MAX_STDOUT, PRINTED, RAISED, VALUE

# The candidate may replace these in `builtins`; an honest one that does so by accident still gets its answer.
_compile, _eval, _exec = builtins.compile, builtins.eval, builtins.exec


def run(connection: int, before_candidate: Callable[[], None]) -> None:
    """Serve one check on the socket `connection`, then return; the caller ends the process.

    The request is a marshalled tuple (trusted: it comes from the judge) of mode, code, setup and the mode's own
    data: for "calls" a tuple of code objects, for "script" the standard input. In mode "remote" that tuple is
    empty and the calls follow one by one.

    Args:
        connection: file descriptor of a stream socket.
        before_candidate: called after the request was read; it closes the last doors.
    """
    mode, code, setup, data = marshal.loads(_read_message(connection))
    before_candidate()
    _output.connection = connection
    module = types.ModuleType("__main__" if mode == "script" else "candidate")
    sys.modules[module.__name__] = module  # dataclasses and pickle look their module up
    space = module.__dict__
    if mode == "script":
        _answer(connection, _run_script, code, space, data)
    elif _answer(connection, _load, code, setup, space):
        for call in data:
            _answer(connection, _eval, call, space)
        while mode == "remote":
            _answer(connection, _call, space, *marshal.loads(_read_message(connection)))


def _load(code: str, setup: str, space: dict[str, Any]) -> None:
    _exec(_compile(code, "<candidate>", "exec"), space)
    if setup:
        _exec(_compile(setup, "<setup>", "exec"), space)


def _call(space: dict[str, Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _eval(name, space)(*args, **kwargs)


def _run_script(code: str, space: dict[str, Any], stdin: str) -> None:
    _output.left = encoder.MAX_BYTES
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(io.BufferedWriter(_output), encoding="utf-8")
    try:
        _load(code, "", space)
    finally:
        sys.stdout.flush()


def _answer(connection: int, action: Callable[..., Any], *args: Any) -> bool:
    """Run the action, send what it returned or raised; False when it raised."""
    try:
        kind, payload = VALUE, encoder.encode(action(*args))
    except BaseException as error:  # SystemExit too: leaving is no way to pass
        kind, payload = RAISED, _describe(error)
    _send(connection, kind, payload)
    return kind is VALUE


def _describe(error: BaseException) -> bytes:
    try:
        message = str(error)[:MAX_MESSAGE]
    except BaseException:  # a hostile __str__
        message = ""
    return encoder.encode([type(error).__name__[:100], message])


class _Output(io.RawIOBase):
    """Standard output: sends what is printed, up to a cap, and swallows the rest."""

    name = "<stdout>"
    connection = -1
    left = MAX_STDOUT

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data[: self.left])
        if part:
            self.left -= len(part)
            _send(self.connection, PRINTED, part)
        return len(data)


def _send(connection: int, kind: bytes, payload: bytes) -> None:
    message = memoryview(HEADER.pack(kind, len(payload)) + payload)
    while message:
        message = message[os.write(connection, message) :]


def _read_message(connection: int) -> bytes:
    message = bytearray(os.read(connection, 1 << 16))  # nearly always all of it
    while len(message) < LENGTH.size or len(message) < LENGTH.size + LENGTH.unpack_from(message)[0]:
        part = os.read(connection, 1 << 20)
        if not part:
            raise EOFError("the trusted side closed the connection")
        message += part
    return bytes(message[LENGTH.size :])


# Made once, in the zygote: whatever a child must set up itself, it sets up for every check.
_output = _Output()
_stdout = io.TextIOWrapper(_output, encoding="utf-8", errors="replace", write_through=True)


def prepare() -> None:
    """Once, in the zygote: make it look like a process that runs one program."""
    sys.stdout = sys.__stdout__ = _stdout
    sys.argv = ["candidate.py"]
