"""Word problems whose answer is a number, in GSM8K's schema (Cobbe et al. 2021, arXiv 2110.14168)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from grpo_utils.extractors import extract_final_number, extract_hash_answer, extract_numbers, extract_tag
from grpo_utils.recipes import Prompt
from grpo_utils.sandbox import Verdict

from .task import DataError, Task, sections

CALCULATOR = re.compile(r"<<[^<>]*>>")  # GSM8K's notes for a calculator, which repeat the equation before them
SIGNS: dict[str, str] = {"x": "*", "\u00d7": "*", "\u00f7": "/"}
OPERATION = re.compile(r"(?<=[0-9.)%]) *([-+*/x\u00d7\u00f7]) *(?=[$0-9.(])")


@dataclass(frozen=True, kw_only=True)
class MathsTask(Task):
    """A problem with a worked solution, one step a line, and its gold number.

    Attributes:
        solution: the worked solution.
        answer: the gold number as text, without separators.
    """

    solution: str
    answer: str
    DIFFICULTY: ClassVar[str] = "steps in the worked solution"

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str) -> Self:
        """Makes a task of a row of GSM8K: a `question`, and an `answer` that ends in `####` and the gold number."""
        for key, kind in (("question", str), ("answer", str), ("task_id", int)):
            if not isinstance(row.get(key), kind):
                raise DataError(f"{where}: key {key!r} must be there and be of type {kind.__name__}.")
        if not isinstance(row.get("grade"), int | None):
            raise DataError(f"{where}: key 'grade' has a value of the wrong type.")
        gold = extract_hash_answer(row["answer"])
        if gold is None or extract_final_number(gold) is None:
            raise DataError(f"{where}: the answer must end in '#### ' and the gold number.")
        solution = CALCULATOR.sub("", row["answer"].rpartition("####")[0]).strip()
        return cls(task_id=row["task_id"], text=row["question"], grade=row.get("grade"), solution=solution, answer=gold)

    @property
    def difficulty(self) -> int:
        """Number of steps, one per line of the worked solution."""
        return sum(bool(line.strip()) for line in self.solution.splitlines())

    @property
    def operations(self) -> list[str]:
        """The arithmetic signs of the worked solution."""
        return [SIGNS.get(sign, sign) for sign in map(str, OPERATION.findall(self.solution))]

    @property
    def requirements(self) -> list[str]:
        """The gold number."""
        return [f"the number is {self.answer}"]

    def shown(self, prompt: Prompt) -> int:
        """Returns 0: no prompt shows the gold number."""
        return 0

    def question(self, prompt: Prompt) -> str:
        """Returns the problem as it stands."""
        return self.text

    def reference_answer(self, tags: Sequence[str]) -> str:
        """Returns the worked solution and the gold number.

        Example:
        ```python
        >>> row = {"task_id": 0, "question": "6 * 7 - 2?", "answer": "6 * 7 = <<6*7=42>>42\\n42 - 2 = 40\\n#### 40"}
        >>> print(MathsTask.from_row(row, "here").reference_answer(("reasoning", "answer")))
        <reasoning>
        6 * 7 = 42
        42 - 2 = 40
        </reasoning>
        <answer>
        40
        </answer>

        ```
        """
        return sections(tags, self.solution, self.answer)

    def wrong_answer(self, tags: Sequence[str]) -> str:
        """Returns the worked solution with a number that is a tenth too large."""
        gold = int(extract_final_number(self.answer) or 0)
        return sections(tags, self.solution, str(gold + abs(gold) // 10 + 1))

    def columns(self) -> dict[str, Any]:
        """Returns the column `answer`, the gold number as text."""
        return {"answer": self.answer}

    def strict_answer(self, text: str, tag: str) -> str | None:
        """Returns what stands in the tag."""
        return extract_tag(text, tag)

    def lenient_answer(self, text: str, tag: str) -> str | None:
        """Returns what stands in the tag, else the whole text if there is a number in it: its last one will count."""
        tagged = extract_tag(text, tag)
        return text if tagged is None and extract_final_number(text) is not None else tagged

    def candidates(self, text: str, tag: str) -> list[str]:
        """Returns every number in a completion: a generous upper bound, since numbers of the question count too."""
        return [str(number) for number in extract_numbers(text)]

    def check(self, answer: str) -> Verdict:
        """Returns "passed" if the final number of an answer is exactly the gold number, however either is written."""
        number = extract_final_number(answer)
        if number is None:
            return Verdict("error", 0, 1, ("error",), "NoNumber")
        right = number == extract_final_number(self.answer)
        return Verdict("passed", 1, 1, ("passed",)) if right else Verdict("failed", 0, 1, ("failed",))
