"""What did GRPO teach about lists? `python benchmarks/list_errors.py`, seconds after `make reproduce RECIPE=cpu-lists`.

Sorts the greedy completions of the test tasks by where their numbering goes wrong, before and after GRPO, and writes
`benchmarks/results/cpu-lists-errors.md`.
"""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

import re
from collections import Counter
from pathlib import Path

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
from grpo_utils import evaluation, runs, tasks
from grpo_utils.extractors import extract_tag
from grpo_utils.runs import commands
from grpo_utils.tasks import Task

RESULTS = Path(__file__).parent / "results"
KINDS = (
    "right",
    "goes on too long",
    "stops too early",
    "numbers wrongly",
    "right work, other answer",
    "no work in its tags",
)


def kind_of(task: Task, text: str, is_right: bool) -> str:
    """Returns which of `KINDS` a completion is, by the things that its first section numbers."""
    if is_right:
        return "right"
    work = extract_tag(text, "reasoning")
    if work is None:
        return "no work in its tags"
    things, last = task.text.rstrip("?").partition(": ")[2].split(", "), int(task.columns()["answer"])
    numbered = re.findall(r"(\d+) (\w+)", work)
    if any(thing in things[last:] for _, thing in numbered):
        return "goes on too long"
    if numbered != [(str(i), thing) for i, thing in enumerate(things[: len(numbered)], start=1)]:
        return "numbers wrongly"
    return "stops too early" if len(numbered) < last else "right work, other answer"


def main() -> None:
    """Counts and writes the table."""
    recipe = runs.load_recipe("cpu-lists")
    run = runs.outputs_folder() / recipe.name
    runs.need_file(run / "results.csv", "05_checkpoint_evaluation")
    records, shots = evaluation.load_records(run), recipe.prompt.shots
    owners = {task.task_id: task for task in tasks.load_split(recipe, "test")}
    policies = {"warm start": runs.WARM_START, "GRPO": evaluation.choose_checkpoint(records, shots)}
    lines = [
        f"`python benchmarks/list_errors.py`: greedy completions of {len(owners)} test tasks, seed 0, by what becomes "
        "of the numbering. Grade 1 numbers the whole list, grades 2 and 3 must stop at the thing that is asked for.",
        "",
        f"| grade | policy | {' | '.join(KINDS)} |",
        "|---|---|" + "---|" * len(KINDS),
    ]
    for grade in (1, 2, 3):
        for who, name in policies.items():
            rows = evaluation.of_policy(records, name, "test", shots)
            rows = rows[(rows["sample"] < 0) & (rows.grade == grade)]
            each = zip(rows.task_id, rows.text, rows.strict, strict=True)
            found = Counter(kind_of(owners[task_id], text, is_right) for task_id, text, is_right in each)
            lines.append(f"| {grade} | {who} | {' | '.join(str(found[kind]) for kind in KINDS)} |")
    runs.write_file(RESULTS / "cpu-lists-errors.md", "\n".join([*lines, "", f"On {runs.processor()}."]) + "\n")
    print(*lines, sep="\n")


if __name__ == "__main__":
    commands.run_command(main)
