"""Whole programs from standard input to standard output, in a schema of our own or APPS's (arXiv 2105.09938).

Evaluation and rewards judge them as functions (see `code`): a pair of input and output is what an assert is there.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any, Self

from grpo_utils.runs import Prompt

from .code import ProgramTask, require_python
from .task import DataError, require, sections

GRADES = {"introductory": 1, "interview": 2, "competition": 3}  # of APPS
LONGEST = 60  # characters of an input or output in a sentence


@dataclass(frozen=True, kw_only=True)
class ScriptTask(ProgramTask):
    """A whole program to write.

    Attributes:
        inputs: what the program reads from its standard input, one text for each run.
        outputs: what it must then print. Blanks at the ends of lines and of the text do not count.
    """

    inputs: list[str]
    outputs: list[str]

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str) -> Self:
        """Makes a task of a row with `text`, `inputs`, `outputs` and, if there is one, `code`, or of a row of APPS.

        An input or output may be a list of lines. Of APPS the first of the `solutions` is the reference.
        """
        row = _of_apps(row, where) if "input_output" in row else row
        require(row, {"text": str, "inputs": list, "outputs": list}, {"code": str, "thought": str}, where)
        inputs, outputs = ([_text(one, where) for one in row[key]] for key in ("inputs", "outputs"))
        if not inputs or len(inputs) != len(outputs):
            counts = f"{len(inputs)} inputs and {len(outputs)} outputs"
            raise DataError(f"{where}: there are {counts}; give at least one, and an output for each.")
        require_python(code := row.get("code", ""), where)
        kept: dict[str, Any] = {key: row.get(key) for key in ("task_id", "text", "grade", "thought")}
        return cls(**kept, code=code, inputs=inputs, outputs=outputs)

    @property
    def requirements(self) -> list[str]:
        pairs = zip(self.inputs, self.outputs, strict=True)
        return [" -> ".join(repr(shorten(text, LONGEST, placeholder="...")) for text in pair) for pair in pairs]

    def shown(self, prompt: Prompt) -> int:
        return min(prompt.visible_asserts, len(self.inputs))

    def question(self, prompt: Prompt) -> str:
        ask = "Write a whole program that reads standard input and prints to standard output."
        shown = self.shown(prompt)
        if not shown:
            return f"{self.text}\n{ask}"
        lines = [self.text, f"{ask} It must pass {'these tests' if shown > 1 else 'this test'}:"]
        for given, wanted in zip(self.inputs[:shown], self.outputs[:shown], strict=True):
            lines += ["Input:", given.rstrip(), "Output:", wanted.rstrip()]
        return "\n".join(lines)

    @property
    def thoughts(self) -> tuple[str | None, str]:
        aim = self.text.split(". ")[0].rstrip(".")
        return self.thought, f"I read the input, solve this, and print the result: {aim}."

    def reference_answer(self, prompt: Prompt) -> str | None:
        code = self.code.replace("\r\n", "\n").strip()
        return sections(prompt.tags, self.spoken_thought(prompt), code) if code else None

    def wrong_answer(self, tags: Sequence[str]) -> str:
        """Returns the reference with a heading above its output: it reads and prints, and the output is wrong."""
        return sections(tags, "So I print it.", f'print("Here is the result:")\n{self.code}')

    def columns(self) -> dict[str, Any]:
        return {**super().columns(), "inputs": self.inputs, "outputs": self.outputs}


def _of_apps(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A row of APPS, which holds JSON in texts, with the keys of ours."""
    pairs, solutions = (_json(row, key, where) for key in ("input_output", "solutions"))
    if not isinstance(pairs, dict):
        raise DataError(f"{where}: 'input_output' must be an object with 'inputs' and 'outputs', not {pairs!r:.80}.")
    if "fn_name" in pairs:
        raise DataError(
            f"{where}: 'fn_name' asks for a function; give such a task as `code`, with asserts in `test_list`."
        )
    if not isinstance(solutions or [], list):
        raise DataError(f"{where}: 'solutions' must be a list of programs, not {solutions!r:.80}.")
    grade = GRADES.get(str(row.get("difficulty")))
    given = {"inputs": pairs.get("inputs"), "outputs": pairs.get("outputs"), "code": solutions[0] if solutions else ""}
    return {"text": row.get("question"), "grade": grade, **given, **row}


def _json(row: Mapping[str, Any], key: str, where: str) -> Any:
    value = row.get(key)
    try:
        return json.loads(value) if isinstance(value, str) and value else value
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: {key!r} is not JSON: {error}.") from error


def _text(value: Any, where: str) -> str:
    """An input or output, which some files have as a list of lines."""
    lines = value if isinstance(value, list) else [value]
    if not all(isinstance(line, str) for line in lines):
        raise DataError(f"{where}: an input or output must be text, or a list of lines, not {value!r:.80}.")
    return "\n".join(lines)
