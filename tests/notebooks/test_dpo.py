"""Chapter 8: its pairs are what it says, DPO's reference is the start, costs are equal, and what is made is kept."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import nbformat
import pandas as pd
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import TrainerControl

from grpo_utils import evaluation, policy, runs, training
from grpo_utils.sandbox import run_tests

NOTEBOOK = runs.ROOT / "notebooks" / "08_dpo_after_grpo.ipynb"
LIMIT = 96  # tokens of a completion: the answers below are shorter, but for the one that shall count as cut off


def store(run: Path, step: int, completions: list[tuple[int | str, str]]) -> None:
    """Writes the completions of tasks as TRL stores those of a step."""
    path = run / "checkpoints" / "completions" / f"completions_{step:05}.parquet"
    path.parent.mkdir(exist_ok=True)
    frame = pd.DataFrame(completions, columns=["task_id", "completion"])
    frame.assign(step=step, prompt="prompt " + frame["task_id"].astype(str)).to_parquet(path)


@pytest.fixture(scope="module")
def overrides(tiny_model) -> dict[str, Any]:
    model = {"model.name": str(tiny_model), "model.dtype": "float32", "lora.layers_to_transform": None}
    return model | {"name": "tiny", "grpo.max_completion_length": LIMIT}


@pytest.fixture(scope="module")
def finished(overrides, tmp_path_factory) -> Path:
    """Outputs as chapters 1 to 5 leave them, but with random adapters of the tiny model, and no answer passes."""
    outputs = tmp_path_factory.mktemp("finished")
    recipe = runs.load_recipe("smoke-code", overrides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_OUTPUTS_DIR", str(outputs))
        run = runs.start_run(recipe)
        for step in (1, 2):
            torch.manual_seed(step)
            adapted = get_peft_model(
                policy.load_policy(recipe).model, LoraConfig(init_lora_weights=False, **recipe.lora)
            )
            adapted.save_pretrained(str(run / "checkpoints" / f"checkpoint-{step}"))
        runs.write_file(run / "checkpoints" / policy.MADE_WITH, f"base {policy.base_fingerprint(recipe.model)}\n")
        runs.write_file(run / "training_log.jsonl", "")
        for split in ("validation", "test"):
            evaluation.sweep(recipe, run, [runs.BASE, "checkpoint-1", "checkpoint-2"], split)
        evaluation.write_results(recipe, run)
        wrong = {task.task_id: task.wrong_answer(recipe.prompt.tags) for task in training.practice_tasks(recipe, run)}
        store(run, 1, [item for item in wrong.items() for _ in range(2)])
    return outputs


def execute(overrides: dict[str, Any], names: dict[str, Any] | None = None, only: str = "") -> dict[str, Any]:
    """Runs the chapter's code cells, or those that hold `only`, and returns what they define."""
    matplotlib.use("agg")
    names = {} if names is None else names
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code" and only in cell.source:
            source = cell.source.replace('RECIPE: str = "cpu-code"', 'RECIPE: str = "smoke-code"')
            exec(source.replace("OVERRIDES: dict = {}", f"OVERRIDES: dict = {overrides!r}"), names)
    return names


@pytest.fixture(scope="module")
def chapter(finished, overrides, tmp_path_factory) -> dict[str, Any]:
    """What the chapter defines after a run with two mixed groups."""
    outputs = tmp_path_factory.mktemp("mixed")
    shutil.copytree(finished, outputs, dirs_exist_ok=True)
    recipe = runs.load_recipe("smoke-code", overrides)
    think = recipe.prompt.tags[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_OUTPUTS_DIR", str(outputs))
        run, rows = runs.start_run(recipe), []
        for task in training.practice_tasks(recipe, run)[:2]:
            right, wrong = str(task.reference_answer(recipe.prompt)), task.wrong_answer(recipe.prompt.tags)
            longer = [text.replace(f"</{think}>", f" I am sure.</{think}>") for text in (right, wrong)]
            cut_off = right + " and" * LIMIT
            rows += [(task.task_id, text) for text in (right, right, wrong, *longer, cut_off)]
        store(run, 2, rows)
        return execute(overrides)


def test_pairs_are_a_passing_and_a_failing_completion_of_one_prompt_that_both_ended(chapter):
    pairs = [json.loads(line) for line in (chapter["folder"] / "pairs.jsonl").read_text().splitlines()]
    assert len(pairs) == 4  # two of each group, as the same right answer twice counts once
    for pair in pairs:
        task = chapter["owners"][pair["task_id"]]
        chosen, rejected = pair["completion_chosen"], pair["completion_rejected"]
        answers = [task.strict_answer(text, "answer") for text in (chosen, rejected)]
        assert [run_tests(answer, task.asserts).ok for answer in answers] == [True, False]
        assert max(pair["tokens_chosen"], pair["tokens_rejected"]) <= LIMIT
        assert ("sure" in chosen) == ("sure" in rejected)  # of the same length


@pytest.mark.parametrize(
    ("passed", "failed"),
    [([5], [9]), ([10, 50, 30], [31, 11]), ([1, 2, 3], [3, 2, 1]), ([10, 20], [21, 60, 19, 12]), ([8, 9], [9, 10])],
)
def test_partners_differ_as_little_in_length_as_any_way_to_pair_them(chapter, passed, failed):
    verdicts = [True] * len(passed) + [False] * len(failed)
    group = pd.DataFrame({"tokens": passed + failed, "passed": verdicts})
    group = group.assign(step=1, task_id=1, prompt="p", error="")
    pairs = chapter["pair_up"](group.assign(completion=[f"text {i}" for i in group.index]))
    few, many = sorted((passed, failed), key=len)
    ways = itertools.permutations(many, len(few))
    least = min(sum(abs(a - b) for a, b in zip(few, way, strict=True)) for way in ways)
    assert (pairs["tokens_chosen"] - pairs["tokens_rejected"]).abs().sum() == least
    assert pairs["completion_chosen"].is_unique
    assert pairs["completion_rejected"].is_unique


def test_dpo_and_rejection_sampling_move_the_policy_and_leave_the_start_alone(chapter, finished):
    weights = "adapter_model.safetensors"
    start = load_file(finished / "tiny" / "checkpoints" / chapter["start"] / weights)
    kept = load_file(chapter["run"] / "checkpoints" / chapter["start"] / weights)
    assert all(torch.equal(kept[name], value) for name, value in start.items())
    for method in ("dpo", "rejection-sampling"):
        folder = chapter["folder"] / "checkpoints" / method
        moved = load_file(folder / weights)
        assert moved.keys() == start.keys()
        assert not any(torch.equal(moved[name], value) for name, value in start.items())
        assert not (folder / "ref").exists()


def test_a_training_ends_with_the_step_that_uses_up_its_budget(chapter):
    budget, control = chapter["Budget"](10.0), TrainerControl()
    budget.now = iter([100.0, 104.0, 108.0, 112.0]).__next__
    budget.on_train_begin(None, None, control)
    stops = []
    for _ in range(3):
        budget.on_step_end(None, None, control)
        stops.append(control.should_training_stop)
    assert stops == [False, False, True]
    assert budget.seconds == 12.0
    for method in ("DPO", "rejection sampling"):
        assert chapter["trained"][method]["seconds"] >= chapter["trained"]["more GRPO"]["seconds"] > 0


def test_a_reference_that_is_the_base_is_noticed(chapter):
    loaded = policy.load_policy(chapter["recipe"]).model
    start = chapter["run"] / "checkpoints" / chapter["start"]
    model = PeftModel.from_pretrained(loaded, start, is_trainable=True)
    trainer = chapter["dpo"](model)
    model.delete_adapter("ref")  # then TRL switches the adapter off for the reference
    trainer.add_callback(chapter["Budget"](0.0))
    trainer.train()
    assert trainer.state.global_step == 1
    wrong = {**chapter, "trained": {"DPO": {"log": trainer.state.log_history[:1]}}}
    with pytest.raises(AssertionError, match="reference is not checkpoint-"):
        execute({}, wrong, only="reference is not")


def test_a_second_run_trains_nothing_and_one_with_other_settings_trains_again(chapter, overrides, monkeypatch):
    monkeypatch.setenv("GRPO_OUTPUTS_DIR", str(chapter["run"].parent))
    made = {path: path.stat().st_mtime_ns for path in chapter["folder"].rglob("*.safetensors")}
    assert len(made) == 3
    again = execute(overrides)
    assert {path: path.stat().st_mtime_ns for path in made} == made
    assert again["table"].equals(chapter["table"])
    again["origin"]["settings"] = "others"
    execute({}, again, only='train("dpo"')
    assert all(path.stat().st_mtime_ns > time for path, time in made.items())


def test_the_chapter_runs_alone_and_says_when_no_group_of_the_run_was_mixed(finished, overrides, solve):
    settings = [f"--set={key}={json.dumps(value)}" for key, value in overrides.items()]
    command = [sys.executable, "-m", "grpo_utils", "reproduce", "--recipe", "smoke-code", "--only", "08", *settings]
    done = subprocess.run(
        command, cwd=runs.ROOT, env=os.environ | {"GRPO_OUTPUTS_DIR": str(finished)},
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    run = finished / "tiny"
    assert "NO GROUP OF THIS RUN IS MIXED" in (run / "notebooks" / NOTEBOOK.name).read_text()
    assert {"dpo_training", "dpo_comparison"} <= {path.stem for path in run.glob("figures/*.png")}
    records = {path.name for path in (run / "dpo" / "evaluations").glob("*.json")}
    assert records == {f"{name}.test.1shot.json" for name in ("dpo", "more-grpo", "rejection-sampling")}
    solve("08", finished, overrides)


def test_without_the_chapters_before_it_the_chapter_says_which_to_run(overrides):
    with pytest.raises(runs.RunError, match="run notebook 04_grpo_training first"):
        execute(overrides)
