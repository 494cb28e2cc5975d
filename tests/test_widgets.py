"""The browser: what it shows of each task, its menus, its static twin, and that nothing a model wrote is run."""

import re

import pandas as pd
import pytest

from grpo_utils import recipes, widgets
from grpo_utils.tasks import CodeTask

PROMPT = recipes.load("smoke-code").prompt
HOSTILE = "</pre></td><script>alert(1)</script><img src=x onerror=alert(1)>"
BATCH = [
    CodeTask(task_id=i, text=f"Task {HOSTILE} number {i}.", code="def f(): pass", test_list=["assert f() == '<b>'"])
    for i in range(4)
]
POLICIES = {"base <i>": ("base", 1), "trained": ("checkpoint-2", 0)}


@pytest.fixture(scope="module")
def entries():
    rows = []
    for i in range(4):
        for (name, shots), strict in zip(POLICIES.values(), (i in (1, 2), i in (0, 2)), strict=True):
            outcome = {"error": "none" if strict else "wrong answer", "message": "" if strict else HOSTILE}
            outcome |= {"outcomes": ["passed" if strict else "failed"], "truncated": False, "strict": strict}
            key = {"checkpoint": name, "split": "test", "shots": shots, "sample": -1, "task_id": i}
            rows.append(key | outcome | {"text": f"<answer>def f():\n    return '{HOSTILE}'</answer>{HOSTILE}"})
            rows.append(rows[-1] | {"sample": 0, "text": "not greedy"})
    return widgets.before_and_after(pd.DataFrame(rows), BATCH, PROMPT, POLICIES)


def test_tasks_are_grouped_by_whether_strict_scoring_changed(entries):
    assert {entry.group: entry.title[0] for entry in entries} == {
        "gained": "0",
        "lost": "1",
        "both": "2",
        "neither": "3",
    }


def test_both_completions_are_shown_with_verdict_failing_assert_and_code(entries):
    html = widgets.render(entries[0])
    before, after = html.split("<td")[1:]
    assert "wrong answer at `assert f() == &#x27;&lt;b&gt;&#x27;`: &lt;/pre&gt;" in before
    assert "<b>trained</b>: passed" in after
    assert '<span style="color: #008000; font-weight: bold">def</span>' in after
    assert "not greedy" not in html


def test_what_a_model_wrote_is_escaped_wherever_it_stands(entries):
    for html in (widgets.page(entries), *(widgets.render(entry) for entry in entries)):
        assert not re.search(r"<(script|img|i>)", html)
        assert html.count("<pre") == html.count("</pre>")
        assert html.count("<td") == html.count("</td>")


def test_the_menus_show_the_chosen_task(entries):
    browser = widgets.Browser(entries)
    assert list(browser.group.options) == ["gained", "lost", "both", "neither"]
    assert browser.view.value == widgets.render(entries[0])
    browser.group.value = "both"
    assert browser.view.value == widgets.render(entries[2])


def test_without_a_kernel_the_first_tasks_of_each_group_stand_in_the_output(entries):
    bundle = widgets.Browser(entries * 5)._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"}
    assert bundle["text/html"].count("<summary>0:") == widgets.PER_GROUP
    assert "gained: 5 of 20 tasks" in bundle["text/html"]


def test_code_that_is_missing_or_cut_off_is_said_so():
    scores = {"error": "no answer", "outcomes": ["error"], "truncated": True, "message": "NoCode"}
    assert widgets.verdict_of(scores, BATCH[0]) == "no answer (cut off at the limit of tokens)"
