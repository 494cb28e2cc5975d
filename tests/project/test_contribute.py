"""The examples of docs/contribute.md are short, and work in a copy of the project as the files that they name."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import nbformat

from grpo_utils import rewards, runs, tasks
from grpo_utils.rewards import audit

TEXT = (runs.ROOT / "docs" / "contribute.md").read_text(encoding="utf-8")
COMMANDS = "".join(re.findall(r"^```bash\n(.*?)```", TEXT, flags=re.MULTILINE | re.DOTALL))
FILES = dict(re.findall(r"^```python\n# (\S+)\n(.*?)```", TEXT, flags=re.MULTILINE | re.DOTALL))


def test_the_examples_are_files_and_have_fewer_than_20_lines_of_code():
    assert [*FILES] == [
        *("my_rewards.py", "spelling.py", "data/words/make.py"),
        *("words.py", "chapter.py"),
    ]
    assert [path for path in FILES if sum(bool(line.strip()) for line in FILES[path].splitlines()) >= 20] == []


def test_the_guide_works_as_files_in_a_copy_of_the_project(tmp_path):
    """As somebody works through it: files in their places, and the commands, which audit and train for two steps."""
    for folder in ("grpo_utils", "notebooks", "recipes", "data"):
        shutil.copytree(runs.ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path, code in FILES.items():
        runs.write_file(tmp_path / path, code)
    named = {"GRPO_DATA_DIR", "GRPO_OUTPUTS_DIR"}
    environment = {key: value for key, value in os.environ.items() if key not in named}
    environment["PYTHONPATH"] = str(tmp_path)
    printed = {}
    for line in COMMANDS.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        command = [sys.executable, *(["-m", "grpo_utils"] if program == "grpo" else []), *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        printed[" ".join(arguments)] = done.stdout
    assert '"text": "Spell \'test3\' backwards."' in printed["tasks show words test --import spelling.py"]
    run = tmp_path / "outputs" / "words"
    assert "2 rewards kept their promises on 200 tasks" in (run / "notebooks" / "01_eda.ipynb").read_text()
    assert "recipe.yaml" in nbformat.read(run / "notebooks" / "11_folder.ipynb", as_version=4).cells[-1].outputs[0].text
    steps = [entry for entry in runs.read_log(run / "training_log.jsonl") if "reward" in entry]
    assert [entry["step"] for entry in steps] == [1, 2]
    assert {f"rewards/{name}/mean" for name in ("correct", "short_enough")} <= steps[-1].keys()


def audited(weights: dict[str, float]) -> list[str]:
    """What the audit finds on the tasks of smoke-math."""
    recipe = runs.load_recipe("smoke-math", {"rewards": weights})
    return audit.audit_recipe(recipe, {"train": tasks.load_judged(recipe, "train")}).failures


def test_the_guide_s_reward_passes_beside_one_for_right_answers_and_by_itself_is_told_to_get_one(monkeypatch):
    monkeypatch.setitem(rewards.REGISTRY, "short_enough", None)  # forgotten after the test
    exec(FILES["my_rewards.py"], {"__name__": "mine"})
    assert audited({"correct": 1.0, "short_enough": 0.25}) == []
    (sentence,) = audited({"short_enough": 1.0})
    assert "give a reward for right answers, such as `correct`, the largest weight" in sentence


def test_the_table_names_folders_that_are_there():
    for folder in re.findall(r"`(grpo_utils/\w+|recipes|notebooks|tests|data)/", TEXT):
        assert (runs.ROOT / folder).is_dir(), folder
