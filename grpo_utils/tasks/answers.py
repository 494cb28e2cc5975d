"""Questions whose answer is a letter (multiple choice) or a short text, as in ARC, MMLU, TriviaQA or SQuAD.

A row has a `question`, and `choices` with the right one as `answer` (its letter, its place from 0 on, or its text), or
`answers`, the texts that count as right. `correct` pays for either.
"""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from grpo_utils.extractors import extract_tag
from grpo_utils.runs import Prompt
from grpo_utils.sandbox import Verdict

from .task import DataError, Task, require, sections

LETTERS = string.ascii_uppercase
ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@dataclass(frozen=True, kw_only=True)
class AnswerTask(Task):
    """A question with a short answer.

    Attributes:
        choices: texts to choose from, or none.
        answers: what counts as right: texts, or the one letter of a choice.
        thought: a reasoning that leads there, in words of the data set's own.
    """

    choices: list[str]
    answers: list[str]
    thought: str | None = None
    DIFFICULTY: ClassVar[str] = "choices"

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str) -> Self:
        """Makes a task of a row with `question` and either `choices` and `answer`, or `answers`."""
        require(row, {"question": str}, {"choices": list, "answer": object, "answers": list, "thought": str}, where)
        choices, answers = ([str(one) for one in row.get(key, [])] for key in ("choices", "answers"))
        if len(choices) > len(LETTERS):
            raise DataError(f"{where}: at most {len(LETTERS)} `choices` have a letter each.")
        if choices:
            answers = [_letter(row.get("answer"), choices, where)]
        if not all(map(_plain, answers)) or not answers:
            raise DataError(f"{where}: give the right answer as a text in `answers`, or as `answer` with `choices`.")
        own = {"task_id": row["task_id"], "text": row["question"], "grade": row.get("grade")}
        return cls(**own, choices=choices, answers=answers, thought=row.get("thought"))

    @property
    def difficulty(self) -> int:
        return len(self.choices)

    @property
    def operations(self) -> list[str]:
        return []

    @property
    def requirements(self) -> list[str]:
        return [f"the answer is {' or '.join(self.answers)}"]

    def shown(self, prompt: Prompt) -> int:
        return 0

    def question(self, prompt: Prompt) -> str:
        """Returns the user's message, in which choices have letters.

        Example:
            >>> from grpo_utils import runs
            >>> row = {"task_id": 0, "question": "Which is a fruit?", "choices": ["spoon", "apple"], "answer": "apple"}
            >>> print(AnswerTask.from_row(row, "here").question(runs.load_recipe("cpu-code").prompt))
            Which is a fruit?
            A. spoon
            B. apple
        """
        return "\n".join([self.text, *(f"{letter}. {one}" for letter, one in zip(LETTERS, self.choices, strict=False))])

    @property
    def thoughts(self) -> tuple[str | None, str]:
        return self.thought, "I know this one."

    def reference_answer(self, prompt: Prompt) -> str:
        return sections(prompt.tags, self.spoken_thought(prompt), self.answers[0])

    def wrong_answer(self, tags: Sequence[str]) -> str:
        """Returns another choice, or no answer at all in words."""
        other = next((one for one in LETTERS[: len(self.choices)] if one not in self.answers), "I do not know")
        return sections(tags, "So this.", other)

    def strict_answer(self, text: str, tag: str) -> str | None:
        return extract_tag(text, tag)

    def lenient_answer(self, text: str, tag: str) -> str | None:
        """Returns what stands in the tag, or else the last line that says something."""
        lines = [line for line in text.splitlines() if line.strip()]
        tagged = extract_tag(text, tag)
        return tagged if tagged is not None or not lines else lines[-1]

    def candidates(self, text: str, tag: str) -> list[str]:
        return [line for line in text.splitlines() if line.strip()]

    def check(self, answer: str) -> Verdict:
        """Returns whether an answer is a right one, up to case, punctuation and articles (as SQuAD, arXiv 1606.05250).

        Of choices a letter counts, also as in `(B)`, `B.` or `B. apple`, and the text of the choice.

        Example:
            >>> task = AnswerTask(task_id=0, text="?", choices=["a spoon", "an apple"], answers=["B"])
            >>> [task.check(answer).status for answer in ("(b)", "B. an apple", "Apple!", "A", "both")]
            ['passed', 'passed', 'passed', 'failed', 'failed']
        """
        right = [_plain(one) for one in self.answers]
        if self.choices:
            right = [_plain(self.choices[LETTERS.index(self.answers[0])])]
        is_right = _plain(answer) in right
        if self.choices and (found := re.match(r"\W*([A-Za-z])(?:\W|$)", answer)):
            letter, rest = found[1].upper(), _plain(answer[found.end() :])
            if not rest or rest in map(_plain, self.choices[LETTERS.index(letter) :][:1]):
                is_right = letter == self.answers[0]
        status = "passed" if is_right else "failed"
        return Verdict(status, int(is_right), 1, (status,))


def _letter(answer: Any, choices: Sequence[str], where: str) -> str:
    """The letter of the right choice, which a row names by letter, place or text."""
    if isinstance(answer, int) and 0 <= answer < len(choices):
        return LETTERS[answer]
    if answer in choices:
        return LETTERS[choices.index(answer)]
    if isinstance(answer, str) and len(answer) == 1 and answer.upper() in LETTERS[: len(choices)]:
        return answer.upper()
    raise DataError(f"{where}: `answer` must be the letter, the place from 0 on, or the text of one of the `choices`.")


def _plain(text: str) -> str:
    """A text without case and punctuation, and without articles unless it has nothing else, with single spaces."""
    words = "".join(" " if one in string.punctuation else one for one in text.lower())
    return " ".join((ARTICLES.sub(" ", words).strip() or words).split())
