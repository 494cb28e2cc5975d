"""Completions side by side: a browser for Jupyter, and the same as static HTML where nothing can be clicked.

What a policy wrote is hostile text: everything is escaped. It does not draw figures (see `plots`).
"""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import ipywidgets
import pandas as pd
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from grpo_utils.recipes import Prompt
from grpo_utils.tasks import Task

PER_GROUP = 3  # entries of each group on a static page
PRE = "white-space:pre-wrap;overflow-wrap:anywhere;text-align:left;margin:0"


@dataclass(frozen=True)
class Shown:
    """One completion to show: a title, its text, the program found in it, and one sentence on how it did."""

    title: str
    text: str
    code: str | None
    verdict: str


@dataclass(frozen=True)
class Entry:
    """One task to show: a title, the group to find it under, the question, and completions to put side by side."""

    title: str
    group: str
    question: str
    completions: Sequence[Shown]


def before_and_after(
    records: pd.DataFrame,
    batch: Sequence[Task],
    prompt: Prompt,
    policies: Mapping[str, tuple[str, int]],
    split: str = "test",
) -> list[Entry]:
    """Returns an entry for every task: the greedy completions of two policies, by whether strict scoring changed.

    Args:
        records: from `results.load_records`.
        batch: the tasks of the split.
        prompt: the recipe's `prompt` block.
        policies: title -> checkpoint and shots, the earlier policy first.
        split: of the records.
    """
    sides = []
    for checkpoint, shots in policies.values():
        chosen = (records.checkpoint == checkpoint) & (records.split == split) & (records.shots == shots)
        sides.append(records[chosen & (records["sample"] < 0)].set_index("task_id"))
    groups = {(False, True): "gained", (True, False): "lost", (True, True): "both", (False, False): "neither"}
    entries = []
    for task in batch:
        old, new = rows = [side.loc[task.task_id] for side in sides]
        group = groups[bool(old.strict), bool(new.strict)]
        shown = [_shown(title, row, task, prompt) for title, row in zip(policies, rows, strict=True)]
        first_line = task.text.partition("\n")[0]
        entries.append(Entry(f"{task.task_id}: {first_line[:80]}", group, task.question(prompt), shown))
    return sorted(entries, key=lambda entry: list(groups.values()).index(entry.group))


def _shown(title: str, row: pd.Series, task: Task, prompt: Prompt) -> Shown:
    return Shown(title, row.text, task.lenient_answer(row.text, prompt.tags[-1]), verdict_of(row.to_dict(), task))


def verdict_of(completion: Mapping[str, Any], task: Task) -> str:
    """Returns how a completion did, in a sentence: passed, or the first assert that did not pass and why.

    Example:
    ```python
    >>> from grpo_utils.tasks import CodeTask
    >>> task = CodeTask(task_id=1, text="Add.", code="", test_list=["assert add(1, 2) == 3", "assert add(2, 2) == 4"])
    >>> scores = {"error": "wrong answer", "outcomes": ["passed", "failed"], "truncated": False, "message": ""}
    >>> verdict_of(scores, task)
    'wrong answer at `assert add(2, 2) == 4`'

    ```
    """
    words = "passed" if completion["error"] == "none" else completion["error"]
    failed = next((i for i, outcome in enumerate(completion["outcomes"]) if outcome != "passed"), None)
    if failed is not None and completion["error"] != "no answer":
        words += f" at `{task.requirements[failed]}`" if failed < len(task.requirements) else ""
        words += f": {completion['message']}" if completion["message"] else ""
    return words + (" (cut off at the limit of tokens)" if completion["truncated"] else "")


def render(entry: Entry) -> str:
    """Returns one entry as HTML: the question above, completions in columns, code highlighted, everything escaped.

    Example:
    ```python
    >>> "<script>" in render(Entry("1", "both", "<script>", [Shown("base", "<script>", None, "<script>")]))
    False

    ```
    """
    cells = "".join(_column(shown, 100 // max(len(entry.completions), 1)) for shown in entry.completions)
    return f"<pre style='{PRE}'>{escape(entry.question)}</pre><table style='width:100%'><tr>{cells}</tr></table>"


def _column(shown: Shown, percent: int) -> str:
    code = "<em>no answer found</em>"
    if shown.code is not None:
        code = highlight(shown.code, PythonLexer(), HtmlFormatter(noclasses=True, prestyles=PRE))
    return (
        f"<td style='width:{percent}%;vertical-align:top;text-align:left'><b>{escape(shown.title)}</b>: "
        f"{escape(shown.verdict)}{code}<details><summary>the whole completion</summary>"
        f"<pre style='{PRE}'>{escape(shown.text)}</pre></details></td>"
    )


def page(entries: Sequence[Entry]) -> str:
    """Returns static HTML: the first entries of each group, folded up, under a heading that counts them all."""
    parts = []
    for group in dict.fromkeys(entry.group for entry in entries):
        members = [entry for entry in entries if entry.group == group]
        parts.append(f"<p><b>{escape(group)}: {len(members)} of {len(entries)} tasks</b></p>")
        parts += [
            f"<details><summary>{escape(entry.title)}</summary>{render(entry)}</details>"
            for entry in members[:PER_GROUP]
        ]
    return "".join(parts)


class Browser(ipywidgets.VBox):
    """Two menus, for the group and for the entry, and the entry below; where widgets cannot run it shows `page`."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.group = ipywidgets.Dropdown(options=list(dict.fromkeys(one.group for one in entries)), description="group")
        self.entry = ipywidgets.Dropdown(description="task", layout=ipywidgets.Layout(width="90%"))
        self.view = ipywidgets.HTML()
        self.group.observe(lambda change: self._fill(), names="value")
        self.entry.observe(lambda change: self._show(), names="value")
        self._fill()
        super().__init__([self.group, self.entry, self.view])

    def _fill(self) -> None:
        self.entry.options = [(one.title, i) for i, one in enumerate(self.entries) if one.group == self.group.value]
        self.entry.index = 0 if self.entry.options else None

    def _show(self) -> None:
        self.view.value = "" if self.entry.value is None else render(self.entries[self.entry.value])

    def _repr_mimebundle_(self, **settings: Any) -> dict[str, Any]:
        return {**(super()._repr_mimebundle_(**settings) or {}), "text/html": page(self.entries)}
