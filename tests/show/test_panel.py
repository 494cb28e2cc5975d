"""The panel of a training: its numbers, that it draws or prints, and that it never stops what it watches."""

import re
import warnings

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from grpo_utils.runs import ROOT, chain
from grpo_utils.show import panel
from grpo_utils.show.panel import Panel, PanelWarning


def entry(step: int, max_steps: int = 16, **values: object) -> panel.LogEntry:
    return {
        "step": step,
        "max_steps": max_steps,
        "loss": 0.0,
        "reward": step / 8,
        "rewards/tests/mean": step / 16,
        "rewards/strict_format/mean": None,
        "completions/mean_length": 55.4,
        "completions/clipped_ratio": 0.125,
        "frac_reward_zero_std": 0.25,
        "num_tokens": 3000.0 * step,
        "step_time": 30.0,
        **values,
    }


LOG = [entry(step) for step in range(1, 6)]


@pytest.fixture
def displayed(monkeypatch) -> list[str]:
    """What a notebook's reader sees, newest last."""
    pages: list[str] = []

    class Handle:
        def update(self, page):
            pages.append(page.data)

    def display(page, display_id):
        pages.append(page.data)
        return Handle()

    monkeypatch.setattr(panel, "is_watched", lambda: True)
    monkeypatch.setattr(panel, "display", display)
    return pages


def test_a_line_says_all_there_is_to_watch():
    assert panel.describe(LOG) == (
        "step    5 of 16  reward 0.62  tests 0.31  strict_format nan  length 55  cut off 0.12  "
        "groups without spread 0.25  tokens per second 100  30.0 s a step  0:05:30 left"
    )


def test_steps_on_completions_of_an_earlier_step_keep_its_numbers():
    reused = {"step": 2, "max_steps": 16, "loss": 0.25, "kl": 0.01, "step_time": 10.0}
    log = [entry(1), reused, entry(3, num_tokens=6000.0)]
    assert panel.describe(log[:2]).startswith("step    2 of 16  reward 0.12  tests 0.06")
    assert panel.curves(log)["reward"] == [0.125, 0.375]
    assert panel.curves(log)["tokens per second"] == [100.0, 50.0]  # 3,000 tokens in the two steps since


def test_rates_count_the_steps_between_two_entries():
    log = [entry(step, step_time=10.0) for step in (20, 40)]
    assert panel.curves(log)["tokens per second"] == [300.0, 300.0]


def test_the_time_left_follows_the_last_steps_not_the_first():
    log = [entry(1, step_time=500.0), *(entry(step, step_time=2.0) for step in range(2, 7))]
    assert panel.describe(log).endswith("2.0 s a step  0:00:20 left")


@pytest.mark.parametrize(("max_steps", "logging_steps", "lines"), [(16, 1, 16), (5760, 25, 40), (3, 5, 1)])
def test_without_a_display_it_prints_some_lines_however_long_the_training(max_steps, logging_steps, lines, capsys):
    show = Panel()
    for step in [*range(logging_steps, max_steps, logging_steps), max_steps]:
        show(entry(step, max_steps))
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == pytest.approx(lines, abs=4 if lines > 20 else 0)
    assert printed[-1].startswith(f"step {max_steps:>4} of {max_steps}")


RESUMED = [entry(step, 300, step_time=500.0, going_on=74) for step in range(1, 75)] + [entry(75, 300, step_time=2.0)]


def test_a_resumed_training_says_from_where_and_takes_its_pace_from_its_own_steps(capsys):
    show = Panel()
    for one in RESUMED:
        show(one)
    going_on, step = capsys.readouterr().out.splitlines()
    assert going_on == "going on from step 74 of 300"
    assert step.startswith("step   75 of 300")
    assert step.endswith("2.0 s a step  0:07:30 left")


def test_the_panel_of_a_resumed_training_has_the_earlier_curves_and_says_from_where_it_goes_on(displayed, capsys):
    show = Panel()
    for one in RESUMED:
        show(one)
    assert "<p>step 75 of 300, going on from step 74, 2.0 s a step, 0:07:30 left</p>" in displayed[-1]
    assert "from 0.12 to 9.38" in displayed[-1]  # the reward, since the first step
    assert capsys.readouterr().out == ""


def test_the_summary_at_the_end_of_a_training_is_no_step(capsys):
    Panel()({"step": 16, "train_runtime": 444.0, "train_loss": 0.02})
    assert capsys.readouterr().out == ""


def test_in_a_notebook_one_display_is_drawn_again(displayed, capsys):
    show = Panel()
    for one in LOG:
        show(one)
    assert capsys.readouterr().out == ""
    assert len(displayed) == 5
    titles = ("reward", "tests", "length (tokens)", "groups without spread (share)", "tokens per second")
    for word in (*titles, "0:05:30 left"):
        assert word in displayed[-1]
    curve = re.search("points='([^']*)'", displayed[-1])
    assert curve is not None
    assert [point.split(",")[0] for point in dict.fromkeys(curve[1].split())] == [
        "0.0",
        "25.0",
        "50.0",
        "75.0",
        "100.0",
    ]
    assert curve[1].endswith("100.0,2.0")  # the highest value stands at the top


def test_a_long_training_does_not_make_a_large_panel():
    log = [entry(step, 6000) for step in range(1, 6001)]
    assert len(panel.render_panel(log)) < 40_000


def test_a_supervised_training_shows_its_loss(capsys):
    show = Panel()
    for step in (1, 2):
        show({"step": step, "max_steps": 2, "loss": 0.5, "grad_norm": 1.0, "num_tokens": 10.0})
    assert capsys.readouterr().out.splitlines() == ["step    1 of 2  loss 0.50", "step    2 of 2  loss 0.50"]


def test_a_panel_that_fails_warns_and_raises_nothing(displayed, monkeypatch):
    monkeypatch.setattr(panel, "render_panel", lambda log: 1 / 0)
    with pytest.warns(PanelWarning, match="goes on: ZeroDivisionError: division by zero"):
        Panel()(LOG[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PanelWarning):
            Panel()(LOG[0])


def test_nobody_watches_a_process_that_is_no_notebook():
    assert not panel.is_watched()


@pytest.mark.parametrize("headless", [False, True])
def test_a_kernel_draws_the_panel_and_one_of_the_chain_prints_lines(headless, monkeypatch):
    if headless:
        monkeypatch.setenv(panel.HEADLESS, "1")
    lines = "\n".join(f"show({{'step': {step}, 'max_steps': 4, 'loss': 0.5}})" for step in (1, 2))
    notebook = new_notebook(cells=[new_code_cell(f"from grpo_utils.show.panel import Panel\nshow = Panel()\n{lines}")])
    NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}).execute()
    outputs = notebook.cells[0].outputs
    if headless:
        assert "".join(one.text for one in outputs).splitlines() == [
            "step    1 of 4  loss 0.50",
            "step    2 of 4  loss 0.50",
        ]
    else:
        (shown,) = outputs
        assert "step 2 of 4" in shown.data["text/html"]


def test_while_a_notebook_runs_its_newest_line_is_passed_on_now_and_then(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(chain.time, "monotonic", lambda: now[0])
    relay = chain.Relay()
    for second, text in (
        (1, "too early\n"),
        (20, "\rbar 1\rbar 2"),
        (21, "too soon"),
        (40, "\n"),
        (41, "\x1b]0;a\x07\u202eb\n"),
    ):
        now[0] = second
        relay.write(text)
        relay.flush()
    assert capsys.readouterr().err == "  bar 2\n  ]0;ab\n"
