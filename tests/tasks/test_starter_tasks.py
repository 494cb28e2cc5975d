"""The starter tasks are sound: references pass, lazy solutions fail, and no function stands in two splits."""

# which kind of task a data set has is not known to the types
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOptionalSubscript=false

import ast
import builtins
import re
from collections import Counter

import pytest

from grpo_utils import tasks
from grpo_utils.sandbox import Check

SPLITS = {split: tasks.load_tasks("starter", split) for split in tasks.SPLITS}
EVERY = [(split, task) for split, batch in SPLITS.items() for task in batch]


def call_of(test: str) -> tuple[str, list, object]:
    """`assert f(1, 2) == 3` -> ("f", [1, 2], 3)."""
    statement = ast.parse(test).body[0]
    assert isinstance(statement, ast.Assert)
    comparison = statement.test
    assert isinstance(comparison, ast.Compare)
    call = comparison.left
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    return call.func.id, [ast.literal_eval(arg) for arg in call.args], ast.literal_eval(comparison.comparators[0])


def lazy_solutions(task: tasks.CodeTask) -> dict[str, str]:
    """Programs that a policy might find instead of solving the task."""
    name, _, first = call_of(task.test_list[0])
    constants = {f"constant {value!r}": repr(value) for value in (0, 1, -1, True, False, "", [], {}, None)}
    bodies = constants | {"identity": "a[0]", "last argument": "a[-1]", "first test's answer": repr(first)}
    return {label: f"def {name}(*a):\n    return {body}" for label, body in bodies.items()} | {"empty": ""}


def off_by_one(task: tasks.CodeTask) -> str:
    """The reference, with every result a little wrong."""
    name = call_of(task.test_list[0])[0]
    return (
        f"{task.code}\n_right = {name}\n"
        "def _wrong(v):\n"
        "    if isinstance(v, bool): return not v\n"
        "    if isinstance(v, (int, float)): return v + 1\n"
        "    if isinstance(v, (str, list, tuple)) and v: return v[:-1]\n"
        "    if isinstance(v, dict) and v: return dict(list(v.items())[:-1])\n"
        "    if isinstance(v, set) and v: return set(list(v)[:-1])\n"
        "    return [v]\n"
        f"def {name}(*a):\n    return _wrong(_right(*a))"
    )


def shape_of(code: str) -> str:
    """The syntax tree with names of the author's and constants taken out."""
    tree = ast.parse(code)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.name = "f"
        elif isinstance(node, ast.arg):
            node.arg = names.setdefault(node.arg, f"v{len(names)}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
            node.id = names.setdefault(node.id, f"v{len(names)}")
        elif isinstance(node, ast.Constant):
            node.value = type(node.value).__name__
    return ast.dump(tree)


def test_there_are_enough_tasks_of_every_grade():
    sizes = {split: len(batch) for split, batch in SPLITS.items()}
    assert sizes["train"] >= 240
    assert sizes["validation"] >= 60
    assert sizes["test"] >= 120
    assert sizes["prompt"] >= 8
    for split in ("train", "validation", "test"):
        grades = Counter(task.grade for task in SPLITS[split])
        assert all(grades[grade] >= len(SPLITS[split]) * 0.1 for grade in (1, 2, 3, 4)), grades


def test_every_task_has_enough_asserts_and_its_own_number():
    assert len({task.task_id for _, task in EVERY}) == len(EVERY)
    for _, task in EVERY:
        assert len(task.test_list) >= 3, task.text
        assert len(task.challenge_test_list) >= 2, task.text
        assert len(set(task.asserts)) == len(task.asserts), task.text


def test_every_reference_passes_all_its_asserts(sandbox):
    verdicts = sandbox.check_many([Check(task.code, task.asserts, task.function_names) for _, task in EVERY])
    assert [task.text for (_, task), verdict in zip(EVERY, verdicts, strict=True) if not verdict.ok] == []


def test_every_lazy_solution_fails_the_test_list_alone(sandbox):
    cases = [(task, label, code) for _, task in EVERY for label, code in lazy_solutions(task).items()]
    cases += [(task, "off by one", off_by_one(task)) for _, task in EVERY]
    verdicts = sandbox.check_many([Check(code, task.test_list, task.function_names) for task, _, code in cases])
    passed = [(task.text, label) for (task, label, _), verdict in zip(cases, verdicts, strict=True) if verdict.ok]
    assert passed == []


def test_no_reference_has_the_shape_of_one_in_another_split():
    splits_of: dict[str, set[str]] = {}
    for split, task in EVERY:
        splits_of.setdefault(shape_of(task.code), set()).add(split)
    assert [shape for shape, splits in splits_of.items() if len(splits) > 1] == []


def test_no_function_behaves_like_one_in_another_split(sandbox):
    """Twins pass each other's asserts; only functions that take arguments of the same types can."""
    kinds = {task.task_id: [type(argument) for argument in call_of(task.asserts[0])[1]] for _, task in EVERY}
    pairs = [
        (candidate, task)
        for split, candidate in EVERY
        for other, task in EVERY
        if split < other and kinds[candidate.task_id] == kinds[task.task_id]
    ]
    suspects = [pair for pair, passes in zip(pairs, passes_of(pairs, sandbox), strict=True) if passes]
    turned = [(task, candidate) for candidate, task in suspects]
    twins = [(a.text, b.text) for (a, b), passes in zip(turned, passes_of(turned, sandbox), strict=True) if passes]
    assert twins == []


def passes_of(pairs: list[tuple[tasks.CodeTask, tasks.CodeTask]], sandbox) -> list[bool]:
    """Whether the first task's function, under the other's name, passes the second task's asserts."""
    checks = []
    for candidate, task in pairs:
        own, other = candidate.function_names[0], task.function_names[0]
        checks.append(Check(f"{candidate.code}\n{other} = {own}", task.asserts, [other], timeout=1.0))
    return [verdict.ok for verdict in sandbox.check_many(checks)]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_no_text_is_nearly_a_text_of_another_split(split):
    seen = {frozenset(task.text.lower().split()) for other, task in EVERY if other != split}
    near = [
        task.text
        for task in SPLITS[split]
        for words in [frozenset(task.text.lower().split())]
        if any(len(words & other) / len(words | other) > 0.9 for other in seen)
    ]
    assert near == []


SMALL = {
    *(
        "a",
        "an",
        "the",
        "this",
        "them",
        "their",
        "it",
        "its",
        "i",
        "that",
        "which",
        "one",
        "each",
        "every",
        "all",
        "no",
    ),
    *("of", "in", "to", "and", "or", "with", "for", "by", "on", "at", "as", "from", "into", "if", "then", "so", "not"),
    *("is", "are", "be", "than", "when", "where", "only"),
}


def words(text: str) -> set[str]:
    """The words of a text that carry meaning, without their plural."""
    return {word.rstrip("s") for word in re.findall(r"[a-z]+", text.lower())} - SMALL


def test_every_task_has_a_thought_of_its_own_in_a_line_or_two():
    thoughts = [task.thought for _, task in EVERY]
    assert len(set(thoughts)) == len(thoughts)
    assert all(re.fullmatch(r"[ -~]{30,120}", thought) and thought.endswith(".") for thought in thoughts)
    assert not [thought for thought in thoughts if re.search(r"</?\w+>", thought)]


@pytest.mark.parametrize("split", SPLITS)
def test_a_thought_says_how_and_does_not_repeat_the_question_or_the_code(split):
    for task in SPLITS[split]:
        said, lines = words(task.thought), [line.strip().removeprefix("return ") for line in task.code.splitlines()[1:]]
        new = said - words(task.text)
        assert len(new) >= max(3, 0.45 * len(said)), (task.task_id, task.thought)
        assert not [line for line in lines if len(line) > 12 and line in task.thought], (task.task_id, task.thought)
