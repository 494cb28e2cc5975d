"""docs/sandbox.md: rewards and sandbox in somebody else's trainer, and in an environment without torch."""

import asyncio
import importlib.metadata
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import datasets
import pytest
from packaging.utils import canonicalize_name

from grpo_utils import rewards, runs

BLOCKS = re.findall(
    r"^```python\n(.*?)```", (runs.ROOT / "docs" / "sandbox.md").read_text(encoding="utf-8"), flags=re.M | re.S
)
LIGHT = ("pydantic", "pydantic-core", "pyyaml", "annotated-types", "typing-extensions", "typing-inspection")
TRY = """
import sys
from grpo_utils import rewards
from grpo_utils.sandbox import Sandbox
if __name__ == "__main__":
    print(rewards.tests(["<answer>def inc(n): return n + 1</answer>"], test_list=[["assert inc(1) == 2"]]))
    print(*sorted({name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names))
"""


def tried(folder: Path, *flags: str) -> list[str]:
    """What TRY prints with this folder's packages: what the reward pays, then the packages that were loaded."""
    (folder / "try.py").write_text(TRY)
    command = [sys.executable, *flags, "try.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_rewards_and_sandbox_need_two_packages(tmp_path):
    """An environment that has them, and what they need in turn, and nothing else."""
    for name in LIGHT:
        for file in importlib.metadata.files(name) or ():
            top, whole = tmp_path / file.parts[0], Path(str(file.locate()))
            if file.parts[0] not in ("..", "__pycache__") and not top.exists():
                top.symlink_to([whole, *whole.parents][len(file.parts) - 1])
    (tmp_path / "grpo_utils").symlink_to(runs.ROOT / "grpo_utils")
    assert tried(tmp_path, "-S")[0] == "[1.0]"


def test_they_load_nothing_else_where_everything_is_installed(tmp_path):
    """So that an import takes a quarter of a second, and not seconds for torch or pandas."""
    owners = importlib.metadata.packages_distributions()
    paid, loaded = tried(tmp_path)
    assert paid == "[1.0]"
    found = {canonicalize_name(owner) for name in loaded.split() for owner in owners.get(name, ())}
    assert found <= {"grpo-utils", "setuptools", *LIGHT}  # setuptools: a .pth file of every environment


def test_the_script_for_stock_trl_trains(monkeypatch, tmp_path, tiny_model):
    from trl.trainer.grpo_trainer import GRPOTrainer

    monkeypatch.chdir(tmp_path)
    rows = datasets.Dataset.from_json(str(runs.ROOT / "data" / "starter" / "train.jsonl"))
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: rows.select(range(4)))
    script = BLOCKS[0].replace("Qwen/Qwen2.5-0.5B-Instruct", str(tiny_model))
    small = "max_steps=1, num_generations=2, per_device_train_batch_size=2, report_to='none', use_cpu=True, bf16=False"
    script = script.replace("max_completion_length=256", f"max_completion_length=8, {small}")
    exec(script, names := {"__name__": "mine"})
    assert isinstance(names["trainer"], GRPOTrainer)
    (entry,) = [one for one in names["trainer"].state.log_history if "reward" in one]
    assert {"rewards/tests/mean", "rewards/strict_format/mean"} <= set(entry)


def test_other_tags_are_a_setting_and_gsm8k_s_answer_is_read_as_it_is():
    exec(BLOCKS[1], names := {"rewards": rewards})
    text = "<reasoning>\nOne more.\n</reasoning>\n<answer>\ndef inc(n): return n + 1\n</answer>"
    paid = [reward([text], test_list=[["assert inc(1) == 2"]]) for reward in names["reward_funcs"]]
    assert (paid, names["weights"]) == ([[1.0], [1.0]], [1.0, 0.25])
    sum_up = "<reasoning>48 + 24</reasoning>\n<answer>72</answer>"
    gold = ["48+24 = <<48+24=72>>72 clips.\n#### 72"]
    assert rewards.soft_correctness([sum_up], tags=("reasoning", "answer"), answer=gold) == [1.0]


def test_tests_that_cannot_be_judged_are_warned_of_and_programs_that_cannot_are_not():
    with pytest.warns(UserWarning, match=r"cannot be judged and pay 0: the tests import 'os'"):
        assert rewards.tests(
            ["<answer>def inc(n): return 2</answer>"], test_list=[["import os\nassert inc(1) == 2"]]
        ) == [0.0]
    always = "class Yes:\n    __eq__ = lambda self, other: True\ndef inc(n): return Yes()"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for code in ("import torch\ndef inc(n): return 2", always):
            assert rewards.tests([f"<answer>{code}</answer>"], test_list=[["assert inc(1) == 2"]]) == [0.0]


def test_a_task_of_verifiers_pays_by_the_sandbox(monkeypatch, tmp_path):
    vf = pytest.importorskip("verifiers.v1", reason="verifiers is not installed: pip install verifiers==0.4.0")
    monkeypatch.chdir(tmp_path)
    row = {"text": "Write a function to add one.", "test_list": ["assert inc(1) == 2", "assert inc(2) == 3"]}
    Path("train.jsonl").write_text(json.dumps(row))
    exec(BLOCKS[2], names := {"__name__": "mine"})
    (task,) = names["Mbpp"](vf.TasksetConfig())
    paid = []
    for code in ("def inc(n): return n + 1", "def inc(n): return 2"):
        about, agent = vf.TraceTask(type="Program", data=task.data), vf.AgentInfo.model_construct()
        trace = vf.Trace(task=about, agent=agent, root_reply=f"<answer>{code}</answer>")
        asyncio.run(task.score(trace))
        paid.append(trace.reward)
    assert paid == [1.0, 0.0]


def test_mbpp_s_own_columns_are_as_good_as_a_task_s():
    row = {
        "test_list": ["assert math.isclose(half(3), 1.5)", "assert Pair(1).x == 1"],
        "test_setup_code": "import math",
        "challenge_test_list": ["assert half(0) == 0"],
    }
    right = "class Pair:\n    def __init__(self, x): self.x = x\n\ndef half(n): return n / 2"
    texts = [f"<answer>{code}</answer>" for code in (right, right.replace("n / 2", "1.5"))]
    columns = {name: [value] * 2 for name, value in row.items()}
    paid = {name: getattr(rewards, name)(texts, **columns) for name in ("tests", "tests_graded", "visible_tests")}
    assert paid == {"tests": [1.0, 0.0], "tests_graded": [1.0, 2 / 3], "visible_tests": [1.0, 1.0]}
    assert rewards.defines_function(texts, **columns) == [1.0, 1.0]
    with_code = columns | {"code": [right] * 2}
    assert rewards.tests(texts, **with_code) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("reward", "columns", "message"),
    [
        (
            "tests",
            {"question": ["?"]},
            "`asserts`, MBPP's `test_list`, or `inputs` and `outputs`, and the data set has question:",
        ),
        ("tests", {"inputs": [["1"]]}, "`outputs`, and the data set has inputs:"),
        (
            "hard_correctness",
            {"gold": ["1"], "prompts": ["?"], "trainer_state": None},
            "`answer`, and the data set has gold:",
        ),
        ("correct", {"test_list": [[]]}, "`task`, and the data set has test_list: .*from `grpo_utils.tasks.columns`"),
    ],
)
def test_what_a_reward_lacks_is_said_in_one_sentence_without_the_trainer_s_own_names(reward, columns, message):
    with pytest.raises(runs.UserError, match=message):
        getattr(rewards, reward)(["<answer>1</answer>"], **columns)
