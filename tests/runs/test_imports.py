"""Rewards and kinds of tasks in a file of the user's own: named by a recipe, kept by a run, errors told by line."""

import pickle
import sys
from pathlib import Path

import pytest

from grpo_utils import rewards, runs, tasks
from grpo_utils.runs import chain, commands, core_yaml

REWARD = """
from dataclasses import dataclass
from grpo_utils.rewards import reward, texts

@dataclass
class Limit:
    most: "int" = 5

@reward(0.0, 1.0)
def short(completions, **columns):
    return [float(len(text) < Limit().most) for text in texts(completions)]
"""
KIND = """
from grpo_utils.tasks import MathsTask, loading

class Riddle(MathsTask):
    pass

loading.KINDS["riddle"] = Riddle
"""


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """A folder of the user's, and registers that forget what was added."""
    monkeypatch.chdir(tmp_path)
    for register in (rewards.REGISTRY, tasks.loading.KINDS):
        for name in ("short", "riddle"):
            monkeypatch.setitem(register, name, None)
            del register[name]
    for name in ("own", "riddles", "bad"):
        monkeypatch.delitem(sys.modules, f"grpo_imports.{name}", raising=False)
    (tmp_path / "own.py").write_text(REWARD)
    return tmp_path


def beside(folder: Path, **changes) -> Path:
    """A recipe in a folder, which names files as a user writes it."""
    settings = runs.parse_yaml(runs.recipe_files()["smoke-code"].read_bytes(), "smoke-code") | changes
    folder.mkdir(exist_ok=True)
    runs.write_file(folder / "mine.yaml", core_yaml.dump_yaml(settings))
    return folder / "mine.yaml"


def test_a_recipe_names_a_function_of_a_file_beside_it(here, monkeypatch):
    path = beside(here, rewards={"tests": 1.0, "own.py:short": 0.25})
    monkeypatch.chdir("/")
    recipe = runs.load_recipe(path)
    assert recipe.rewards == {"tests": 1.0, "short": 0.25}
    _, short = rewards.recipe_rewards(recipe)[0]
    assert pickle.loads(pickle.dumps(short))(["1234", "12345"]) == [1.0, 0.0]


def test_a_run_goes_on_with_the_text_that_it_keeps(here):
    recipe = runs.load_recipe("smoke-code", {"rewards.own.py:short": 0.25})
    (here / "recipe.yaml").write_text(recipe.to_yaml())
    (here / "own.py").unlink()
    assert runs.load_recipe(here / "recipe.yaml") == recipe
    assert recipe.imports == {"own.py": REWARD}


def test_a_changed_file_is_another_recipe_and_its_reward_another_function(here, monkeypatch):
    monkeypatch.setenv("GRPO_OUTPUTS_DIR", str(here))
    first = runs.load_recipe("smoke-code", {"rewards.own.py:short": 0.25})
    runs.start_run(first)
    (here / "own.py").write_text(REWARD.replace("< Limit", "> Limit"))
    second = runs.load_recipe("smoke-code", {"rewards.own.py:short": 0.25})
    with pytest.raises(runs.RunError, match="other settings"):
        runs.start_run(second)
    assert rewards.recipe_rewards(second)[0][-1](["a long text"]) == [1.0]
    again = runs.load_recipe(here / "smoke-code" / "recipe.yaml")
    assert rewards.recipe_rewards(again)[0][-1](["a long text"]) == [0.0]


def test_a_kind_of_task_is_imported_on_top_of_what_the_recipe_imports(here):
    (here / "riddles.py").write_text(KIND)
    path = beside(here, imports=["own.py", str(here / "own.py")])
    recipe = runs.load_recipe(*commands.parameters_of(str(path), [], None, [Path("riddles.py")]))
    assert [*recipe.imports] == ["own.py", "riddles.py"]
    assert "short" in rewards.REGISTRY
    assert tasks.loading.KINDS["riddle"].__name__ == "Riddle"


def test_the_command_line_makes_paths_absolute(here):
    arguments = ["smoke-code", ["rewards.own.py:short=0.5"], None, [Path("own.py")]]
    _, overrides = commands.parameters_of(*arguments)
    assert overrides == {f"rewards.{here}/own.py:short": 0.5, "imports": [f"{here}/own.py"]}
    assert runs.load_recipe("smoke-code", overrides).rewards["short"] == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (", r"bad.py, line 1: SyntaxError: '\(' was never closed"),
        ("\nimport nowhere", r"bad.py, line 2: ModuleNotFoundError: No module named 'nowhere'"),
        ("def f():\n    1 / 0\n\nf()", r"bad.py, line 2: ZeroDivisionError"),
        (REWARD.replace("def short", "def tests"), r"line 9: ValueError: There is a reward 'tests' already"),
        ("a = '\0'", r"bad.py, line 1: "),
    ],
)
def test_an_error_in_a_file_names_its_line(here, text, message):
    (here / "bad.py").write_text(text)
    with pytest.raises(runs.UserError, match=message):
        runs.load_recipe("smoke-code", {"imports": ["bad.py"]})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"imports": ["no.py"]}, r"There is no file 'no.py' to import, neither in .*recipes nor in "),
        ({"imports": "own.py"}, r"`imports` is a list of Python files, such as \[my_rewards.py\], not 'own.py'"),
        ({"imports": [3]}, r"`imports` is a list"),
        ({"imports": ["own.py", "sub/own.py"]}, r"Two of the files to import are called own.py"),
        ({"rewards": {"own.py:short": 1, "short": 1}}, r"`rewards` has a name twice"),
        ({"rewards.own.py:shrt": 1}, r"own.py has no 'shrt' \(did you mean 'short'\?\)"),
    ],
)
def test_a_wrong_name_is_one_sentence(here, overrides, message):
    (here / "sub").mkdir()
    (here / "sub" / "own.py").write_text("")
    with pytest.raises(runs.UserError, match=message):
        runs.load_recipe("smoke-code", overrides)


def test_a_function_that_is_no_reward_is_told_how_to_become_one(here):
    from grpo_utils import training

    (here / "own.py").write_text("def short(completions, **columns): ...")
    with pytest.raises(runs.RecipeError, match=r"'rewards.short' .*by @reward\(low, high\)"):
        training.check_arguments(runs.load_recipe("smoke-code", {"rewards.own.py:short": 1.0}))


def test_a_failing_cell_names_the_line_of_an_imported_file_and_of_no_other():
    frames = [
        "Cell In[3], line 1",
        "File ~/grpo/grpo_utils/rewards/audit.py:120, in audit_rewards(rewards)",
        "File ~/mine/own.py:6, in short(completions, **columns)",
        "File ~/.venv/lib/python3.11/site-packages/pandas/core.py:9, in frame()",
    ]
    assert chain._own_line("\n".join(frames)) == ", own.py, line 6"
    assert chain._own_line("\n".join([frames[0], frames[1], frames[3]])) == ""
    assert chain._own_line("File <own.py>:6, in short()") == ", own.py, line 6"
