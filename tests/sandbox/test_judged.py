"""docs/judged.md is true: every row of its table is judged as it says, for a right program and a wrong one."""

import json
import re
from typing import NamedTuple

import pytest

from grpo_utils.runs import ROOT
from grpo_utils.sandbox import Sandbox
from grpo_utils.sandbox.judge import names
from grpo_utils.tasks import CodeTask, DataError, ScriptTask, Task

PAGE = (ROOT / "docs" / "judged.md").read_text(encoding="utf-8")
HOW = ("by value", "by the candidate", "unsupported")


class Row(NamedTuple):
    form: str
    test: str
    right: str
    wrong: str
    judged: str


def code_of(cell: str) -> str:
    """The lines of code in a cell, each in backticks; its indentation is of spaces that a browser keeps."""
    return "\n".join(re.findall(r"`([^`]*)`", cell)).replace("\u00a0", " ")


ROWS = [Row(*map(str.strip, line.strip("|").split("|"))) for line in PAGE.splitlines() if line.startswith("| ")][1:]


def task_of(row: Row) -> Task:
    if row.test.startswith("input"):
        given, wanted = re.findall(r"`([^`]*)`", row.test)
        content = {"task_id": 1, "text": row.form, "inputs": [given], "outputs": [wanted], "code": code_of(row.right)}
        return ScriptTask.from_row(content, "here")
    content = {"task_id": 1, "text": row.form, "test_list": [code_of(row.test)], "code": code_of(row.right)}
    return CodeTask.from_row(content, "here")


@pytest.fixture(scope="module")
def with_numpy():
    with Sandbox(workers=1, numpy=True) as made:
        yield made


def test_the_table_has_every_kind_of_verdict():
    assert len(ROWS) > 30
    assert {row.judged.partition(":")[0] for row in ROWS} == set(HOW)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.form)
def test_a_form_is_judged_as_the_page_says(row, sandbox, with_numpy):
    how, _, reason = row.judged.partition(": ")
    if row.form == "no assert":  # the file is refused before the sandbox is asked
        with pytest.raises(DataError, match="there are no tests"):
            task_of(row)
        task = CodeTask(task_id=1, text="", test_list=[code_of(row.test)], code=code_of(row.right))
    else:
        task = task_of(row)
    used = with_numpy if "numpy=True" in row.form else sandbox
    right, wrong = used.check_many([task.check(code_of(code)) for code in (row.right, row.wrong)])
    assert not wrong.ok
    if how == "unsupported":
        assert (right.status, right.error_message) == (how, reason)
    else:
        assert (right.ok, right.decided_by_candidate) == (True, how == "by the candidate")


def test_the_page_names_the_modules_that_tests_may_use():
    without, _, more = PAGE.partition("Tests need no import for")[2].partition("They may import those, and")
    assert set(re.findall(r"`([^`]*)`", without)) == names.IMPLICIT
    assert set(re.findall(r"`([^`]*)`", more.partition(", and what")[0])) == names.ALLOWED - names.IMPLICIT


def test_the_row_of_json_is_a_task(sandbox):
    (row,) = re.findall(r"```json\n(.*)\n```", PAGE)
    task = ScriptTask.from_row(json.loads(row), "here")
    assert sandbox.check_many([task.check(task.code)])[0].outcomes == ("passed", "passed")
