"""Errors that the user can mend, in a module that imports nothing heavy."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """An error that the user can mend. Its text is one sentence that says what is wrong and what to do."""


def nearest(wrong: str, valid: Iterable[str]) -> str:
    """Returns " (did you mean 'x'?)" with the most similar valid name, or "" when none is similar."""
    match = difflib.get_close_matches(wrong, list(valid), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""
