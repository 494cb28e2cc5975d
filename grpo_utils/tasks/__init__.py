"""A data set -> tasks, and a task -> the prompt that puts it to a policy.

There are four kinds of task: `code` (a function to write, judged by asserts), `scripts` (a whole program, judged by
what it prints), `maths` (a word problem, judged by a number) and `answers` (a letter of several choices, or a short
text). All answer the same questions, so rewards, audit and
evaluation need not ask which kind they have.
"""

import importlib
import pkgutil

from .answers import AnswerTask
from .code import CodeTask, called_name, check_of, program_row, showable, shown_tests
from .loading import (
    HUB,
    SPLITS,
    check_data,
    data_fingerprint,
    download_dataset,
    folders,
    is_within,
    load_judged,
    load_split,
    load_tasks,
    read_jsonl,
    shorten,
    task_of,
    worked_examples,
)
from .maths import MathsTask, matches
from .scripts import ScriptTask
from .task import DataError, Message, Task, columns, prompt_messages

for file in pkgutil.iter_modules(__path__):  # one that somebody adds is found by being there
    importlib.import_module(f"{__name__}.{file.name}")
