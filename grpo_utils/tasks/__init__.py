"""A data set -> tasks, and a task -> the prompt that puts it to a policy.

There are three kinds of task: `code` (a function to write, judged by asserts), `scripts` (a whole program, judged by
what it prints) and `maths` (a word problem, judged by a number). All answer the same questions, so rewards, audit and
evaluation need not ask which kind they have. A kind of your own is a subclass of `Task` and a line in `loading.KINDS`.

`python -m grpo_utils.tasks download mbpp` keeps a local copy of a data set, `... show starter test` prints one.
"""

from .code import CodeTask
from .loading import (
    HUB,
    ROOT,
    SPLITS,
    download,
    examples,
    fingerprint,
    folders,
    is_within,
    load,
    load_judged,
    load_split,
    read_jsonl,
    shorten,
)
from .maths import MathsTask
from .scripts import ScriptTask
from .task import DataError, Message, Task, columns, messages

__all__ = [
    "HUB",
    "ROOT",
    "SPLITS",
    "CodeTask",
    "DataError",
    "MathsTask",
    "Message",
    "ScriptTask",
    "Task",
    "columns",
    "download",
    "examples",
    "fingerprint",
    "folders",
    "is_within",
    "load",
    "load_judged",
    "load_split",
    "messages",
    "read_jsonl",
    "shorten",
]
