"""Figures from small synthetic records: what stands in them is what was counted."""

import pandas as pd
import pytest

from grpo_utils import plots, results, tasks


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    return pd.read_csv(tasks.ROOT / "data" / "reference" / "llama3_8b_grpo_mbpp.csv")


def records(shares: dict[str, float], count: int = 10) -> pd.DataFrame:
    """One greedy completion for each task; the first tasks are solved."""
    key = {"split": "validation", "shots": 1, "sample": -1}
    rows = [
        key | {"checkpoint": c, "task_id": i, "strict": i < count * p} for c, p in shares.items() for i in range(count)
    ]
    return pd.DataFrame(rows)


def test_the_published_table_is_the_base_and_twelve_checkpoints_of_500_tasks(published):
    assert len(published) == 13
    assert set(published.tasks) == {500}
    counts = 500 * published[["0-shot", "3-shot"]]
    assert (counts - counts.round()).abs().max(axis=None) < 1e-9
    assert counts["3-shot"].round().astype(int).agg(["min", "max"]).tolist() == [279, 290]


def test_the_figure_shows_the_published_table_and_our_policies_in_order_of_training(published):
    ours = records({"checkpoint-10": 0.5, results.BASE: 0.1, "checkpoint-4": 0.3})
    left, right = plots.beside_published(published, ours, trained_shots=1).axes
    drawn = [container[0].get_ydata().tolist() for container in left.containers]
    assert drawn == [published["0-shot"].tolist(), published["3-shot"].tolist()]
    assert right.containers[0][0].get_ydata().tolist() == [0.1, 0.3, 0.5]
    assert [label.get_text() for label in right.get_xticklabels()] == ["base", "step 4", "step 10"]


@pytest.mark.parametrize("warm", [False, True])
def test_the_warm_start_is_drawn_only_where_there_was_one(warm):
    names = [results.BASE, "checkpoint-4"] + ([results.WARM_START] if warm else [])
    key = {"split": "test", "shots": 0, "strict": True, "lenient": True, "grade": 1, "task_id": 1}
    rows = [key | {"checkpoint": name, "sample": sample} for name in names for sample in (-1, 0)]
    left, right = plots.before_and_after(pd.DataFrame(rows), "checkpoint-4", trained_shots=0).axes
    expected = ["base, 0-shot", "warm start, 0-shot", "trained, 0-shot"]
    assert right.get_legend_handles_labels()[1] == [label for label in expected if warm or "warm" not in label]
    assert len(left.get_xticks()) == len(names)
