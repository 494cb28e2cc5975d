"""Word problems whose answer is a number, in GSM8K's schema (Cobbe et al. 2021, arXiv 2110.14168).

Evaluation and rewards compare an answer with the gold number by the same function, `matches`.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, Self

from grpo_utils.extractors import extract_final_number, extract_numbers, extract_tag, is_number
from grpo_utils.runs import Prompt
from grpo_utils.sandbox import Verdict

from .task import DataError, Task, require, sections

CALCULATOR = re.compile(r"<<[^<>]*>>")  # GSM8K's notes for a calculator, which repeat the equation before them
UNGROUPED = re.compile(r",(?:\d{1,2}|\d{4,})(?![\d,])", re.ASCII)  # a comma that stands before decimals
SIGNS: dict[str, str] = {"x": "*", "\u00d7": "*", "\u00f7": "/"}
OPERATION = re.compile(r"(?<=[0-9.)%]) *([-+*/x\u00d7\u00f7]) *(?=[$0-9.(])")


@dataclass(frozen=True, kw_only=True)
class MathsTask(Task):
    """A problem with a worked solution, one step a line, and its gold number.

    Attributes:
        solution: the worked solution, or "".
        answer: the gold number as text, without separators.
    """

    solution: str
    answer: str
    DIFFICULTY: ClassVar[str] = "steps in the worked solution"

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str) -> Self:
        """Makes a task of a row of GSM8K: a `question`, and an `answer` that ends in `####` and the gold number.

        An `answer` that is a number and nothing else, as text or not, is the gold number without a worked solution.
        """
        require(row, {"question": str, "answer": str | int | float}, {}, where)
        answer = row["answer"]
        whole = isinstance(answer, float) and answer.is_integer()  # as tables write integers where a value is missing
        answer = str(int(answer) if whole else answer).strip()
        solution, marked, written = answer.rpartition("####")
        written = written.strip()
        if not (marked or is_number(answer)) or extract_final_number(written) is None:
            raise DataError(f"{where}: the answer must be a number, or end in '#### ' and the gold number.")
        with_decimals = UNGROUPED.search(written)
        if with_decimals and not is_number(written):
            raise DataError(
                f"{where}: the comma in the gold number {written!r} groups no thousands: write a point for decimals."
            )
        gold = written if with_decimals else written.replace(",", "").replace("$", "")
        solution = CALCULATOR.sub("", solution).strip()
        return cls(task_id=row["task_id"], text=row["question"], grade=row.get("grade"), solution=solution, answer=gold)

    @property
    def difficulty(self) -> int:
        return sum(bool(line.strip()) for line in self.solution.splitlines())

    @property
    def operations(self) -> list[str]:
        return [SIGNS.get(sign, sign) for sign in map(str, OPERATION.findall(self.solution))]

    @property
    def requirements(self) -> list[str]:
        return [f"the number is {self.answer}"]

    def shown(self, prompt: Prompt) -> int:
        return 0  # no prompt shows the gold number

    def question(self, prompt: Prompt) -> str:
        return self.text

    @property
    def thoughts(self) -> tuple[str | None, str]:
        return self.solution or None, "I work it out step by step."

    def reference_answer(self, prompt: Prompt) -> str:
        return sections(prompt.tags, self.spoken_thought(prompt), self.answer)

    def wrong_answer(self, tags: Sequence[str]) -> str:
        """Returns the worked solution with a number that is a tenth too large."""
        gold = int(extract_final_number(self.answer) or 0)
        return sections(tags, self.solution, str(gold + abs(gold) // 10 + 1))

    def columns(self) -> dict[str, Any]:
        return {**super().columns(), "answer": self.answer}

    def strict_answer(self, text: str, tag: str) -> str | None:
        return extract_tag(text, tag)

    def lenient_answer(self, text: str, tag: str) -> str | None:
        tagged = extract_tag(text, tag)  # else the whole text, of which the last number will count
        return text if tagged is None and extract_final_number(text) is not None else tagged

    def candidates(self, text: str, tag: str) -> list[str]:
        return [str(number) for number in extract_numbers(text)]  # generous: numbers of the question count too

    def check(self, answer: str) -> Verdict:
        if matches(answer, self.answer):
            return Verdict("passed", 1, 1, ("passed",))
        if _number(answer) is None:
            return Verdict("error", 0, 1, ("error",), "NoNumber")
        return Verdict("failed", 0, 1, ("failed",))


def matches(answer: str | None, gold: object, equal: Callable[[Fraction, Fraction], bool] = operator.eq) -> bool | None:
    """Whether the final number of an answer is the gold number, however either is written.

    An answer of None, where there is no tag, is wrong. The result is None where `gold` has no number.

    Example:
        >>> matches("It is $1,000.", 1000.0), matches("1,001", "1000"), matches("1,000", "a thousand")
        (True, False, None)
    """
    target = _number(gold if isinstance(gold, str) else str(gold))
    if target is None:
        return None
    number = None if answer is None else _number(answer)
    return number is not None and equal(number, target)


_number_of_short = lru_cache(maxsize=4096)(extract_final_number)


def _number(text: str) -> Fraction | None:
    """Remembers short texts: a group shares its gold answer, and several rewards read the same completions."""
    return _number_of_short(text) if len(text) <= 100 else extract_final_number(text)
