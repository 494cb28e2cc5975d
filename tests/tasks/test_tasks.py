"""Tasks: malformed data is refused by file and line, prompts show what they should, filters filter."""

# which kind of task a data set has is not known to the types
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOptionalSubscript=false

import json
import math
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from grpo_utils import runs, tasks
from grpo_utils.sandbox import Check, asserts_of
from grpo_utils.tasks import DataError

PROMPT = runs.load_recipe("cpu-code").prompt
GOOD = {
    "task_id": 1,
    "text": "Write a function to add.",
    "code": "def add(a, b): return a + b",
    "test_list": ["assert 1"],
}

OPTIONAL = ("test_setup_code", "challenge_test_list", "prelude", "test_imports", "grade", "prompt")
WORD_PROBLEM = {"question": "6 * 7?", "answer": "6 * 7 = <<6*7=42>>42\n#### 42"}
DATA = os.environ.get("GRPO_DATA_DIR")


def write(folder, lines, name="mine"):
    (folder / name).mkdir()
    (folder / name / "train.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"train\.jsonl, line 2 is not JSON"),
        ("[1]", r"line 2: a task is a JSON object"),
        (
            json.dumps({key: value for key, value in GOOD.items() if key != "text"}),
            r"task 1: key 'text' must be there",
        ),
        (
            json.dumps(GOOD | {"task_id": 1.5}),
            r"line 2, task 1.5: key 'task_id' must be .* int \| str, not float",
        ),
        (json.dumps(GOOD | {"grade": "easy"}), r"task 1: key 'grade' has a value of the wrong type"),
        (
            json.dumps(GOOD | {"challenge_test_list": "assert 1"}),
            r"task 1: key 'challenge_test_list' has a value",
        ),
        (json.dumps(GOOD | {"test_imports": "import re"}), r"task 1: key 'test_imports' has a value"),
        (json.dumps(GOOD), r"line 2, task 1: line 1 has the same task_id; number them apart"),
        (json.dumps(GOOD | {"task_id": "2"}), r"line 2, task '2': a task_id is a number or a text, and 1 is the other"),
        (json.dumps(GOOD | {"prelude": ["import re"]}), r"task 1: key 'prelude' has a value"),
        (json.dumps(GOOD | {"test_list": []}), r"task 1: there are no tests"),
        (json.dumps(GOOD | {"test_list": None}), r"task 1: key 'test_list' must be there"),
        (json.dumps(GOOD | {"test_list": ["add(1, 2)"]}), r"task 1: there are no tests"),
        (json.dumps(GOOD | {"test_list": ["assert 1", ""]}), r"task 1: the test '' asserts nothing"),
        (json.dumps(GOOD | {"test_list": ["# assert 1"]}), r"task 1: the test '# assert 1' asserts nothing"),
        (
            json.dumps(GOOD | {"test_list": ["add(1, 2) == 3"]}),
            r"task 1: the test 'add\(1, 2\) == 3' asserts nothing",
        ),
        (
            json.dumps(GOOD | {"challenge_test_list": ["assert ("]}),
            r"task 1: the test 'assert \(' is not Python",
        ),
        (json.dumps(GOOD | {"test_list": "assert 1"}), r"task 1: key 'test_list' must be .* list, not str"),
        (json.dumps(GOOD | {"code": "# later"}), r"task 1: the reference solution in 'code' has no code"),
        (json.dumps(GOOD | {"code": 1}), r"task 1: key 'code' has a value of the wrong type"),
        (
            json.dumps(WORD_PROBLEM | {"task_id": 2}),
            r"line 2, task 2 has the keys of a MathsTask, .* of a CodeTask",
        ),
        (json.dumps(GOOD | {"test_list": [1]}), r"task 1: a test must be text, not 1"),
        (json.dumps(GOOD | {"code": "def ("}), r"task 1: the reference solution is not Python"),
    ],
)
def test_a_malformed_line_is_named_with_its_file(line, message, tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path))
    write(tmp_path, [json.dumps(GOOD), line])
    with pytest.raises(DataError, match=message):
        tasks.load_tasks("mine", "train")


PLAIN = [json.dumps(GOOD), json.dumps(GOOD | {"task_id": 2, "text": "Größe \u2028 2."}, ensure_ascii=False)]


@pytest.mark.parametrize(
    "written",
    [
        "\ufeff" + "\n".join(PLAIN),
        "\n" + "\n\n  \n".join(PLAIN) + "\n\n\n",
        "\r\n".join([*PLAIN, "", ""]),
        "\n".join(json.dumps({**json.loads(line), **dict.fromkeys(OPTIONAL)}) for line in PLAIN),
    ],
    ids=["byte order mark", "blank lines", "line ends of Windows", "nulls"],
)
def test_a_file_is_read_as_editors_and_tables_write_it(written, tmp_path):
    (tmp_path / "plain.jsonl").write_text("\n".join(PLAIN), encoding="utf-8")
    (tmp_path / "written.jsonl").write_bytes(written.encode())
    assert tasks.read_jsonl(tmp_path / "written.jsonl") == tasks.read_jsonl(tmp_path / "plain.jsonl")


def test_a_null_number_is_the_number_of_the_line_and_a_file_without_tasks_is_named(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(["", json.dumps(GOOD | {"task_id": None})]))
    assert [task.task_id for task in tasks.read_jsonl(path)] == [2]
    path.write_text("\n\n")
    with pytest.raises(DataError, match=r"some\.jsonl has no tasks"):
        tasks.read_jsonl(path)


def test_a_whole_number_is_one_however_a_table_writes_it(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(json.dumps(GOOD | {"task_id": number}) for number in (1.0, 2, None)))
    assert [repr(task.task_id) for task in tasks.read_jsonl(path)] == ["1", "2", "3"]


def test_a_split_or_a_data_set_that_is_not_there_is_told_which_are_and_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path))
    with pytest.raises(DataError, match=r"no split 'tests' \(did you mean 'test'\?\); splits: prompt, train"):
        tasks.load_tasks("starter", "tests")
    with pytest.raises(DataError, match=rf"no data set 'mine' in {tmp_path} or {runs.ROOT / 'data'}: put its test"):
        tasks.load_tasks("mine", "test")


PROGRAM = """
import sys
from grpo_utils.__main__ import app
try:
    app(sys.argv[1:], standalone_mode=False)
except ValueError as error:
    print(error, "torch" in sys.modules)
"""


@pytest.mark.parametrize("command", ["reproduce", "train", "evaluate"])
def test_what_is_wrong_with_the_data_is_told_before_torch_is_loaded(command, tmp_path):
    write(tmp_path, [json.dumps(GOOD), json.dumps(GOOD | {"code": "# later"})])
    shutil.copy(tmp_path / "mine" / "train.jsonl", tmp_path / "mine" / "test.jsonl")
    line = [sys.executable, "-c", PROGRAM, command, "--recipe", "smoke-code", "--set", "dataset.name=mine"]
    environment = os.environ | {"GRPO_DATA_DIR": str(tmp_path)}
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == (
        f"{tmp_path}/mine/train.jsonl, line 2, task 1: the reference solution in 'code' has no code; leave the key out "
        "if there is none. False\n"
    )


def made(**changes):
    return tasks.CodeTask.from_row(GOOD | changes, "here")


@pytest.mark.parametrize("row", [{}, {"code": ""}, {"code": " \n"}, {"code": None}], ids=str)
def test_a_program_without_a_reference_is_asked_for_and_judged_by_its_tests(row, tmp_path, sandbox):
    kept = {key: value for key, value in GOOD.items() if key != "code"} | row
    write(
        tmp_path, [json.dumps(kept | {"test_list": ["x = abs(add(-1, -2))\nassert x == 3", "assert add(2, 2) == 4"]})]
    )
    (task,) = tasks.read_jsonl(tmp_path / "mine" / "train.jsonl")
    assert task.reference_answer(PROMPT) is None
    assert (task.function_names, task.function_name, task.difficulty, task.operations) == (["add"], "add", 0, [])
    wrong = task.strict_answer(task.wrong_answer(PROMPT.tags), "answer")
    verdicts = sandbox.check_many([task.check(GOOD["code"]), task.check(wrong)])
    assert [verdict.ok for verdict in verdicts] == [True, False]
    assert verdicts[1].status == "error"  # a tuple has no absolute value: the function is there and was called
    with pytest.raises(DataError, match="Task 1 cannot be shown solved: it has no reference"):
        tasks.prompt_messages(task, PROMPT, [task])


def test_a_data_set_shows_tasks_that_are_solved_and_needs_one(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path))
    rows = [GOOD | {"task_id": i, "code": GOOD["code"] if i == 3 else None} for i in range(20)]
    write(tmp_path, map(json.dumps, rows))
    shutil.copy(tmp_path / "mine" / "train.jsonl", tmp_path / "mine" / "test.jsonl")
    recipe = runs.load_recipe("smoke-code", {"dataset.name": "mine"})
    assert [task.task_id for task in tasks.worked_examples(recipe)] == [3]
    tasks.check_data(recipe)
    (tmp_path / "mine" / "prompt.jsonl").write_text(json.dumps(rows[0]))
    with pytest.raises(DataError, match=r"No task of the prompt split of 'mine' has a reference \(`code`\): put one"):
        tasks.check_data(recipe)


@pytest.mark.parametrize(
    ("given", "thoughts", "thought"),
    [
        ("Add them.", "own", "Add them."),
        (None, "own", "I write `add` to add two numbers."),
        ("Add them.", "template", "I write `add` to add two numbers."),
        ("Add them.", "none", ""),
    ],
)
def test_a_reference_thinks_as_the_prompt_says_before_it_answers(given, thoughts, thought):
    test = ["assert add(1, 2) == 3"]
    own = {"thought": given} if given else {}
    task = made(text="Write a function to add two numbers.", test_list=test, **own)
    prompt = runs.load_recipe("cpu-code", {"prompt.thoughts": thoughts}).prompt
    answer = f"<thought>{thought}</thought>\n<answer>\n{task.code}\n</answer>"
    assert task.reference_answer(prompt) == answer


def test_difficulty_counts_where_control_flow_can_part():
    assert made(code="def add(a, b):\n    return [i for i in a if i] if a else None").difficulty == 2


def test_the_function_is_the_first_name_in_the_first_test_that_the_reference_defines():
    assert tasks.called_name(["assert inc(1) == Point(2)"], ["Point", "inc"]) == "inc"
    assert tasks.called_name(["assert 1", "assert inc(1) == 2"], ["inc"]) == ""


def test_a_task_may_be_named_in_words():
    assert made(task_id="mbpp/12").task_id == "mbpp/12"


def test_a_string_of_several_asserts_becomes_one_test_for_each():
    both = "  assert add(1, 2) == 3  # small\r\nassert (\n    add('ä;', 'b') == 'ä;b'\n), 'text'; assert add(0, 0) == 0"
    task = made(test_list=[both, " assert add(2, 2) == 4 # stays"], challenge_test_list=["assert 1\nassert 2"])
    parts = ["assert add(1, 2) == 3", "assert (\n    add('ä;', 'b') == 'ä;b'\n), 'text'", "assert add(0, 0) == 0"]
    assert [test.replace("\r", "") for test in task.test_list] == [*parts, " assert add(2, 2) == 4 # stays"]
    assert task.challenge_test_list == ["assert 1", "assert 2"]


MIXED = "x = add(1, 2)\nassert x == 3\nassert x > 2"
LOOP = "for n in range(9):\n    assert add(n, 0) == n"


def test_a_test_with_other_statements_stays_whole_and_its_asserts_count():
    task = made(test_list=[MIXED, "assert add(2, 2) == 4", LOOP, "assert 1"], challenge_test_list=["assert 2"])
    assert task.test_list[0] == MIXED
    assert task.requirements == ["assert x == 3", "assert x > 2", "assert add(2, 2) == 4", LOOP]
    prompts = [PROMPT.model_copy(update={"visible_asserts": number}) for number in range(5)]
    assert [task.shown(prompt) for prompt in prompts] == [0, 2, 2, 3, 3]
    shown = [[test in task.question(prompt) for test in task.test_list] for prompt in prompts]
    assert shown == [[k > 0, k > 2, False, False] for k in range(5)]


EXPECTED = "import pytest\nwith pytest.raises(TypeError):\n    add(1, None)"


def test_a_test_that_expects_an_exception_is_one():
    task = made(test_list=[EXPECTED, "assert add(2, 2) == 4"], challenge_test_list=[])
    assert task.requirements == ["with pytest.raises(TypeError):\n    add(1, None)", "assert add(2, 2) == 4"]
    alone = "try:\n    add(1, None)\nexcept TypeError:\n    pass\nelse:\n    raise AssertionError"
    assert made(test_list=[alone], challenge_test_list=[]).requirements == [alone]


def test_a_test_is_said_to_have_as_many_asserts_as_its_verdict_has_outcomes(sandbox):
    path = Path(__file__).parents[1] / "sandbox" / "data" / "forms.jsonl"
    forms = [form for form in map(json.loads, path.read_text(encoding="utf-8").splitlines()) if "tests" in form]
    checks = [Check(form["right"], form["tests"], form["names"], form["setup"]) for form in forms]
    verdicts = sandbox.check_many([*checks, Check(GOOD["code"], [EXPECTED], ["add"])])
    read = [[asserts_of(test) for test in form["tests"]] for form in [*forms, {"tests": [EXPECTED]}]]
    counts = [sum(len(found or []) for found in each) if None not in each else 0 for each in read]
    known = [(count, verdict.total) for count, verdict in zip(counts, verdicts, strict=True) if count and verdict.ok]
    assert len(known) > 200
    assert [pair for pair in known if pair[0] != pair[1]] == []


def test_names_of_the_sanitized_half_may_stand_beside_the_others():
    task = made(test_imports=["import math"], test_setup_code="K = 1\n")
    assert (task.text, task.test_setup_code) == (GOOD["text"], "import math\nK = 1\n")
    del (row := {**GOOD, "prompt": "Add."})["text"]
    assert tasks.CodeTask.from_row(row, "here").text == "Add."


def test_a_prelude_need_not_end_its_line(sandbox):
    task = made(prelude="from operator import add as plus", test_list=["assert add(1, 2) == 3"])
    checks = [task.check("def add(a, b): return plus(a, b)"), task.check("add = plus")]
    assert [verdict.ok for verdict in sandbox.check_many(checks)] == [True, True]


def test_a_data_set_comes_from_one_folder_and_a_split_that_it_lacks_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(tasks.loading, "_from_hub", lambda name, split: pytest.fail("went to the hub"))
    write(tmp_path, PLAIN, name="starter")
    with pytest.raises(DataError, match=r"starter has no test\.jsonl; put the test tasks there"):
        tasks.load_tasks("starter", "test")
    write(tmp_path, PLAIN, name="gsm8k")
    with pytest.raises(DataError, match=r"gsm8k has no test\.jsonl"):
        tasks.load_tasks("gsm8k", "test")
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match=r"mine has no train\.jsonl"):
        tasks.load_tasks("mine", "prompt")


def test_a_data_set_that_is_nowhere_says_where_to_put_it():
    with pytest.raises(DataError, match=r"put its train\.jsonl into a folder mine"):
        tasks.load_tasks("mine", "train")


def test_a_data_set_without_a_hub_says_both_ways_to_get_it(monkeypatch, tmp_path):
    def unreachable(*args, **kwargs):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(tasks.loading, "ROOT", tmp_path)
    with pytest.raises(DataError, match=r"tasks download mbpp.* GRPO_DATA_DIR"):
        tasks.load_tasks("mbpp", "train")


def test_the_folder_in_the_environment_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path))
    write(tmp_path, [json.dumps(GOOD | {"task_id": i}) for i in range(10)], name="starter")
    assert {task.text for task in tasks.load_tasks("starter", "train")} == {GOOD["text"]}


def test_the_prompt_shows_as_many_asserts_as_the_recipe_says():
    task = tasks.load_tasks("starter", "train")[0]
    for shown in range(4):
        text = task.question(PROMPT.model_copy(update={"visible_asserts": shown}))
        assert [test in text for test in task.test_list[:3]] == [i < shown for i in range(3)]
        assert not any(test in text for test in task.challenge_test_list)


def test_a_chat_has_a_turn_for_the_user_and_the_assistant_per_example():
    recipe = runs.load_recipe("cpu-code")
    examples = tasks.worked_examples(recipe, 3)
    chat = tasks.prompt_messages(tasks.load_tasks("starter", "train")[0], recipe.prompt, examples)
    assert [message["role"] for message in chat] == ["system", *["user", "assistant"] * 3, "user"]
    with pytest.raises(DataError, match="asks for 20 worked examples; starter has 8"):
        tasks.worked_examples(recipe, 20)


def test_the_sanitized_half_of_mbpp_is_read_by_its_own_names(tmp_path, monkeypatch):
    row = {key: value for key, value in GOOD.items() if key != "text"}
    row |= {"prompt": "Write a function to add.", "test_imports": ["import math", "import re"], "source_file": "x"}
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path))
    write(tmp_path, [json.dumps(row)], name="mbpp-sanitized")
    (task,) = tasks.load_tasks("mbpp-sanitized", "prompt")
    assert (task.text, task.test_setup_code) == (GOOD["text"], "import math\nimport re")


def test_human_eval_passes_with_its_canonical_solutions_and_fails_without(sandbox):
    problems = tasks.load_tasks("human-eval", "test")
    assert len(problems) == 164
    assert [v for v in sandbox.check_many([task.check(task.code) for task in problems]) if not v.ok] == []
    stubs = [task.check(f"def {task.function_name}(*given): return None") for task in problems]
    assert not any(verdict.ok for verdict in sandbox.check_many(stubs))


def test_human_eval_shows_no_assert_and_takes_no_helper_from_the_candidate(sandbox):
    with_helpers = {32: "poly", 38: "encode_cyclic", 50: "encode_shift"}
    problems = [task for task in tasks.load_tasks("human-eval", "test") if task.task_id in with_helpers]
    assert not any("assert" in task.question(PROMPT) for task in problems)
    # right only if the candidate's helper, which gives back what it gets, took the place of the test's own
    answer = "(xs): return 0 if isinstance(xs, list) else xs"
    forged = [
        f"def {with_helpers[t.task_id]}(*given): return given[-1]\ndef {t.function_name}{answer}" for t in problems
    ]
    checks = [task.check(code) for task, code in zip(problems, forged, strict=True)]
    assert not any(verdict.ok for verdict in sandbox.check_many(checks))


def test_filters_touch_only_the_training_split():
    recipe = runs.load_recipe("cpu-code", {"dataset.max_grade": 1, "dataset.max_difficulty": 0})
    assert {task.grade for task in tasks.load_split(recipe, "train")} == {1}
    assert {task.difficulty for task in tasks.load_split(recipe, "train")} == {0}
    assert len(tasks.load_split(recipe, "test")) == len(tasks.load_tasks("starter", "test"))


def test_filters_that_leave_nothing_are_refused():
    recipe = runs.load_recipe("cpu-code", {"dataset.limits": {"train": 0}})
    with pytest.raises(DataError, match="No train task"):
        tasks.load_split(recipe, "train")


def test_shuffling_is_the_same_for_the_same_seed_and_a_share_cuts_a_split():
    half = runs.load_recipe("cpu-code", {"dataset.shuffle": 42, "dataset.limits": {"test": 0.5}})
    drawn, everything = tasks.load_split(half, "test"), tasks.load_tasks("starter", "test")
    assert drawn == tasks.load_split(half, "test") != everything[:60]
    assert len(drawn) == 60
    assert all(task in everything for task in drawn)


def test_a_data_set_without_prompt_and_validation_splits_gets_them_from_train(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path))
    write(tmp_path, [json.dumps(WORD_PROBLEM | {"question": f"{i} + 0?"}) for i in range(100)])
    parts = {
        split: [task.task_id for task in tasks.load_tasks("mine", split)] for split in ("prompt", "train", "validation")
    }
    assert parts == {"prompt": [*range(1, 9)], "train": [*range(9, 91)], "validation": [*range(91, 101)]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": "6 * 7"}, "line 1, task 1: the answer must be a number, or end in '#### ' and the gold number"),
        ({"answer": "42 eggs"}, "line 1, task 1: the answer must be a number, or end in '#### ' and the gold number"),
        ({"answer": "#### many"}, "line 1, task 1: the answer must be a number, or end in '#### ' and the gold number"),
        ({"answer": True}, "line 1, task 1: the answer must be a number"),
        ({"answer": math.nan}, "line 1, task 1: the answer must be a number"),
        ({"answer": None}, "line 1, task 1: key 'answer' must be there and be of type str"),
        ({"answer": ["42"]}, "line 1, task 1: key 'answer' must be there and be of type str"),
        (
            {"answer": "#### 5,5"},
            "the comma in the gold number '5,5' groups no thousands: write a point",
        ),
        (
            {"answer": "#### 1.000,50 kg"},
            "the comma in the gold number '1.000,50 kg' groups no thousands",
        ),
        ({"grade": "easy"}, "line 1, task 1: key 'grade' has a value of the wrong type"),
    ],
)
def test_a_malformed_word_problem_is_named_with_its_file(change, message, tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path))
    write(tmp_path, [json.dumps(WORD_PROBLEM | change)])
    with pytest.raises(DataError, match=message):
        tasks.load_tasks("mine", "train")


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (42, "42"),
        (42.0, "42"),
        (-0.5, "-0.5"),
        ("42", "42"),
        (" $1,234.50 ", "1234.50"),
        (r"\frac{1}{2}", r"\frac{1}{2}"),
        ("1.000,50", "1.000,50"),
    ],
)
def test_an_answer_that_is_a_number_and_nothing_else_is_the_gold_number(answer, gold):
    task = tasks.MathsTask.from_row(WORD_PROBLEM | {"task_id": 1, "answer": answer}, "here")
    assert (task.answer, task.solution) == (gold, "")
    assert task.check(f"It is {gold}.").ok
    assert not task.check(task.wrong_answer(("thought", "answer"))).ok


def test_the_reference_of_a_word_problem_has_no_notes_for_a_calculator():
    row = {"task_id": 0, "question": "6 * 7 - 2?", "answer": "6 * 7 = <<6*7=42>>42\n42 - 2 = 40\n#### 40"}
    assert tasks.MathsTask.from_row(row, "here").reference_answer(runs.load_recipe("cpu-math").prompt) == (
        "<reasoning>\n6 * 7 = 42\n42 - 2 = 40\n</reasoning>\n<answer>\n40\n</answer>"
    )


@pytest.mark.parametrize(
    ("answer", "number"),
    [("#### 1.000,50", "1000.5"), ("1 000,5", "1000.5"), ("#### 12,34,567", "1234567"), ("#### 1,072 clips", "1072")],
)
def test_a_gold_number_with_commas_is_the_one_that_is_read_in_a_completion(answer, number):
    task = tasks.MathsTask.from_row(WORD_PROBLEM | {"task_id": 1, "answer": answer}, "here")
    assert task.check(number).ok


@pytest.mark.parametrize("name", ["reasoning-gym", "lists", "gsm8k"])
def test_every_word_problem_is_solved_by_its_reference_and_not_by_its_wrong_answer(name):
    if name == "gsm8k" and not (DATA and (Path(DATA) / "gsm8k").is_dir()):
        pytest.skip("GSM8K is not in GRPO_DATA_DIR")
    prompt = runs.load_recipe("cpu-math").prompt
    problems = [task for split in tasks.SPLITS for task in tasks.load_tasks(name, split)]
    for task in problems:
        assert task.check(task.strict_answer(task.reference_answer(prompt), "answer")).ok
        assert not task.check(task.strict_answer(task.wrong_answer(prompt.tags), "answer")).ok
        assert task.difficulty >= 1
    assert len(problems) == {"reasoning-gym": 620, "lists": 1018, "gsm8k": 7473 + 1319}[name]


def test_no_two_sums_have_the_same_terms_and_each_answer_is_their_sum():
    problems = [task for split in tasks.SPLITS for task in tasks.load_tasks("reasoning-gym", split)]
    sums = [re.findall(r"[+-]?\d+", task.text.partition(":")[2].replace(" ", "")) for task in problems]
    assert len({tuple(sorted(term.lstrip("+") for term in terms)) for terms in sums}) == len(problems)
    assert [sum(map(int, terms)) for terms in sums] == [int(task.answer) for task in problems]


def test_no_list_stands_in_two_questions_and_each_answer_is_the_one_that_counting_gives():
    problems = [task for split in tasks.SPLITS for task in tasks.load_tasks("lists", split)]
    lists = [task.text.rstrip("?").partition(": ")[2].split(", ") for task in problems]
    assert len({*map(tuple, lists)}) == len(problems)
    for task, things in zip(problems, lists, strict=True):
        asked = re.search(r"(?:At which place is|come before) (\w+)", task.text)
        place = things.index(asked[1]) if asked else len(things)
        assert int(task.answer) == place + (task.grade == 2)
        numbered = [step.split() for step in task.solution.rstrip(".").split(", ") if " " in step]
        assert numbered == [[str(i + 1), thing] for i, thing in enumerate(things[: int(task.answer)])]


@pytest.mark.parametrize(("name", "needed"), [("reasoning-gym", "reasoning_gym"), ("lists", "json")])
def test_the_script_beside_generated_questions_makes_their_files(name, needed):
    pytest.importorskip(needed)
    folder = runs.ROOT / "data" / name
    made = runpy.run_path(str(folder / "make.py"))["files"]()
    assert made == {split: (folder / f"{split}.jsonl").read_text(encoding="utf-8") for split in tasks.SPLITS}
