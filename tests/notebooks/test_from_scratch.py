"""Chapter 6: its loss and gradient are TRL's, the comparison would notice if they were not, and it runs by itself."""

import copy
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import nbformat
import pytest
import torch

from grpo_utils.runs import ROOT, chain

NOTEBOOK = ROOT / "notebooks" / "06_grpo_from_scratch.ipynb"
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def chapter(tmp_path_factory) -> dict[str, Any]:
    """What the chapter's cells define, up to the comparison with TRL, which is left for the tests to run."""
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_OUTPUTS_DIR", str(tmp_path_factory.mktemp("outputs")))
        patch.setattr(torch, "set_num_threads", lambda threads: None)  # the tests that follow want theirs
        for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
            if cell.cell_type == "code":
                source = cell.source.replace('RECIPE: str = "cpu-code"', 'RECIPE: str = "smoke-code"')
                exec(source.partition("\ntested = ")[0], names)
            if "gaps" in names:
                return names
    raise AssertionError("the chapter defines no comparison")


def gaps(chapter: dict[str, Any], ours: dict[str, Any] | None = None, **settings: Any) -> tuple[float, float]:
    """The largest differences in loss and gradient over a training of TRL's, when our side is told `ours`."""
    given = chapter["Settings"](**{"learning_rate": 1e-3} | settings)
    worst = chapter["gaps"](given, replace(given, **(ours or {})))
    assert worst["gradient"] > 1e-3
    return worst["loss gap"], worst["gradient gap"]


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "bnpo"])
@pytest.mark.parametrize(("level", "epsilon"), [("token", 0.2), ("sequence", 0.02)])
def test_loss_and_gradient_equal_those_of_trl(chapter, loss_type, level, epsilon):
    found = gaps(chapter, loss_type=loss_type, importance_sampling_level=level, epsilon=epsilon, beta=0.05)
    assert max(found) < TOLERANCE


@pytest.mark.parametrize(
    "settings",
    [
        {"beta": 0.0},
        {"scale_rewards": "none", "loss_type": "dr_grpo"},
        {"num_generations": 4, "gradient_accumulation_steps": 4, "num_iterations": 3},
        {"gradient_accumulation_steps": 1, "num_iterations": 1, "beta": 0.5},
    ],
    ids=str,
)
def test_they_are_equal_with_other_groups_batches_and_scales(chapter, settings):
    assert max(gaps(chapter, **settings)) < TOLERANCE


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss_type": "bnpo"},
        {"loss_type": "grpo"},
        {"importance_sampling_level": "sequence"},
        {"scale_rewards": "none"},
        {"epsilon": 0.05},
        {"beta": 0.0},
        {"gradient_accumulation_steps": 1, "loss_type": "dr_grpo"},
    ],
    ids=str,
)
def test_a_wrong_setting_on_our_side_is_noticed(chapter, wrong):
    given = {"loss_type": wrong.get("loss_type") if "gradient_accumulation_steps" in wrong else "dapo"}
    assert gaps(chapter, ours=wrong, beta=0.5, learning_rate=3e-3, **given)[1] > TOLERANCE


def test_old_log_probabilities_stay_frozen_while_the_policy_moves(chapter):
    settings = chapter["Settings"](num_iterations=3, learning_rate=3e-3)
    generator = torch.Generator().manual_seed(0)
    policy = copy.deepcopy(chapter["start"])
    batch = chapter["rollouts"](chapter["local"](policy, generator), [12, 23, 34], settings)
    old = batch["old"].clone()
    chapter["update"](policy, torch.optim.AdamW(policy.parameters(), lr=3e-3), batch, settings, generator)
    assert torch.equal(batch["old"], old)
    moved = (chapter["log_probabilities"](policy, batch) - old)[batch["mask"]].abs().max()
    assert moved > 0.05


def test_the_chapter_and_its_solutions_run_alone_in_the_smoke_recipe(tmp_path, solve):
    done = subprocess.run(
        [sys.executable, "-m", "grpo_utils", "reproduce", "--recipe", "smoke-code", "--only", "06"],
        cwd=ROOT, env=os.environ | {"GRPO_OUTPUTS_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=1800,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    figures = {path.stem for path in (tmp_path / "smoke-code").glob("figures/*.png")}
    assert figures == {"from_scratch_groups", "from_scratch_ratios"}
    solve("06", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "first", "last"),
    [
        ((None, None), "01", "05"),
        ((None, None, True), "01", "06+"),
        ((None, "04"), "04", "05"),
        ((None, "04", True), "04", "06+"),
        ((None, "06"), "06", "06+"),
        (("06", None), "06", "06"),
    ],
)
def test_the_default_chain_is_the_five_chapters_and_all_goes_further(arguments, first, last):
    chosen = [path.name[:2] for path in chain.choose_notebooks(*arguments)]
    assert chosen[0] == first
    assert chosen[-1] == (chain.list_notebooks()[-1].name[:2] if last == "06+" else last)
