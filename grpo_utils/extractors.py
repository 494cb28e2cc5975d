"""The text of a completion -> its parts: tagged sections, Python code, the final number.

Everything here takes time linear in the length of the text: a completion is hostile input. Nothing raises on any
string, and nothing judges whether an answer is right; that is what `rewards` and `sandbox` do.
"""

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

FENCE = r"`{3,}|^ {0,3}~{3,}"
# A string of Python, which may hold marks that mean nothing. A fence that begins a line is one to Markdown wherever it
# stands: no string goes over it. Nothing here is tried twice, so a search takes linear time.
STRING = r"""(?<![\w\\])[bfruBFRU]{0,2}(?:
    (?P<long>'{3}|"{3}) (?:(?s:\\.)|(?!(?P=long)|\n[ ]{0,3}(?:`{3}|~{3}))[^\\])*+ (?P=long)
    |(?P<short>['"]) (?:(?s:\\.)|(?!(?P=short))[^\\\n])*+ (?P=short)
)"""
LANGUAGE = re.compile(  # on a line of its own, where it may be missing, or before code on the same line
    r"[ \t]*+(?:(?:i?python|py)(?: ?\d[\d.]*)?)?+[ \t\r]*+\n|[ \t]*+(?:i?python|py)\d*[ \t]+(?=[\w@({\[\"'#])",
    re.IGNORECASE | re.ASCII,
)
CANDIDATES = 8  # a completion with more programs than that is noise, and each one costs a run
BARE_CODE = re.compile(r"\n(?=[acdfi@])(?:(?:async )?def |class |import |from |@\w)")
BOXED = "\\boxed{"
SUPERSCRIPT = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207b]+")
PLAIN_DIGITS = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b", "0123456789-")
SPACE = re.compile(r"\\[,;: ]|[~\u00a0\u2009\u202f]")  # what may stand between groups of three digits
GROUPED = re.compile(
    r"""(?<![\d.])(?:
        (?P<by_commas> \d{1,3} (?: (?:,\d{3})+ | (?:['\u2019_]\d{3})+ ) (?!\d) )
        # grouped by spaces or points: the decimals may follow a comma, and of points alone there must be two
        | (?<!\d[ ,]) [1-9]\d{0,2} (?:[ ]\d{3})+ (?![\d/]) (?: ,\d+ (?![\d,]) )?
        | [1-9]\d{0,2} (?:\.\d{3})+ ,\d+ (?![\d,])
        | [1-9]\d{0,2} (?:\.\d{3}){2,} (?!\.?\d)
    )""",
    re.ASCII | re.VERBOSE,
)
TIMES_TEN = re.compile(r"(?<=\d) ?(?:[x*\u00d7\u00b7]|\\times|\\cdot) ?10\^(?:\{(-?\d+)\}|(-?\d+))", re.ASCII)
MIXED = re.compile(r"(?<=\d) ?(?=\\[cdt]?frac)", re.ASCII)
FRACTION = re.compile(r"\\[cdt]?frac ?(?:\{(-?[\d.]+)\}|(\d)) ?(?:\{(-?[\d.]+)\}|(\d))", re.ASCII)
NUMBER = re.compile(
    r"\^\{?[-\u2212]?\d+"  # the exponent of a unit or a variable is no number by itself
    r"|(?P<minus>(?<![\w.)\]}])[-\u2212])?\\?\$?"  # a sign, but not the minus of "10-7"; a dollar sign
    r"(?:(?<!\d:)(?P<whole>\d+) (?=\d+/\d))?"  # 3 1/2, but not 16:30 1/2
    r"(?P<digits>\d+(?:\.\d+)*|(?<![\w.])\.\d+)"  # also those of 1.2.3, which is none
    r"(?:\^(?:\{(?P<braced>-?\d+)\}|(?P<power>-?\d+)))?"
    r"(?:[eE](?P<exponent>[+-]?\d+))?(?:/(?P<divisor>-?\d+(?:\.\d+)?))?",
    re.ASCII,
)
DIGIT = re.compile(r"[0-9]")
WINDOW = 200  # characters that are searched for a number; no honest one is longer
BEHIND = 10  # characters behind the last digit that may belong to its number: braces, an exponent in small digits


def extract_tag(text: str, tag: str) -> str | None:
    """Returns what stands in the first complete `<tag>...</tag>`, stripped, or None without one.

    The opening tag may have attributes. Of nested sections the innermost counts, so an opening tag that is only
    mentioned before the section does no harm; nor does a tag in a string of Python. One that is never closed is none.

    Example:
        >>> extract_tag("<thought>Now the <answer>:</thought><answer unit='eggs'>42</answer>", "answer")
        '42'
        >>> extract_tag("<answer>never closed", "answer") is None
        True
    """
    section = _section(text, tag)
    return None if section is None else section.strip()


def _section(text: str, tag: str) -> str | None:
    """What stands in the first complete section. Tags in strings of a program in it are none; prose has no strings."""
    # the limit on attributes keeps a search through an open tag short
    marks = rf"<(?P<closing>/)?{re.escape(tag)}(?(closing)|(?:\s[^<>]{{0,200}})?)>"
    first = next((mark for mark in re.finditer(marks, text) if not mark["closing"]), None)
    if first is None:
        return None
    plain, aware = (
        _innermost(found, first.end())
        for found in (re.compile(marks).finditer(text, first.end()), _outside_strings(marks, text, first.end()))
    )
    if plain is None:
        return None
    # what only begins after the end of the first section is another one: a quote in the first was no string's
    start, end = aware if aware and aware[0] <= plain[1] else plain
    return text[start:end]


def _innermost(marks: Iterator[re.Match[str]], start: int) -> tuple[int, int] | None:
    """Where the innermost section begins and ends, of which the first has been opened before `start`."""
    for mark in marks:
        if mark["closing"]:
            return start, mark.start()
        start = mark.end()
    return None


def _outside_strings(mark: str, text: str, start: int = 0) -> Iterator[re.Match[str]]:
    """Where a regular expression matches, but for what stands in strings of Python."""
    either = re.compile(f"(?x:{STRING})|(?P<mark>{mark})", re.MULTILINE)  # re keeps it
    return (found for found in either.finditer(text, start) if found["mark"] is not None)


def _program(text: str) -> str:
    """A text without the white space around it, and without the indentation that all of its lines share."""
    margin = os.path.commonprefix(re.findall(r"^[ \t]*(?=\S)", text, re.MULTILINE))  # noqa: RUF071
    return re.sub(f"^{margin}", "", text, flags=re.MULTILINE).strip()


def extract_fenced(text: str) -> str | None:
    """Returns the body of the first Markdown code fence, or None without one. A fence left open runs to the end.

    A fence is of three or more backticks or, at the start of a line, tildes; one in a string of Python is none, unless
    it begins a line. A language that is Python's is left out, and so is the indentation that all lines share.
    """
    return next(_fenced(text), None)


def _fenced(text: str) -> Iterator[str]:
    """The bodies of all fences. The mark that opens one closes it; where that is missing, its first three do."""
    end = 0
    while opening := next(_outside_strings(FENCE, text, end), None):
        mark = opening.group().strip()
        marks = (f"{mark[0]}{{{length}}}" for length in (len(mark), 3))
        closings = (next(_outside_strings(one, text, opening.end()), None) for one in marks)
        stop, end = next((closing.span() for closing in closings if closing), (len(text), len(text)))
        body = text[opening.end() : stop]
        yield _program(body[language.end() if (language := LANGUAGE.match(body)) else 0 :])


def extract_code(text: str, tag: str) -> str | None:
    """Returns the code inside `<tag>`, without a fence around it, or None when the tag is missing: the strict rule."""
    section = _section(text, tag)
    code = None if section is None else _program(section)
    fenced = None if code is None else extract_fenced(code)
    return code if fenced is None else fenced


def extract_any_code(text: str, tag: str) -> str | None:
    """Returns code wherever it stands: in the tag, else in a fence, else from the first line that defines or imports.

    This is the lenient rule. It tells ability from format: a policy that solves the task but ignores the tags
    scores here and not under `extract_code`.
    """
    code = extract_code(text, tag)
    if code is None:
        code = extract_fenced(text)
    if code is None:
        bare = BARE_CODE.search(f"\n{text}")
        code = None if bare is None else text[bare.start() :].partition(f"</{tag}>")[0].rstrip()
    return code


def extract_candidates(text: str, tag: str) -> list[str]:
    """Returns every part of a text that may be meant as its program, each once: what the oracle rule tries.

    These are the contents of fences, all fences together, tagged sections (also one that is never closed), and what
    follows the first line that defines or imports. Of a text with more than eight parts the first eight count.

    Example:
        >>> extract_candidates("<answer>See below.</answer>\\n```python\\nx = 1\\n``` or ```x = 2```", "answer")
        ['x = 1', 'x = 2', 'x = 1\\nx = 2', 'See below.']
    """
    fences = list(itertools.islice(_fenced(text), CANDIDATES))
    sections = [_program(part.partition(f"</{tag}>")[0]) for part in text.split(f"<{tag}>", CANDIDATES)[1:]]
    bare = BARE_CODE.search(f"\n{text}")
    unfenced = re.split(f"(?m){FENCE}", text[bare.start() :], maxsplit=1)[0] if bare else ""
    found = [*fences, "\n".join(fences), *sections, unfenced]
    return [part for part in dict.fromkeys(found) if part.strip()][:CANDIDATES]


def extract_final_number(text: str) -> Fraction | None:
    """Returns the number that a text ends on, exactly, or None without one.

    The last `\\boxed{}` with a number in it counts, else the last number of the text. A currency sign, thousands
    separators (commas, spaces, points), a percent sign, units and a full stop do not matter: 96% is 96, as the answers
    of GSM8K want it. What is written like a number and is none, as 1/0 and the version 1.2.3, is None, as is a number
    of more than 100 characters or with an exponent beyond 99.

    Example:
        >>> [str(extract_final_number(text)) for text in ("$1,234.50", "96%", "3 1/2", "2 x 10^3", "It is 42", "1.2.3")]
        ['2469/2', '96', '7/2', '2000', '42', 'None']
        >>> extract_final_number("so $x = \\\\boxed{\\\\frac{1}{2}}$, see page 7")
        Fraction(1, 2)
    """
    if text.isascii() and text.isdigit() and len(text) <= WINDOW // 2:  # most answers: no need to search
        return Fraction(int(text))
    boxed = text.rfind(BOXED)
    if boxed >= 0:
        number = _last_number(_braced(text[boxed + len(BOXED) :][:WINDOW]))
        if number is not None:
            return number
    backwards = DIGIT.search(text[::-1])
    if backwards is None:
        return None
    end = len(text) - backwards.start()
    return _last_number(text[max(0, end - WINDOW) : end + BEHIND])


def _braced(text: str) -> str:
    """The text up to the brace that closes the one just opened, or all of it."""
    depth = 1
    for position, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[:position]
    return text


def _last_number(window: str) -> Fraction | None:
    found = [number for number in NUMBER.finditer(_plain(window)) if number["digits"]]
    return _value(found[-1]) if found else None


def _plain(text: str) -> str:
    """A text with each of its numbers written in the one way that `NUMBER` reads."""
    text = SUPERSCRIPT.sub(lambda small: f"^{small.group().translate(PLAIN_DIGITS)}", text)
    text = SPACE.sub(" ", text.replace("{,}", ",").replace("\\!", ""))
    text = GROUPED.sub(_ungrouped, text)
    text = TIMES_TEN.sub(r"e\1\2", text)
    return FRACTION.sub(r"\1\2/\3\4", MIXED.sub(" ", text))


def _ungrouped(number: re.Match[str]) -> str:
    if number["by_commas"]:
        return re.sub(r"\D", "", number.group())
    digits, comma, decimals = number.group().partition(",")
    return re.sub(r"\D", "", digits) + (f".{decimals}" if comma else "")


def _value(number: re.Match[str]) -> Fraction | None:
    minus, whole, digits, braced, power, exponent, divisor = number.groups()
    if len(number.group()) > WINDOW // 2 or digits.count(".") > 1:
        return None
    value, to, ten = Fraction(digits), int(braced or power or 1), int(exponent or 0)
    if abs(ten) > 99 or len(digits) * abs(to) > WINDOW:
        return None
    try:
        if to != 1:
            value **= to
        if ten:
            value *= Fraction(10) ** ten
        if divisor:
            value /= Fraction(divisor)
    except ZeroDivisionError:  # 1/0, 0^-1
        return None
    if whole and value < 1:  # else the number before it is one by itself
        value += int(whole)
    return -value if minus else value


def is_number(text: str) -> bool:
    """Whether a text is one number and nothing else, but for white space, a currency and a percent sign around it.

    Example:
        >>> [is_number(text) for text in (" $1,234.50", "96%", "6 * 7", "42 eggs", "1/0")]
        [True, True, False, False, False]
    """
    if len(text) > WINDOW:
        return False
    number = NUMBER.fullmatch(_plain(text.strip().removesuffix("%").removesuffix("\\")))
    return number is not None and number["digits"] is not None and _value(number) is not None


def extract_numbers(text: str) -> list[Fraction]:
    """Returns all numbers of a text, each once, in the order of their first use; of over 1,000 the last."""
    values = (_value(number) for number in NUMBER.finditer(_plain(text)) if number["digits"])
    return list(dict.fromkeys(value for value in values if value is not None))[-1000:]


def extract_hash_answer(text: str) -> str | None:
    """Returns the gold answer of a solution of GSM8K, without separators, or None: what follows the last `####`.

    Cobbe et al. 2021, arXiv 2110.14168, write every solution so.

    Example:
        >>> extract_hash_answer("48 + 24 = <<48+24=72>>72 clips.\\n#### 1,072")
        '1072'
    """
    _, marked, answer = text.rpartition("####")
    return answer.strip().replace(",", "").replace("$", "") if marked else None


def extract_xml_answer(text: str) -> str:
    """Returns what follows the last `<answer>`, up to the next `</answer>`, stripped: the walkthrough's own helper.

    This and `extract_final_answer` are the helpers of a public GSM8K walkthrough, "LLM Reinforcement Learning with
    GRPO" (March 2025), after Will Brown's `grpo_demo.py`; they are here so that its numbers can be compared. A text
    without tags is its own answer. `extract_tag` is the mended variant.
    """
    return text.rpartition("<answer>")[2].partition("</answer>")[0].strip()


def extract_final_answer(text: str) -> str:
    """Returns the digits of the first number in `extract_xml_answer`, without commas: the walkthrough's own helper.

    It is "0" when there is no number. `extract_final_number` of `extract_tag` is the mended variant.

    Example:
        >>> [extract_final_answer(f"<answer>{text}</answer>") for text in ("$1,234.50", "-3/4", "5 + 3 = 8", "none")]
        ['1234', '3', '5', '0']
    """
    number = re.search(r"\d+(?:,\d+)*", extract_xml_answer(text))
    return number.group().replace(",", "") if number else "0"


def follows_format(text: str, tags: Sequence[str]) -> bool:
    """Whether the text is the tagged sections in order, each exactly once, with nothing but white space around them.

    Example:
        >>> tags = ("thought", "answer")
        >>> follows_format("<thought>a\\nb</thought>\\n<answer>42</answer>", tags), follows_format("42", tags)
        (True, False)
    """
    if any(text.count(mark) != 1 for tag in tags for mark in (f"<{tag}>", f"</{tag}>")):
        return False  # so each `.*?` below can end in one place alone: no search is repeated
    names = map(re.escape, tags)
    return re.fullmatch("".join(rf"\s*<{name}>.*?</{name}>" for name in names) + r"\s*", text, re.DOTALL) is not None
