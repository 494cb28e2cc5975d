"""Extractors: tables of completions, properties that hold for any text, and time on hostile text."""

import json
import re
import textwrap
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_utils import extractors
from grpo_utils.extractors import (
    extract_any_code,
    extract_candidates,
    extract_code,
    extract_fenced,
    extract_final_answer,
    extract_final_number,
    extract_hash_answer,
    extract_numbers,
    extract_tag,
    extract_xml_answer,
    follows_format,
    is_number,
)

CORPUS = json.loads((Path(__file__).parent / "data" / "extractors.json").read_text())
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
        ("<answer>\n    import re\n\n    def f():\n        return 1\n</answer>", f"import re\n\n{CODE}"),
        (f"<answer> {CODE}\nx = f()</answer>", f"{CODE}\nx = f()"),
        ('<answer>\nx = """a\n   \n b"""\n</answer>', 'x = """a\n   \n b"""'),
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
    "text",
    [
        f"```python\nimport this\n```\nor\n```python\n{CODE}\n```",
        f"<answer>see above</answer>\n```\n{CODE}\n```",
        f"<answer>wrong</answer>, no: <answer>{CODE}</answer>",
        f"```\n1\n``` or\n{CODE}",
        f"<answer>{CODE}",
    ],
)
def test_a_candidate_is_any_program_that_the_other_rules_pass_over(text):
    assert CODE in extract_candidates(text, "answer")
    assert extract_code(text, "answer") != CODE


def test_a_program_written_in_two_fences_is_a_candidate_as_a_whole():
    text = "```python\nimport math\n```\nand then\n```python\nx = math.pi\n```"
    assert "import math\nx = math.pi" in extract_candidates(text, "answer")


@pytest.mark.parametrize(("text", "expected"), CORPUS["fences"])
def test_a_fence_is_its_code_without_marks_and_language(text, expected):
    assert extract_fenced(text) == expected
    if expected:
        assert extract_code(f"<answer>\nHere:\n{text}\n</answer>", "answer") == expected
        assert extract_any_code(text, "answer") == expected
        assert expected in extract_candidates(text, "answer")


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


@pytest.mark.parametrize(("tag", "text", "expected"), CORPUS["tags"])
def test_a_tag_is_its_first_complete_section(tag, text, expected):
    assert extract_tag(text, tag) == expected


@pytest.mark.parametrize(("text", "expected"), CORPUS["final_numbers"])
def test_the_final_number_is_exact_however_it_is_written(text, expected):
    assert extract_final_number(text) == (None if expected is None else Fraction(expected))


def test_all_numbers_come_once_each_in_their_order():
    numbers = extract_numbers("6 * 7 = 42, not 10-7 or $1,234.50; 42!")
    assert list(map(str, numbers)) == ["6", "7", "42", "10", "2469/2"]


@pytest.mark.parametrize(("text", "xml_answer", "final_answer"), CORPUS["walkthrough"])
def test_the_helpers_of_the_walkthrough_do_what_they_did(text, xml_answer, final_answer):
    assert extract_xml_answer(text) == xml_answer
    assert extract_final_answer(text) == final_answer


@pytest.mark.parametrize(("solution", "expected"), CORPUS["hash_answers"])
def test_the_gold_answer_of_gsm8k_stands_behind_the_last_hashes(solution, expected):
    assert extract_hash_answer(solution) == expected


PIECES = ["<answer>", "</answer>", "<answer ", ">", "<", "\\boxed{", "}", "\\frac{1}{2}", "```", "\n", "def f():"]
PIECES += ["1", ",", ".", "/", "e", "-", "$", "%", "####", "9" * 300]
PIECES += [" 000", "^", "{,}", "\\,", "x 10^", "⁻²", "\\frac1", "9" * 5000, "````python", "\n~~~"]
REPEATED = [*PIECES, "1,", "1.", "1/", "1e", "(", " ", "\\boxed{1", "<answer a", "@a\n", "from ", "1 000", "1.000"]
REPEATED += ["1^", "^{", "\\frac{1", "````", "'", "\\'", "'''a\\", "'\"", "b'</answer>", " \n", '"""\n```\n']
ANY_TEXT = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
ONE_TEXT = {
    "extract_tag": lambda text: extract_tag(text, "answer"),
    "extract_fenced": extract_fenced,
    "extract_code": lambda text: extract_code(text, "answer"),
    "extract_any_code": lambda text: extract_any_code(text, "answer"),
    "extract_candidates": lambda text: extract_candidates(text, "answer"),
    "extract_final_number": extract_final_number,
    "extract_numbers": extract_numbers,
    "extract_hash_answer": extract_hash_answer,
    "extract_xml_answer": extract_xml_answer,
    "extract_final_answer": extract_final_answer,
    "follows_format": lambda text: follows_format(text, TAGS),
    "is_number": is_number,
}


def test_every_extractor_is_tried_on_hostile_text():
    public = {name for name, value in vars(extractors).items() if re.match("extract|follows|is_", name)}
    assert public == set(ONE_TEXT)


@given(ANY_TEXT)
def test_no_text_makes_an_extractor_raise(text):
    for extract in ONE_TEXT.values():
        extract(text)


WRITTEN = st.sampled_from(
    ["{}", "${}", "{}%", "It is {}.", "{} units", "{} m^2", "\\boxed{{{}}}", "${}\\,\\text{{cm}}$"]
)


@given(st.integers(-(10**12), 10**12), WRITTEN)
def test_an_integer_comes_back_from_any_way_to_write_it(value, way):
    assert extract_final_number(way.format(value)) == value
    for separator in (",", " ", "{,}", "\\,", "\\ ", "~", ",\\!", "'", "\u2009", "\u202f", "\xa0"):
        assert extract_final_number(way.format(f"{value:,}".replace(",", separator))) == value


@given(st.integers(-(10**6), 10**6), st.integers(1, 99), st.integers(100, 999), WRITTEN)
def test_a_fraction_comes_back_from_any_way_to_write_it(whole, part, of, way):
    value = Fraction(part, of)
    mixed, sign = abs(whole) + value, "-" if whole < 0 else ""
    value, mixed = (-value, -mixed) if sign else (value, mixed)
    for fraction in (f"{part}/{of}", f"\\frac{{{part}}}{{{of}}}", f"\\tfrac{{{part}}}{{{of}}}"):
        assert extract_final_number(way.format(sign + fraction)) == value
        assert extract_final_number(way.format(f"{sign}{abs(whole)} {fraction}")) == mixed
    assert extract_final_number(way.format(f"{sign}{abs(whole)}\\frac{{{part}}}{{{of}}}")) == mixed


@given(st.integers(-(10**6), 10**6), st.integers(-9, 9), WRITTEN)
def test_a_power_of_ten_comes_back_from_any_way_to_write_it(value, power, way):
    small = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    for text in (f"{value}e{power}", f"{value} x 10^{power}", f"{value} \\times 10^{{{power}}}", f"{value}·10{small}"):
        assert extract_final_number(way.format(text)) == value * Fraction(10) ** power


@pytest.mark.parametrize("piece", REPEATED)
@pytest.mark.parametrize("name", ONE_TEXT)
def test_a_megabyte_of_hostile_text_neither_raises_nor_hangs(name, piece):
    # anything but linear time would take minutes; benchmarks/rewards.py measures it
    ONE_TEXT[name]("<answer>" + piece * (1_000_000 // len(piece)))


@given(st.text(alphabet="12,٣ a"))
def test_the_walkthroughs_number_is_the_one_that_its_expression_finds(text):
    found = re.search(r"\d+(?:,\d+)*", text)
    assert extract_final_answer(text) == (found.group().replace(",", "") if found else "0")


@given(st.text().filter(lambda text: "<" not in text))
def test_a_tagged_text_comes_back(text):
    assert extract_tag(f"before <answer>{text}</answer> after", "answer") == text.strip()


MARKS = st.sampled_from(["```", "```python", "~~~", "<answer>", "</answer>", "<thought>", "it's", r"\'", r"\"", "x"])
SAYING = st.lists(MARKS, max_size=4).map(" ".join)
STATEMENT = st.one_of(
    st.builds("x = {!r}".format, SAYING),
    st.builds(
        'def f(a):\n    """Says {}.\n\n    {}\n    """\n    return {!r}  # is it\'s'.format, SAYING, SAYING, MARKS
    ),
    st.builds("if x:\n    y = f'''{}\n    {{x}} {} '''".format, SAYING, SAYING),
)


@given(st.lists(STATEMENT, min_size=1, max_size=4), st.sampled_from(["", " ", "    ", "\t"]), st.booleans())
def test_a_program_with_marks_in_its_strings_comes_back_whole_however_far_it_is_indented(parts, margin, fenced):
    program = "\n".join(parts)
    written = textwrap.indent(f"```python\n{program}\n```" if fenced else program, margin, lambda line: True)
    text = f"<thought>It's f.</thought>\n<answer>\n{written}\n</answer>\nThat's it."
    assert extract_code(text, "answer") == extract_any_code(text, "answer") == program


INSIDE = st.text().filter(lambda text: "<" not in text)
SPACE = st.sampled_from(["", " ", "\n", "\n\n"])


@given(INSIDE, INSIDE, SPACE, SPACE, SPACE)
def test_any_text_between_the_right_tags_follows_the_format(thought, answer, before, between, after):
    text = f"{before}<thought>{thought}</thought>{between}<answer>{answer}</answer>{after}"
    assert follows_format(text, TAGS)
    assert extract_code(text, "answer") is not None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<thought>Dogs' 'n cats</thought><answer>3</answer> '. <answer>4</answer>", "3"),
        ('<thought>Let "x be</thought><answer>3</answer> and "y <answer>4</answer>', "3"),
        ("<answer>7 'o clock</answer> It's 'ok\n<answer>8</answer>", "7 'o clock"),
        ("<thought>a '''</thought><answer>x = 1</answer><thought>b '''</thought><answer>2</answer>", "x = 1"),
        ("<answer>    def f(x):\n\treturn x</answer>", "def f(x):\n\treturn x"),  # the two share no indentation
    ],
)
def test_quotes_in_prose_hide_no_section_and_mixed_indentation_is_left(text, answer):
    assert extract_code(text, "answer") == answer
