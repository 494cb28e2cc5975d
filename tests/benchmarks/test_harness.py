"""The harness's rules: extraction against its own regular expression, scores, and the shape of its prompts."""

# which kind of task a data set has is not known to the types
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOptionalSubscript=false

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import harness
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from grpo_utils import policy, runs
from grpo_utils.runs import UserError
from grpo_utils.tasks import CodeTask, DataError

TASK = CodeTask(
    task_id=7,
    text="Write a function to add.",
    code="def add(a, b): return a + b",
    test_list=["assert add(1, 2) == 3"] * 3,
)
HARNESS = re.compile(r"```(?:\w+)?\n?(.*?)\n?```", re.DOTALL)  # lm_eval/tasks/mbpp/utils.py, version 0.4.13


@given(st.text(alphabet="`\n dé1").map(lambda text: text.replace("`1", "```")))
def test_extraction_is_that_of_the_harness(text):
    found = HARNESS.findall(f"```{text}")
    assert harness.mbpp_code(text) == (found[0] if found else "")


@pytest.mark.parametrize(
    ("completion", "passes"),
    [
        ("\ndef add(a, b): return a + b\n```", True),
        ("\ndef add(a, b): return a + b\n```\nIt adds.\n```python\n1 / 0\n```", True),
        ("\ndef add(a, b): return a + b", False),  # a fence left open is no code
        ("def add(a, b): return a + b\n```", False),  # `def` is taken for the language
        ("Sure:\n```python\ndef add(a, b): return a + b\n```", False),
        ("\nclass Any:\n    def __eq__(self, other): return True\ndef add(a, b): return Any()\n```", False),
    ],
)
def test_a_program_passes_as_the_harness_wants_it(completion, passes, sandbox):
    assert sandbox.check_many([harness.mbpp_check(TASK, completion)])[0].ok == passes


def test_the_check_leaves_out_setup_code_and_challenge_asserts():
    asserts = {"test_list": ["assert f() == 1"] * 4, "challenge_test_list": ["assert f() == 2"]}
    task = CodeTask(task_id=7, text="", code="def f(): pass", test_setup_code="import math", **asserts)
    check = harness.mbpp_check(task, "\npass\n```")
    assert (check.tests, check.setup) == (("assert f() == 1",) * 3, "")


def test_worked_examples_are_turns_and_the_answer_is_begun():
    chat = harness.mbpp_messages(TASK, [TASK, TASK])
    assert [message["role"] for message in chat] == ["user", "assistant"] * 3
    assert chat[1]["content"] == f"{harness.PREFIX}{TASK.code}\n```"
    assert harness.as_text(chat).endswith(f"== 3{harness.PREFIX}")
    assert harness.as_text(chat).count("```\n\nYou are") == 2


@pytest.mark.parametrize(
    ("completion", "strict", "flexible"),
    [
        ("6 * 7 = 42. The final answer is 42", True, True),
        ("The final answer is $1,042.", False, False),
        ("The final answer is $42.", True, True),
        ("The final answer is 42. Which is 5% more.", True, False),
        ("It is 42", False, True),
        ("The final answer is 42.00", False, False),
        ("The final answer is 41. No: The final answer is 42", True, True),
        ("none", False, False),
    ],
)
def test_gsm8k_scores(completion, strict, flexible):
    solution = "Six times seven.\n#### 42"
    scores = [harness.gsm8k_correct(completion, solution, rule) for rule in (True, False)]
    assert scores == [strict, flexible]


def test_the_worked_examples_of_gsm8k_come_from_the_harness(tmp_path, monkeypatch):
    folder = tmp_path / "lm_eval" / "tasks" / "gsm8k"
    folder.mkdir(parents=True)
    (tmp_path / "lm_eval" / "__init__.py").touch()
    samples = [{"question": f"{i}?", "target": f"The final answer is {i}"} for i in range(3)]
    (folder / "gsm8k-cot-llama.yaml").write_text(yaml.safe_dump({"fewshot_config": {"samples": samples}}))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert harness.gsm8k_examples(2) == samples[:2]


def test_without_the_harness_its_worked_examples_are_refused(monkeypatch):
    monkeypatch.setattr(harness.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install"):
        harness.gsm8k_examples(8)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """MBPP's schema on disk: three worked examples and one task, and two word problems."""
    rows = [asdict(TASK) | {"task_id": i} for i in (2, 3, 4)]
    problems = [{"question": f"{i} + {i}?", "answer": f"Add.\n#### {2 * i}"} for i in range(2)]
    for path, lines in (("mbpp/prompt", rows), ("mbpp/test", [asdict(TASK)]), ("gsm8k/test", problems)):
        file = tmp_path / f"{path}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shots", "4"], "There are 3 worked examples, so shots cannot be 4"),
        (["--shots", "-1"], "There are 3 worked examples, so shots cannot be -1"),
        (["--limit", "0"], "limit must be at least 1, not 0"),
        (["--checkpoint", "checkpoint-9"], "checkpoint-9 is not in .*: run notebook 04_grpo_training first"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_loaded_or_made(options, message, data, monkeypatch):
    monkeypatch.setattr(policy, "identify_base", pytest.fail)
    monkeypatch.setattr("sys.argv", ["comparability", "--recipe", "smoke-code", *options])
    with pytest.raises(UserError, match=message):
        harness.main()
    assert not runs.outputs_folder().exists()


@pytest.mark.parametrize("template", [True, False])
def test_a_policy_is_measured_and_the_record_kept(template, data, tiny_model, tmp_path, monkeypatch, capsys):
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    if not template:
        (model / "chat_template.jinja").unlink()
    monkeypatch.setattr(harness, "MAX_NEW_TOKENS", 4)
    shared = ["comparability", "--recipe", "smoke-code", "--set", f"model.name={model}", "--set", "model.dtype=float32"]
    for options in (["--shots", "3"], ["--task", "gsm8k_cot_llama", "--limit", "1"]):
        monkeypatch.setattr("sys.argv", [*shared, *options])
        harness.main()
    *printed, path = capsys.readouterr().out.splitlines()[2:]
    found = "0.000 [0.000, 1.000], n = 1"
    assert printed == [f"gsm8k_cot_llama, 0-shot, {rule}: {found}" for rule in ("strict-match", "flexible-extract")]
    record = json.loads(Path(path).read_text())
    assert len(record["completions"]) == 1
    assert record["scores"] == {"strict-match": [False], "flexible-extract": [False]}
    assert (record["settings"]["chat_template_sha256"] is None) is not template


def test_scores_are_those_of_each_rule(data, sandbox):
    documents, chats = harness.prompts("mbpp_instruct", shots=3)
    assert len(chats[0]) == 8
    found = harness.scores("mbpp_instruct", documents, ["\ndef add(a, b): return a + b\n```"], sandbox)
    assert found == {"pass_at_1": [True]}
    documents, _ = harness.prompts("gsm8k_cot_llama", shots=0)
    texts = ["The final answer is 0", "2 Q: The final answer is 7"]
    found = harness.scores("gsm8k_cot_llama", documents, texts, sandbox)
    assert found == {"strict-match": [True, False], "flexible-extract": [True, True]}


def test_hostile_text_takes_linear_time():
    for text in ("a" * 10**6, "`" * 10**6, "1" * 10**6, "The final answer is " * 10**5, "-" * 10**6):
        harness.mbpp_code(text)
        harness.gsm8k_correct(text, "#### 1", strict=True)
        harness.gsm8k_correct(text, "#### 1", strict=False)
