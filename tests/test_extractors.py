"""Extractors: a table of completions, and properties that hold for any text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_utils.extractors import extract_any_code, extract_code, extract_fenced, extract_tag, follows_format

TAGS = ("thought", "answer")
CODE = "def f():\n    return 1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"<answer>{CODE}</answer>", CODE),
        (f"<answer>\n```python\n{CODE}\n```\n</answer>", CODE),
        (f"<answer>```py\n{CODE}```</answer>", CODE),
        (f"<answer>\n```\n{CODE}\n```\n</answer> bye", CODE),
        (f"<thought>a\nb</thought><answer>{CODE}</answer>", CODE),
        (f"<answer>{CODE}", None),
        (f"```python\n{CODE}\n```", None),
        ("", None),
    ],
)
def test_strict_code_is_what_the_answer_tag_holds(text, expected):
    assert extract_code(text, "answer") == expected


@pytest.mark.parametrize(
    "text",
    [
        f"<answer>{CODE}</answer>",
        f"Sure:\n```python\n{CODE}\n```\nDone.",
        f"Sure:\n```\n{CODE}",
        f"I would write\n{CODE}",
        f"<thought>x</thought>\n{CODE}\n</answer>",
    ],
)
def test_lenient_code_is_found_wherever_it_stands(text):
    assert extract_any_code(text, "answer") == CODE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<thought>a</thought><answer>b</answer>", True),
        ("\n<thought>\na\nb\n</thought>\n\n<answer>\nb\n</answer>\n", True),
        ("<answer>b</answer><thought>a</thought>", False),
        ("<thought>a</thought><answer>b</answer> bye", False),
        ("Hello <thought>a</thought><answer>b</answer>", False),
        ("<thought>a</thought> so <answer>b</answer>", False),
        ("<thought>a</thought><answer>b</answer><answer>c</answer>", False),
        ("<thought>a<answer>b</answer></thought>", False),
        ("<thought>a</thought><answer>b", False),
        ("", False),
    ],
)
def test_format_is_every_tag_once_in_order_and_nothing_else(text, expected):
    assert follows_format(text, TAGS) is expected


@given(st.text())
def test_no_text_makes_an_extractor_raise(text):
    extract_any_code(text, "answer")
    extract_fenced(text)
    follows_format(text, TAGS)


@given(st.text().filter(lambda text: "<" not in text))
def test_a_tagged_text_comes_back(text):
    assert extract_tag(f"before <answer>{text}</answer> after", "answer") == text.strip()


INSIDE = st.text().filter(lambda text: "<" not in text)
SPACE = st.sampled_from(["", " ", "\n", "\n\n"])


@given(INSIDE, INSIDE, SPACE, SPACE, SPACE)
def test_any_text_between_the_right_tags_follows_the_format(thought, answer, before, between, after):
    text = f"{before}<thought>{thought}</thought>{between}<answer>{answer}</answer>{after}"
    assert follows_format(text, TAGS)
    assert extract_code(text, "answer") is not None
