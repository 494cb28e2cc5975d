"""The browsers: what they show, their menus, their static twin, and that nothing a model wrote is run or hidden."""

import html.parser
import random
import re
import time

import ipywidgets
import pandas as pd
import pytest

from grpo_utils import runs
from grpo_utils.show import browser, panel
from grpo_utils.show.browser import Entry, Shown
from grpo_utils.tasks import CodeTask

PROMPT = runs.load_recipe("smoke-code").prompt
HOSTILE = "</pre></div><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202e\u2066[a](javascript:b) $x$"
BATCH = [
    CodeTask(task_id=i, text=f"Task {HOSTILE} number {i}.", code="def f(): pass", test_list=["assert f() == '<b>'"])
    for i in range(4)
]
BEFORE, AFTER = ("base", 1), ("checkpoint-2", 0)
ALLOWED = {"div", "p", "b", "pre", "span", "details", "summary", "em"}


@pytest.fixture(scope="module")
def records():
    rows = []
    for i in range(4):
        for (name, shots), strict in zip((BEFORE, AFTER), (i in (1, 2), i in (0, 2)), strict=True):
            outcome = {"error": "none" if strict else "wrong answer", "message": "" if strict else HOSTILE}
            outcome |= {"outcomes": ["passed" if strict else "failed"], "truncated": False, "strict": strict}
            key = {"checkpoint": name, "split": "test", "shots": shots, "sample": -1, "task_id": i}
            text = f"<answer>def f():\n    return '{name} {HOSTILE}'</answer>{HOSTILE}"
            rows.append(key | outcome | {"text": text})
            rows.append(rows[-1] | {"sample": 0, "text": "not greedy"})
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def groups(records):
    return browser.before_and_after(records, BATCH, PROMPT, BEFORE, AFTER)


@pytest.fixture
def watched(monkeypatch):
    monkeypatch.setattr(browser, "is_watched", lambda: True)


def rollout(title: str, advantage: float, tests: float = 0.0) -> Shown:
    return Shown(title, "the text", "x = 1", "passed", {"advantage": advantage, "tests": tests})


def tags_in(page: str) -> list[tuple[str, set[str]]]:
    """The elements that a browser would make, each with the names of its attributes."""
    found = []

    class Reader(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            found.append((tag, {name for name, _ in attrs}))

    Reader().feed(page)
    return found


def test_tasks_are_grouped_by_whether_strict_scoring_changed(groups):
    titles = {name: [entry.title[0] for entry in entries] for name, entries in groups.items()}
    assert titles == {"gained": ["0"], "lost": ["1"], "both": ["2"], "neither": ["3"]}


def test_both_completions_are_shown_with_verdict_failing_assert_and_code(groups):
    before, after = browser.render(groups["gained"][0]).split("<div style='min-width:0'>")[1:]
    assert "wrong answer at `assert f() == &#x27;&lt;b&gt;&#x27;`: &lt;/pre&gt;" in before
    assert "<b>checkpoint-2, 0-shot</b>" in after
    assert ">passed</pre>" in after
    assert '<span style="color: #008000; font-weight: bold">def</span>' in after
    assert "not greedy" not in after


def test_an_assert_that_fails_is_named_once():
    scores = {"error": "wrong answer", "outcomes": ["failed"], "message": 'AssertionError: assert f() == "<b>"'}
    assert browser.verdict_of(scores, BATCH[0]) == "wrong answer at `assert f() == '<b>'`"


def test_of_two_programs_the_changed_lines_are_shown():
    old, new = (Shown(name, "", f"def f():\n    return {name}", "passed") for name in ("one", "two"))
    html = re.sub("<[^>]+>", "", browser.render(Entry("1", "question", [old, new])))
    assert "-    return one\n+    return two" in html
    assert "Both programs are the same." in browser.render(Entry("1", "question", [old, old]))
    assert "changed in the program" not in browser.render(Entry("1", "question", [old, new, new]))


def test_nothing_that_a_model_wrote_becomes_an_element_or_hides_a_character(groups):
    for page in (browser.page(groups), *(browser.render(entries[0]) for entries in groups.values())):
        tags = tags_in(page)
        assert {tag for tag, _ in tags} <= ALLOWED
        assert set().union(*(names for _, names in tags)) <= {"style", "class"}
        assert page.count("<pre") == page.count("</pre>")
        assert page.count("<div") == page.count("</div>")
        assert re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", page) is None
        assert r"\x1b[31m\u202e\u2066" in page


def test_a_broken_character_and_an_endless_text_are_shown_and_can_be_stored():
    text = browser.visible("\ud800\x00" + "a" * 1_000_000)
    assert text.encode().startswith(rb"\ud800\x00aaa")
    assert text.endswith("and 994,002 more characters")


def test_rendering_takes_time_linear_in_a_hostile_text():
    characters = random.Random(0)
    for alphabet in ("'\"\\\n f{", "([{<`", "ab\n", "\x1b\u202e0"):
        code = "".join(characters.choices(alphabet, k=1_000_000))
        began = time.process_time()
        browser.render(Entry("1", code, [Shown("one", code, code, code), Shown("two", code, code[::-1], code)]))
        assert time.process_time() - began < 3


def test_the_menus_show_the_chosen_task(groups):
    menus = browser.Browser(groups)
    assert [value for _, value in menus.group.options] == ["gained", "lost", "both", "neither"]
    assert menus.view.value == browser.render(groups["gained"][0])
    menus.group.value = "both"
    assert menus.view.value == browser.render(groups["both"][0])
    assert menus.order not in menus.children


def test_completions_are_sorted_by_the_chosen_score_and_unknown_ones_stand_last():
    shown = [rollout("a", 0.5, float("nan")), rollout("b", -1.0, 1.0), rollout("c", 2.0, 0.5)]
    menus = browser.Browser({"step 1": [Entry("1", "question", shown)]}, ("step", "prompt"))
    assert re.findall("<b>(.)</b>", menus.view.value) == ["c", "a", "b"]
    menus.order.value = "tests"
    assert re.findall("<b>(.)</b>", menus.view.value) == ["b", "c", "a"]


def test_the_order_stays_chosen_from_step_to_step():
    steps = {f"step {i}": [Entry("1", "question", [rollout("a", 1.0, 0.0), rollout("b", 0.0, i)])] for i in (1, 2)}
    menus = browser.Browser(steps, ("step", "prompt"))
    menus.order.value = "tests"
    menus.group.value = "step 2"
    assert menus.order.value == "tests"
    assert "tests 2" in menus.view.value.partition("<b>a</b>")[0]


def test_two_policies_can_be_chosen_from_all_that_were_evaluated(records):
    comparison = browser.Comparison(records, BATCH, PROMPT, BEFORE, AFTER)
    before, after = comparison.before, comparison.after
    assert [label for label, _ in before.options] == ["base, 1-shot", "checkpoint-2, 0-shot"]
    assert list(comparison.groups) == ["gained", "lost", "both", "neither"]
    before.value, after.value = AFTER, AFTER
    assert list(comparison.groups) == ["both", "neither"]
    assert [value for _, value in comparison.group.options] == ["both", "neither"]


def test_a_group_is_looked_up_once_when_it_is_chosen(groups):
    class Counting(dict):
        def __getitem__(self, name):
            asked.append(name)
            return super().__getitem__(name)

    asked = []
    menus = browser.Browser(Counting(groups))
    first, second = list(groups)[:2]
    menus.group.value = second
    assert asked == [first, second]


def test_choosing_other_policies_shows_them_and_leaves_no_widget_behind(records):
    comparison = browser.Comparison(records, BATCH, PROMPT, BEFORE, AFTER)
    open_widgets = set(ipywidgets.Widget.get_manager_state()["state"])
    assert comparison.model_id in open_widgets
    assert comparison.group.value == "gained"
    comparison.before.value, comparison.after.value = AFTER, BEFORE
    swapped = browser.before_and_after(records, BATCH, PROMPT, AFTER, BEFORE)
    assert comparison.group.value == "gained"
    assert comparison.view.value == browser.render(swapped["gained"][0])
    assert set(ipywidgets.Widget.get_manager_state()["state"]) == open_widgets


def test_without_anybody_to_click_a_static_page_is_shown_instead(records, groups):
    entries = groups["gained"] * 5
    for bundle in (
        browser.Browser({"gained": entries})._repr_mimebundle_(),
        browser.Comparison(records, BATCH, PROMPT, BEFORE, AFTER)._repr_mimebundle_(),
    ):
        assert set(bundle) == {"text/plain", "text/html"}
        assert "This page includes" in bundle["text/html"]


def test_somebody_who_can_click_gets_the_menus(records, groups, watched):
    shown = browser.Browser(groups), browser.Comparison(records, BATCH, PROMPT, BEFORE, AFTER)
    for widget in shown:
        assert "application/vnd.jupyter.widget-view+json" in widget._repr_mimebundle_()
    assert not panel.is_watched()


def test_a_page_says_how_much_of_everything_it_includes():
    many = {f"step {i}": [Entry(f"{k}", "question", [rollout("a", 1.0)] * 8) for k in range(5)] for i in range(1, 101)}
    page = browser.page(many, ("step", "prompt"))
    assert "This page includes 4 of 100 steps, 12 prompts and 96 completions." in page
    assert re.findall("<b>(step [0-9]+): 5 prompts</b>", page) == ["step 1", "step 34", "step 67", "step 100"]
    assert page.count("<summary>0</summary>") == 4


def test_a_page_does_not_grow_beyond_its_bound_whatever_was_written():
    worst = Shown("a", "if 1 " * 5_000, "if 1 " * 5_000, "passed")
    page = browser.page({"group": [Entry(str(i), "question", [worst] * 3) for i in range(3)]})
    assert len(page) < browser.CHARACTERS + 1_000
    entries = page.count("<summary>the whole") // 3
    assert 0 < entries < 3
    assert f"{entries} task" in page


def test_a_written_page_stands_alone_and_forbids_scripts(groups, tmp_path):
    text = browser.write_page(tmp_path / "page.html", "<title>", groups).read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "default-src 'none'" in text
    assert "<title>&lt;title&gt;</title>" in text
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tags_in(text)}


def test_code_that_is_missing_or_cut_off_is_said_so():
    scores = {"error": "no answer", "outcomes": ["error"], "truncated": True, "message": "NoCode"}
    assert browser.verdict_of(scores, BATCH[0]) == "no answer (cut off at the limit of tokens)"
