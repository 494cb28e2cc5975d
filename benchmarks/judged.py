"""How much of what people have can the sandbox judge? `python benchmarks/judged.py`, about a minute.

Every task of the data sets that are here, and every form of `tests/sandbox/data/forms.jsonl`, written by hand after the
public shapes of MBPP, HumanEval(+), LeetCode, LiveCodeBench and pytest, each with a right program and a wrong one. It
writes `benchmarks/results/judged.md`. MBPP is read from `GRPO_DATA_DIR`, HumanEval from its package.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from configurations import RESULTS

from grpo_utils import evaluation, runs, tasks
from grpo_utils.runs import commands
from grpo_utils.sandbox import Check, Sandbox, Script, Verdict

FORMS = runs.ROOT / "tests" / "sandbox" / "data" / "forms.jsonl"
TIMEOUT = 20.0  # seconds: the reference of MBPP 123 computes for about 3
Pair = tuple[Check | Script, Check | Script]


def of_data_set(name: str, splits: tuple[str, ...]) -> list[Pair]:
    """Returns for every task the check of its reference, and of the same with a wrong result."""
    prompt, pairs = runs.load_recipe("cpu-code").prompt, []
    for task in [task for split in splits for task in tasks.load_tasks(name, split)]:
        assert isinstance(task, tasks.CodeTask)
        wrong = task.strict_answer(task.wrong_answer(prompt.tags), prompt.tags[-1])
        pairs.append((task.check(task.code), task.check(wrong or "")))
    return pairs


def check_of_form(form: dict[str, Any], side: str) -> Check | Script:
    """Returns the check of a form's "right" or "wrong" program."""
    if "pairs" in form:
        return Script(form[side], form["pairs"])
    return Check(form[side], form["tests"], form["names"], form["setup"])


def row(name: str, pairs: list[Pair], sandbox: Sandbox) -> tuple[list[str], Counter[str]]:
    """Returns a row of the table, and the reasons of what is unsupported with their numbers."""
    right, wrong = (sandbox.check_many([pair[side] for pair in pairs]) for side in (0, 1))
    kinds = Counter("right" if one.ok else one.status for one in right)
    reasons = Counter(one.error_message for one in right if one.status == "unsupported")
    others = len(right) - kinds["right"] - kinds["unsupported"]
    counts = [kinds["right"], kinds["unsupported"], others, sum(map(_is_fooled, wrong))]
    return [name, str(len(right)), *(f"{count} ({count / len(right):.1%})" for count in counts)], reasons


def _is_fooled(verdict: Verdict) -> bool:
    return verdict.ok and not verdict.decided_by_candidate


def main() -> None:
    """Judges everything and writes the table."""
    sets = {"starter": tasks.SPLITS, "human-eval": ("test",)}
    folder = os.environ.get("GRPO_DATA_DIR")
    if folder and (Path(folder) / "mbpp").is_dir():
        sets["mbpp"] = tasks.SPLITS
    rows, reasons = [], Counter[str]()
    with Sandbox(timeout=TIMEOUT) as sandbox:
        forms = map(json.loads, FORMS.read_text(encoding="utf-8").splitlines())
        named = {name: of_data_set(name, splits) for name, splits in sets.items()}
        named["forms by hand"] = [(check_of_form(form, "right"), check_of_form(form, "wrong")) for form in forms]
        for name, pairs in named.items():
            found, why = row(name, pairs, sandbox)
            rows.append(found)
            reasons += why
    head = ["tests of", "number", "right programs passed", "unsupported", "judged wrong", "wrong programs passed"]
    lines = [
        "`python benchmarks/judged.py`: what becomes of a right and of a wrong program for each test. *Judged wrong*: "
        "a right program that is neither passed nor unsupported.",
        "",
        *evaluation.markdown_table(head, rows),
        "",
        "Why tests are unsupported, by number:",
        "",
        *(f"- {count}: {why}" for why, count in reasons.most_common()),
        "",
        f"On {runs.processor()}.",
    ]
    runs.write_file(RESULTS / "judged.md", "\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    commands.run_command(main)
