"""Completions side by side: browsers for Jupyter, and the same as static HTML where nothing can be clicked.

What a policy wrote is hostile text: all of it is escaped, and characters that cannot be seen are spelled out.
"""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

import difflib
import functools
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets
import pandas as pd
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import DiffLexer, PythonLexer

from grpo_utils import evaluation, runs
from grpo_utils.runs import Prompt
from grpo_utils.tasks import Task

from .panel import is_watched

# bounds of a static page
GROUPS = 4  # from the first to the last
PER_GROUP = 3  # entries
CHARACTERS = 1_000_000  # of HTML; an entry that would go beyond is left out
LONGEST = 6_000  # characters of a text that are shown, here as in the browser
# Jupyter's own style of a text as it stands has the font of prose and breaks lines within words
PRE = "font-family:monospace;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;text-align:left"
PRE += ";margin:0;padding:0.3em"
COLUMNS = "display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,17em),1fr));gap:1em"
LIGHT = HtmlFormatter(noclasses=True, prestyles=f"{PRE};color:#222;background:#f8f8f8")  # whatever is around it
DOCUMENT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>:root {{color-scheme: light dark}} body {{font: 1rem/1.4 sans-serif; max-width: 100rem; margin: auto}}
body {{padding: 1rem}} summary {{cursor: pointer; padding: 0.2em 0}}</style></head>
<body><h1>{title}</h1>
{body}
</body></html>
"""


@dataclass(frozen=True)
class Shown:
    """One completion to show."""

    title: str
    text: str
    code: str | None  # the answer found in it
    verdict: str  # how it did, in a sentence
    scores: Mapping[str, float] = field(default_factory=dict)  # such as its rewards; each can be sorted by


@dataclass(frozen=True)
class Entry:
    """One task to show: a title, the question, and completions to put side by side; of two programs also the diff."""

    title: str
    question: str
    completions: Sequence[Shown]


Groups = Mapping[str, Sequence[Entry]]
"""What a browser shows: the name of a group -> its entries."""


def before_and_after(
    records: pd.DataFrame,
    batch: Sequence[Task],
    prompt: Prompt,
    before: tuple[str, int],
    after: tuple[str, int],
    split: str = "test",
) -> dict[str, list[Entry]]:
    """Returns the greedy completions of two policies for every task, grouped by whether strict scoring changed.

    Args:
        records: from `evaluation.load_records`.
        batch: the tasks of the split.
        prompt: the recipe's `prompt` block.
        before: checkpoint and shots of the earlier policy.
        after: checkpoint and shots of the later one.
        split: of the records.
    """
    sides = {}
    for checkpoint, shots in (before, after):
        rows = evaluation.of_policy(records, checkpoint, split, shots)
        sides[checkpoint, shots] = rows[rows["sample"] < 0].set_index("task_id")
    names = {(False, True): "gained", (True, False): "lost", (True, True): "both", (False, False): "neither"}
    groups: dict[str, list[Entry]] = {name: [] for name in names.values()}
    for task in batch:
        rows = [(policy, sides[policy].loc[task.task_id].to_dict()) for policy in (before, after)]
        shown = [shown_completion(f"{name}, {shots}-shot", row, task, prompt) for (name, shots), row in rows]
        entry = Entry(f"{task.task_id}: {headline(task)}", task.question(prompt), shown)
        old, new = (bool(row["strict"]) for _, row in rows)
        groups[names[old, new]].append(entry)
    return {name: entries for name, entries in groups.items() if entries}


def headline(task: Task) -> str:
    """Returns the beginning of a task's text on one line."""
    return textwrap.shorten(task.text, 80, placeholder="...")


def shown_completion(
    title: str, completion: Mapping[str, Any], task: Task, prompt: Prompt, scores: Mapping[str, float] | None = None
) -> Shown:
    """Returns a completion, its `text` and what `evaluation.judge_completions` found, with the answer in it."""
    answer = task.lenient_answer(completion["text"], prompt.tags[-1])
    return Shown(title, completion["text"], answer, verdict_of(completion, task), scores or {})


def verdict_of(completion: Mapping[str, Any], task: Task) -> str:
    """Returns how a completion did, in a sentence: passed, or the first assert that did not pass and why.

    Example:
        >>> from grpo_utils.tasks import CodeTask
        >>> task = CodeTask(task_id=1, text="", code="", test_list=["assert add(1, 2) == 3", "assert add(2, 2) == 4"])
        >>> verdict_of({"error": "wrong answer", "outcomes": ["passed", "failed"], "message": ""}, task)
        'wrong answer at `assert add(2, 2) == 4`'
    """
    error: str = completion["error"]
    words = {"none": "passed", "no tag": "right, but not in its tag"}.get(error, error)
    failed = next((i for i, outcome in enumerate(completion["outcomes"]) if outcome != "passed"), None)
    if failed is not None and error != "no answer":
        words += f" at `{task.requirements[failed]}`" if failed < len(task.requirements) else ""
        if not completion["message"].startswith("AssertionError: assert "):  # which repeats the assert
            words += f": {completion['message']}" if completion["message"] else ""
    return words + (" (cut off at the limit of tokens)" if completion.get("truncated") else "")


def visible(text: str) -> str:
    """Returns a text with what cannot be seen spelled out, and without the end of a long one.

    Characters that colour a terminal or turn the direction of writing would make it look like another text.

    Example:
        >>> print(visible("a\\x1b[31m\\u202eb"))
        a\\x1b[31m\\u202eb
    """
    kept = "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text[:LONGEST]
    )
    return kept + (f"\n... and {len(text) - LONGEST:,} more characters" if len(text) > LONGEST else "")


def render(entry: Entry, by: str | None = None) -> str:
    """Returns one entry as HTML: the question, and below it completions side by side, the highest score `by` first.

    Example:
        >>> "<script>" in render(Entry("1", "<script>", [Shown("base", "<script>", None, "<script>")]))
        False
    """
    completions = entry.completions
    if by is not None:  # an unknown score stands last
        completions = sorted(completions, key=lambda one: (math.isnan(one.scores[by]), -one.scores[by]))
    columns = "".join(map(_column, completions))
    return f"{_pre(entry.question)}{_diff(entry.completions)}<div style='{COLUMNS}'>{columns}</div>"


def _pre(text: str, style: str = PRE) -> str:
    """A text as it stands: escaped, and in an element in which Jupyter looks for no formulae."""
    return f"<pre style='{style}'>{escape(visible(text))}</pre>"


def _column(shown: Shown) -> str:
    code = "<em>no answer found</em>" if shown.code is None else highlight(visible(shown.code), PythonLexer(), LIGHT)
    scores = ", ".join(f"{name} {score:.3g}" for name, score in shown.scores.items())
    verdict = _pre(shown.verdict, f"{PRE};font-family:inherit")
    return (
        f"<div style='min-width:0'><b>{escape(visible(shown.title))}</b> {escape(visible(scores))}{verdict}{code}"
        f"<details><summary>the whole completion</summary>{_pre(shown.text)}</details></div>"
    )


def _diff(completions: Sequence[Shown]) -> str:
    """What the second of two programs has changed, line by line; nothing for other numbers of programs."""
    codes = [visible(shown.code).split("\n") for shown in completions if shown.code is not None]
    if len(completions) != 2 or len(codes) != 2:
        return ""
    titles = [visible(shown.title) for shown in completions]
    lines = list(difflib.unified_diff(*codes, *titles, lineterm=""))
    if not lines:
        return "<p>Both programs are the same.</p>"
    changed = highlight("\n".join(lines), DiffLexer(), LIGHT)
    return f"<details><summary>what changed in the program</summary>{changed}</details>"


def page(groups: Groups, kinds: tuple[str, str] = ("group", "task")) -> str:
    """Returns HTML without scripts, within the bounds above: the first entries of some groups, folded up, and how many.

    `kinds` is what to call a group and an entry.
    """
    names, last = list(groups), len(groups) - 1
    if last >= GROUPS:
        names = [names[round(i * last / (GROUPS - 1))] for i in range(GROUPS)]
    parts, size, included = [], 0, []
    for name in names:
        members = groups[name]
        parts.append(f"<p><b>{escape(visible(name))}: {_count(len(members), kinds[1])}</b></p>")
        for entry in members[:PER_GROUP]:
            folded = f"<details><summary>{escape(visible(entry.title))}</summary>{render(entry)}</details>"
            if size + len(folded) <= CHARACTERS:
                parts.append(folded)
                included.append(len(entry.completions))
                size += len(folded)
    words = f"{len(names)} of {_count(len(groups), kinds[0])}, {_count(len(included), kinds[1])}"
    # Jupyter sets formulae between dollar signs, save in elements of these classes
    head = f"<p>This page includes {words} and {sum(included)} completions.</p>"
    return f"<div class='tex2jax_ignore mathjax_ignore'>{head}{''.join(parts)}</div>"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def write_page(path: Path, title: str, groups: Groups, kinds: tuple[str, str] = ("group", "task")) -> Path:
    """Writes a `page` as a file that forbids scripts and whatever comes from elsewhere, and returns its path."""
    runs.write_file(path, DOCUMENT.format(title=escape(visible(title)), body=page(groups, kinds)))
    return path


class Browser(ipywidgets.VBox):
    """Menus for the group, for the entry and for the score to sort by, and the entry below.

    Where nobody can click it shows its static `page` instead. A group is looked up when it is chosen.
    """

    def __init__(self, groups: Groups, kinds: tuple[str, str] = ("group", "task")) -> None:
        wide = ipywidgets.Layout(width="90%")
        self.kinds = kinds
        self.group = ipywidgets.Dropdown(description=kinds[0])
        self.entry = ipywidgets.Dropdown(description=kinds[1], layout=wide)
        self.order = ipywidgets.Dropdown(description="sort by")
        self.view = ipywidgets.HTML()
        self.group.observe(lambda change: self._fill(), names="value")
        self.entry.observe(lambda change: self._show(), names="value")
        self.order.observe(lambda change: self._show(), names="value")
        self.refill(groups)
        menus = [self.group, self.entry]
        if scores := tuple(self.entries[0].completions[0].scores):
            self.order.options, self.order.index = scores, 0
            menus.append(self.order)
        super().__init__([*menus, self.view])

    def refill(self, groups: Groups) -> None:
        """Shows other groups, beginning with the first one, in the same menus."""
        self.groups, before = groups, self.group.value
        self.group.options = [(visible(name), name) for name in groups]  # chooses the first one, if one was chosen
        self.group.index = 0
        if self.group.value == before:  # then nobody was told of a change
            self._fill()

    def _fill(self) -> None:
        self.entries = list(self.groups[self.group.value])
        self.entry.options = [(visible(one.title), i) for i, one in enumerate(self.entries)]
        self.entry.index = 0
        self._show()

    def _show(self) -> None:
        if self.entry.value is not None:  # menus are empty for a moment while they are filled
            self.view.value = render(self.entries[self.entry.value], self.order.value)

    def _repr_mimebundle_(self, **settings: Any) -> dict[str, Any]:
        static = {"text/plain": "see the HTML", "text/html": page(self.groups, self.kinds)}
        return (super()._repr_mimebundle_(**settings) or {}) | static if is_watched() else static


class Comparison(Browser):
    """A browser of `before_and_after`, whose arguments it takes, with menus for the two policies."""

    def __init__(
        self,
        records: pd.DataFrame,
        batch: Sequence[Task],
        prompt: Prompt,
        before: tuple[str, int],
        after: tuple[str, int],
        split: str = "test",
    ) -> None:
        found = records.loc[records.split == split, ["checkpoint", "shots"]].drop_duplicates().to_numpy().tolist()
        policies = sorted(found, key=lambda one: evaluation.step_of(one[0]))
        options = [(f"{name}, {shots}-shot", (name, shots)) for name, shots in policies]
        self.before = ipywidgets.Dropdown(options=options, value=before, description="before")
        self.after = ipywidgets.Dropdown(options=options, value=after, description="after")
        self.compare = functools.partial(before_and_after, records, batch, prompt, split=split)
        super().__init__(self.compare(before, after))
        self.children = [self.before, self.after, *self.children]
        for menu in (self.before, self.after):
            menu.observe(lambda change: self.refill(self.compare(self.before.value, self.after.value)), names="value")
