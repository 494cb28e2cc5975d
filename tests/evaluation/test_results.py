"""Tables from records: small synthetic records whose numbers can be counted by hand."""

import json

import numpy as np
import pytest

from grpo_utils import evaluation, runs, tasks
from grpo_utils.sandbox import Verdict
from grpo_utils.show import plots

RECIPE = runs.load_recipe("smoke-code")
TASKS = tasks.load_split(RECIPE, "test")
TEXTS = {True: "<thought>I think.</thought><answer>x = 1</answer>", False: "x"}  # the format, and nothing


def completion(strict: bool, lenient: bool | None = None) -> dict:
    lenient = strict if lenient is None else lenient
    kind = "none" if strict else "no tag" if lenient else "wrong answer"
    scores = {
        "format": strict,
        "strict": strict,
        "lenient": lenient,
        "oracle": lenient,
        "visible": strict,
        "error": kind,
    }
    return {"text": TEXTS[strict], "tokens": 1, "truncated": False} | scores


def write_record(run, checkpoint, split, per_task, shots=1, norm=1.0):
    """`per_task` holds for each task its completions, the greedy one first."""
    owners = zip(TASKS, per_task, strict=False)
    rows = [{"task_id": task.task_id, "grade": task.grade, "completions": row} for task, row in owners]
    path = runs.record_path(run, checkpoint, split, shots)
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {"checkpoint": checkpoint, "split": split, "shots": shots}
    path.write_text(json.dumps({"settings": settings, "update_norm": norm, "tasks": rows}))


@pytest.fixture
def run(tmp_path):
    yes, no = completion(True), completion(False)
    write_record(
        tmp_path, "base", "test", [[no, yes, no], [no, no, no], [yes, yes, yes], [no, no, completion(False, True)]]
    )
    write_record(tmp_path, "checkpoint-2", "test", [[yes, yes, yes], [no, yes, no], [yes, yes, yes], [yes, yes, no]])
    for name, row in (("checkpoint-2", [yes, yes]), ("checkpoint-10", [no, yes]), ("checkpoint-4", [yes, yes])):
        write_record(tmp_path, name, "validation", [row])
    return tmp_path


def test_the_summary_counts_greedy_and_sampled_completions_apart(run):
    table = evaluation.summarise_records(evaluation.load_records(run))
    base = table[(table.checkpoint == "base") & (table.split == "test")].iloc[0]
    assert (base.tasks, base.samples) == (4, 2)
    assert base.greedy_strict == pytest.approx(1 / 4)
    assert base.strict == pytest.approx(3 / 8)
    assert base.lenient == pytest.approx(4 / 8)
    assert base.strict_low <= base.strict <= base.strict_high


def test_the_difference_is_the_mean_of_the_per_task_differences(run):
    records = evaluation.load_records(run)
    change = evaluation.paired_difference(records, ("checkpoint-2", 1), ("base", 1), "test")
    assert change == evaluation.difference([0.5, 0.5, 0, 0.5])
    greedy = evaluation.paired_difference(records, ("checkpoint-2", 1), ("base", 1), "test", greedy=True)
    assert greedy == evaluation.difference([1, 0, 0, 1])
    assert greedy.value == 2 / 4


def test_greedy_and_sampled_completions_have_no_common_mean(run):
    rows = evaluation.of_policy(evaluation.load_records(run), "base", "test", 1)
    with pytest.raises(ValueError, match="never counted together"):
        evaluation.mean_over_tasks(rows, "strict")
    assert evaluation.mean_over_tasks(rows.loc[rows["sample"] < 0], "strict").value == 1 / 4


def test_the_verdict_of_a_row_goes_by_the_p_values_of_all_rows_of_its_table(run):
    yes, untagged = completion(True), completion(False, True)  # right both times: strict and format rise, no other
    write_record(run, "base", "test", [[untagged, untagged]] * 6)
    write_record(run, "checkpoint-2", "test", [[yes, yes]] * 6)
    text = evaluation.comparison_table(evaluation.load_records(run), "checkpoint-2", trained_shots=1)
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| 1-shot")]
    alone = evaluation.difference([1] * 6)
    assert alone.verdict == "up"
    corrected = evaluation.holm([alone.p_value] * 4 + [1.0] * 4)[0]
    rising = {f"{what}, {how}" for what in ("strict", "format") for how in ("sampled", "greedy")}
    assert {row[1]: row[-2:] for row in rows} == {
        row[1]: [f"{corrected:.2g}", "undecided"] if row[1] in rising else ["1", "undecided"] for row in rows
    }
    assert corrected > 0.05


def test_the_choice_goes_by_samples_and_greedy_decides_between_equals(run):
    yes, no = completion(True), completion(False)
    write_record(run, "checkpoint-2", "validation", [[yes, no, no]])
    write_record(run, "checkpoint-4", "validation", [[no, yes, no]])
    assert evaluation.choose_checkpoint(evaluation.load_records(run), shots=1) == "checkpoint-10"
    write_record(run, "checkpoint-10", "validation", [[yes, yes, no]])
    assert evaluation.choose_checkpoint(evaluation.load_records(run), shots=1) == "checkpoint-10"


def test_pass_curves_hold_the_sampled_completions_of_every_policy(run):
    curves = evaluation.pass_curves(evaluation.load_records(run), "test", 1)
    assert list(curves) == ["base", "checkpoint-2"]
    values = {name: {k: point.value for k, point in curve.items()} for name, curve in curves.items()}
    assert values == {"base": {1: 3 / 8, 2: 2 / 4}, "checkpoint-2": {1: 6 / 8, 2: 4 / 4}}
    (axis,) = plots.pass_at_k(curves, "4 tasks").axes
    drawn = [np.asarray(line.get_ydata()).tolist() for line in axis.lines]
    assert drawn == [list(curve.values()) for curve in values.values()]


def test_the_choice_takes_the_earlier_of_two_equal_checkpoints_and_orders_by_step(run):
    assert evaluation.choose_checkpoint(evaluation.load_records(run), shots=1) == "checkpoint-2"


def test_an_adapter_that_the_chain_did_not_make_is_summarised_last_and_never_the_choice(run):
    for name in ("my-adapter", "mine-2", "checkpoint-2-backup"):
        write_record(run, name, "validation", [[completion(True)] * 3])
    write_record(run, "checkpoint-2", "validation", [[completion(False)] * 2])
    write_record(run, "checkpoint-4", "validation", [[completion(False), completion(True)]])
    records = evaluation.load_records(run)
    assert evaluation.choose_checkpoint(records, shots=1) == "checkpoint-4"
    table = evaluation.summarise_records(records)
    assert table[table.split == "validation"].checkpoint.tolist() == [
        *("checkpoint-2", "checkpoint-4", "checkpoint-10"),
        *("checkpoint-2-backup", "mine-2", "my-adapter"),
    ]
    figure = plots.learning_curve(records, 1)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()][-2:] == ["mine-2", "my-adapter"]


def test_policies_that_saw_different_tasks_are_not_compared(run):
    with pytest.raises(ValueError, match="same tasks"):
        evaluation.paired_difference(evaluation.load_records(run), ("checkpoint-4", 1), ("base", 1), "test")


def test_results_csv_holds_every_evaluation_in_order(run):
    table = evaluation.write_results(RECIPE, run)
    assert table[["split", "checkpoint"]].values.tolist() == [
        ["test", "base"],
        ["test", "checkpoint-2"],
        ["validation", "checkpoint-2"],
        ["validation", "checkpoint-4"],
        ["validation", "checkpoint-10"],
    ]
    assert "+37.5" in (run / "results.md").read_text()
    assert "| strict_format | 1 | 0.375 | 37.5% | 0.750 | 75.0% | +0.375 [" in (run / "results.md").read_text()


def test_an_extra_evaluation_leaves_the_tables_as_they_are(run):
    evaluation.write_results(RECIPE, run)
    before = [(run / name).read_bytes() for name in ("results.csv", "results.md")]
    every = [[completion(True)] * 3] * 4
    write_record(run, "base", "human-eval", every)
    for checkpoint, split, shots in (
        ("checkpoint-4", "test", 1),
        ("checkpoint-2", "test", 0),
        ("checkpoint-2", "train", 1),
    ):
        write_record(run, checkpoint, split, every, shots=shots)
    evaluation.write_results(RECIPE, run)
    assert [(run / name).read_bytes() for name in ("results.csv", "results.md")] == before
    assert set(evaluation.load_records(run).split) == {"human-eval", "test", "train", "validation"}


def test_the_comparison_tells_the_warm_start_from_grpo(run):
    yes, no = completion(True), completion(False)
    write_record(run, "warm-start", "test", [[no, yes, no], [no, yes, no], [yes, yes, yes], [no, no, no]])
    records = evaluation.load_records(run)
    text = evaluation.comparison_table(records, "checkpoint-2", trained_shots=1)
    assert "| warm start | strict, sampled | 37.5% | 50.0% | +12.5 [" in text
    assert "| GRPO | strict, sampled | 50.0% | 75.0% | +25.0 [" in text


def test_the_warm_start_comes_before_the_first_checkpoint_and_is_never_the_choice(run):
    write_record(run, "warm-start", "validation", [[completion(True)] * 2])
    records = evaluation.load_records(run)
    table = evaluation.summarise_records(records)
    assert table[table.split == "validation"].checkpoint.tolist()[0] == "warm-start"
    assert evaluation.choose_checkpoint(records, shots=1) == "checkpoint-2"


def test_the_best_prompt_is_the_one_with_which_the_base_samples_best(run):
    write_record(run, "base", "test", [[completion(False), completion(True), completion(True)]] * 4, shots=3)
    assert evaluation.best_prompt(evaluation.load_records(run)) == 3


def test_hidden_given_visible_is_a_share_of_those_that_pass_the_shown_assert(run):
    fitted = completion(False) | {"visible": True}
    write_record(run, "base", "validation", [[fitted, fitted, completion(True)], [fitted, fitted, completion(False)]])
    table = evaluation.summarise_records(evaluation.load_records(run))
    row = table[(table.checkpoint == "base") & (table.split == "validation")].iloc[0]
    assert (row.visible, row.hidden_given_visible, row.greedy_visible) == (3 / 4, 1 / 3, 1.0)


def test_an_adapter_that_changes_nothing_is_named(run):
    assert evaluation.without_effect(evaluation.load_records(run)) == []
    write_record(run, "checkpoint-4", "validation", [[completion(True)] * 2], norm=0.0)
    write_record(run, "base", "validation", [[completion(True)] * 2], norm=0.0)
    records = evaluation.load_records(run)
    (sentence,) = evaluation.without_effect(records)
    assert sentence.startswith("checkpoint-4 changes nothing")
    assert evaluation.comparison_table(records, "checkpoint-2", trained_shots=1).endswith(sentence)


def test_rewards_are_means_over_tasks_beside_their_maximum(run):
    recipe = runs.load_recipe("smoke-code", {"rewards": {"strict_format": 0.5, "tests": 1.0, "truncated": 0.25}})
    table = evaluation.reward_table(recipe, evaluation.load_records(run), ("base", 1), ("checkpoint-2", 1))
    assert table.index.tolist() == ["strict_format", "tests", "truncated", evaluation.TOTAL]
    row = table.loc["strict_format"]
    assert (row.maximum, row.before, row["after / maximum"], row.difference) == (1.0, 0.375, 0.75, 0.375)
    assert row.low <= row.difference <= row.high
    assert table.loc["tests", "after"] == 0.0
    assert table.loc["truncated"].isna().tolist() == [False, False, True, False, True, False, False, False]
    assert table.loc[evaluation.TOTAL, "maximum"] == 1.5
    assert table.loc[evaluation.TOTAL, "after"] == pytest.approx(0.375)


@pytest.mark.parametrize(("allowed", "paid"), [(2, 0.0), (1, -1.0)])
def test_rewards_know_under_which_limit_the_completions_were_written(run, allowed, paid):
    settings = {"grpo.max_completion_length": 3 - allowed, "evaluation.max_new_tokens": allowed}
    recipe = runs.load_recipe("smoke-code", settings | {"rewards": {"truncated": 1.0}})
    table = evaluation.reward_table(recipe, evaluation.load_records(run), ("base", 1), ("checkpoint-2", 1))
    assert table.loc["truncated", ["before", "after"]].tolist() == [paid, paid]  # the completions have one token


@pytest.mark.parametrize(
    ("tagged", "anywhere", "verdict", "kind"),
    [
        (None, None, Verdict("error"), "no answer"),
        (None, "x", Verdict("passed"), "no tag"),
        ("x", "x", Verdict("passed"), "none"),
        ("x", "x", Verdict("failed"), "wrong answer"),
        ("x", "x", Verdict("error", error_type="SyntaxError"), "syntax"),
        ("x", "x", Verdict("error", error_type="NameError"), "name"),
        ("x", "x", Verdict("error", error_type="KeyError"), "other exception"),
        ("x", "x", Verdict("timeout"), "timeout"),
    ],
)
def test_errors_are_told_apart(tagged, anywhere, verdict, kind):
    assert evaluation.error_kind(tagged, anywhere, verdict) == kind
