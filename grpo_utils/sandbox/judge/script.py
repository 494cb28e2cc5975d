"""Judges a whole program by what it prints."""

import io
import itertools
import os
from typing import Any

from ..jail.protocol import EXITED, RAISED
from ..verdict import Verdict
from .run import candidate_error
from .scores import Tally, verdict
from .session import Ended, Zygote, compiled

_BLANKS = b" \t\r\n"


def judge_script(zygote: Zygote, check: dict[str, Any]) -> Verdict:
    """Run a program and compare its standard output, line by line without blanks at their ends."""
    theirs, feed = os.pipe()
    output, printing = os.pipe()
    session = zygote.start(check["timeout"], ("script", compiled(check["code"]), "", None), theirs, printing)
    os.close(theirs)
    os.close(printing)
    tally, printed, error = Tally(), b"", None
    try:
        printed = session.run_script(check["stdin"].encode("utf-8", "surrogatepass"), feed, output)
        kind, payload = session.receive()
        error = candidate_error(payload) if kind == RAISED else None
    except Ended as ended:
        error = ended
    finally:
        os.close(output)
    tally.timed_out = session.timed_out
    report = zygote.finish(session, 0.0 if tally.timed_out else session.left)
    # A program that writes out its output and leaves by os._exit(0) has run to its end.
    if type(error) is Ended and not tally.timed_out and report.reason == EXITED and report.wait_status == 0:
        error = None
    if error is None and not _alike(printed, check["expected"].encode("utf-8", "surrogatepass")):
        error = AssertionError("the output differs from what was expected")
    tally.add(error)
    return verdict(tally, report, bytes(session.printed))


def _alike(printed: bytes, expected: bytes) -> bool:
    """Line after line: a list of all that a program may print would take all memory."""
    texts = (io.BytesIO(text.rstrip(_BLANKS)) for text in (printed, expected))
    lines = itertools.zip_longest(*texts, fillvalue=b"")
    return all(one.rstrip(_BLANKS) == other.rstrip(_BLANKS) for one, other in lines)
