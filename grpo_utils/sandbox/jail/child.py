"""Runs one candidate in a process of its own, forked for it and gone after it.

The request comes and the answers go over one socket that no other check ever sees. The candidate can patch each object
in this process and write what it likes to the socket: all it can forge that way is its own return values.
"""

import atexit
import builtins
import io
import marshal
import os
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from . import codec, objects
from .protocol import MAX_CAPTURED, OPAQUE, PRINTED, RAISED, VALUE
from .wire import describe, read_message, send

# The candidate may replace these in `builtins`; an honest one that does so by accident still gets its answer.
_compile, _eval, _exec = builtins.compile, builtins.eval, builtins.exec


def run(descriptors: list[int], before_candidate: Callable[[], None]) -> None:
    """Serve one check, then return; the caller ends the process.

    The request is a marshalled tuple (trusted: it comes from the judge) of mode, code (a text, or itself marshalled),
    setup and the mode's own data: for "calls" code objects, each with whether an iterator that it returns is emptied;
    for "remote" the names of the setup's classes, and operations follow one by one; for "script" nothing.

    Args:
        descriptors: that of a stream socket, and for a script those of its standard input and output.
        before_candidate: called after the request was read; it closes the last doors.
    """
    connection = descriptors[0]
    mode, code, setup, data = marshal.loads(read_message(connection))
    before_candidate()
    if mode == "script":
        _serve_script(connection, descriptors[1:], code)
        return
    _output.connection = connection
    module = types.ModuleType("candidate")
    sys.modules["candidate"] = module  # dataclasses and pickle look their module up
    space = module.__dict__
    try:
        if setup:  # as in a file: its imports and classes stand above the program, whose own names win
            _exec(_compiled(setup, "<setup>"), space)
        _exec(_compiled(code), space)
    except BaseException as error:  # SystemExit too: leaving is no way to pass
        send(connection, RAISED, describe(error))
        return
    send(connection, VALUE, b"null")
    if mode == "remote":
        objects.serve(connection, space, data)
    for call, drain in data:
        try:
            kind, payload = VALUE, codec.encode(_eval(call, space), drain)
        except codec.NotPlain:
            send(connection, OPAQUE, b"")
            return
        except BaseException as error:
            kind, payload = RAISED, describe(error)
        send(connection, kind, payload)


def _compiled(code: str | bytes, name: str = "<candidate>") -> Any:
    return _compile(code, name, "exec") if isinstance(code, str) else marshal.loads(code)


def _serve_script(connection: int, descriptors: list[int], code: Any) -> None:
    """A whole program on descriptors 0 and 1, ended as Python ends one: threads, exit handlers, what is unwritten."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    opened = partial(open, encoding="utf-8", errors="surrogateescape", newline="\n", closefd=False)
    sys.stdin, sys.stdout = opened(0), opened(1, "w")
    sys.__stdin__, sys.__stdout__ = sys.stdin, sys.stdout
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    kind, payload = VALUE, b"null"
    for step in (lambda: _exec(_compiled(code), module.__dict__), _end_threads, lambda: sys.stdout.flush()):
        try:
            step()
        except BaseException as error:
            if not isinstance(error, SystemExit):
                kind, payload = RAISED, describe(error)
    send(connection, kind, payload)


def _end_threads() -> None:
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()


class _Output(io.RawIOBase):
    """Standard output: sends what is printed, up to a cap, and swallows the rest."""

    name = "<stdout>"
    connection = -1
    left = MAX_CAPTURED

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data[: self.left])
        if part:
            self.left -= len(part)
            send(self.connection, PRINTED, part)
        return len(data)


# Made once, in the zygote: whatever a child must set up itself, it sets up for every check.
_output = _Output()
_stdout = io.TextIOWrapper(_output, encoding="utf-8", errors="replace", write_through=True)


def prepare() -> None:
    """Once, in the zygote: make it look like a process that runs one program."""
    sys.stdout = sys.__stdout__ = _stdout
    sys.argv = ["candidate.py"]
    builtins.exit = builtins.quit = _leave  # what the site module adds


def _leave(code: object = None) -> None:
    raise SystemExit(code)
