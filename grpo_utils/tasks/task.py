"""What every kind of task can tell about itself, and the chat that asks for it."""

import difflib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from grpo_utils.runs import Prompt, UserError
from grpo_utils.sandbox import Check, Script, Verdict

Message = dict[str, str]


class DataError(UserError):
    """A data set that cannot be used."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """One task of a data set; its fields are what JSON can hold.

    Attributes:
        task_id: number or name, unique in its split.
        text: what is asked, in words.
        grade: difficulty as the data set gives it, from 1 to 4, or None.
        DIFFICULTY: what `difficulty` counts, in words.
    """

    task_id: int | str
    text: str
    grade: int | None = None
    DIFFICULTY: ClassVar[str]

    @classmethod
    @abstractmethod
    def from_row(cls, row: Mapping[str, Any], where: str) -> Self:
        """Makes a task of one row of a data set, or raises a DataError that begins with `where`."""

    @property
    @abstractmethod
    def difficulty(self) -> int:
        """A proxy of difficulty that needs no model."""

    @property
    @abstractmethod
    def operations(self) -> list[str]:
        """What the reference does, one entry per use."""

    @property
    @abstractmethod
    def requirements(self) -> list[str]:
        """What an answer must satisfy, each as text, in the order of `Verdict.outcomes`."""

    @abstractmethod
    def shown(self, prompt: Prompt) -> int:
        """Returns how many of the requirements, and so of a verdict's outcomes, the prompt shows, from the first on."""

    @abstractmethod
    def question(self, prompt: Prompt) -> str:
        """Returns the user's message."""

    @property
    @abstractmethod
    def thoughts(self) -> tuple[str | None, str]:
        """What the reference thinks before its answer: in words of its own, or None, and as a template says it."""

    def spoken_thought(self, prompt: Prompt) -> str:
        """Returns what a reference answer has in its first tag, as `prompt.thoughts` says."""
        own, template = self.thoughts
        chosen = {"own": template if own is None else own, "template": template, "none": ""}
        return chosen[prompt.thoughts]

    @abstractmethod
    def reference_answer(self, prompt: Prompt) -> str | None:
        """Returns a right answer as a policy should write it, each section in its tags, or None if nobody has one."""

    @abstractmethod
    def wrong_answer(self, tags: Sequence[str]) -> str:
        """Returns an answer with the right format and a wrong result."""

    def columns(self) -> dict[str, Any]:
        """Returns what rewards read of this task, by column; `task` is all of it, for `task_of`."""
        return {"task": json.dumps([type(self).__name__, asdict(self)])}

    @abstractmethod
    def strict_answer(self, text: str, tag: str) -> str | None:
        """Returns the answer inside the tag of a completion, or None."""

    @abstractmethod
    def lenient_answer(self, text: str, tag: str) -> str | None:
        """Returns the answer in the tag or, failing that, from anywhere in a completion, or None."""

    @abstractmethod
    def candidates(self, text: str, tag: str) -> list[str]:
        """Returns every part of a completion that may be meant as its answer."""

    @abstractmethod
    def check(self, answer: str) -> Check | Script | Verdict:
        """Returns the verdict on an answer, or what the sandbox has to run for one."""


def require(row: Mapping[str, Any], needed: Mapping[str, Any], optional: Mapping[str, Any], where: str) -> None:
    """Raises a DataError that begins with `where` if a row lacks a key that it needs, or a value has another type.

    A key that nobody reads and that is nearly one that is missing is taken for a mistake in writing.

    `needed` and `optional` map keys to types, or unions of types; `task_id` and `grade` belong to every kind of task.
    """
    for key, kind in {"task_id": int | str, **needed}.items():
        if not isinstance(row.get(key), kind):
            found = f"{getattr(kind, '__name__', kind)}, not {type(row.get(key)).__name__}"  # a union has no name
            raise DataError(f"{where}: key {key!r} must be there and be of type {found}.")
    for key, kind in {"grade": int | None, **optional}.items():
        if key in row and not isinstance(row[key], kind):
            raise DataError(f"{where}: key {key!r} has a value of the wrong type.")
    known = {"task_id", "grade", *needed, *optional}
    for key in row.keys() - known:
        if meant := difflib.get_close_matches(key, known - row.keys(), 1, 0.75):
            raise DataError(f"{where}: nobody reads the key {key!r}; write {meant[0]!r}, or leave it out.")


def sections(tags: Sequence[str], thought: str, answer: str) -> str:
    """Returns a thought and an answer in their tags."""
    return f"<{tags[0]}>\n{thought}\n</{tags[0]}>\n<{tags[-1]}>\n{answer}\n</{tags[-1]}>"


def prompt_messages(task: Task, prompt: Prompt, shown: Sequence[Task]) -> list[Message]:
    """Returns the chat that asks for a task: the system prompt, `shown` tasks solved as earlier turns, the question.

    Raises:
        DataError: a shown task has no reference.
    """
    chat = [{"role": "system", "content": prompt.system}]
    for example in shown:
        answer = example.reference_answer(prompt)
        if answer is None:
            raise DataError(f"Task {example.task_id!r} cannot be shown solved: it has no reference.")
        chat += [{"role": "user", "content": example.question(prompt)}, {"role": "assistant", "content": answer}]
    return [*chat, {"role": "user", "content": task.question(prompt)}]


def columns(batch: Sequence[Task]) -> dict[str, list[Any]]:
    """Returns the columns that rewards read, one entry per task; all tasks are of one kind."""
    rows = [task.columns() for task in batch]
    return {name: [row[name] for row in rows] for name in rows[0]}
