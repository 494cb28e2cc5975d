"""The examples of docs/contribute.md run, each in the place where the one before it left things, and are short."""

import re

import nbformat
import pytest

from grpo_utils import rewards, runs, tasks

TEXT = (runs.ROOT / "docs" / "contribute.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^## (.*?)\n.*?```python\n(.*?)```", TEXT, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("what", EXAMPLES)
def test_an_example_has_fewer_than_20_lines_of_code(what):
    assert sum(bool(line.strip()) for line in EXAMPLES[what].splitlines()) < 20


def test_the_examples_run(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path))
    monkeypatch.setitem(rewards.REGISTRY, "short_enough", None)  # forgotten after the test
    monkeypatch.setitem(tasks.loading.KINDS, "word", None)
    assert list(EXAMPLES) == ["A reward", "A kind of task", "A data set", "A recipe", "A chapter"]
    for code in EXAMPLES.values():
        exec(code, {"__name__": "grpo_utils.rewards.format"})
    assert "name: words" in capsys.readouterr().out
    (done,) = runs.outputs_folder().glob("smoke-code/notebooks/10_folder.ipynb")
    assert "recipe.yaml" in nbformat.read(done, as_version=4).cells[-1].outputs[0].text


def test_the_table_names_folders_that_are_there():
    for folder in re.findall(r"`(grpo_utils/\w+|recipes|notebooks|tests|data)/", TEXT):
        assert (runs.ROOT / folder).is_dir(), folder
