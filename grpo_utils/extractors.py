"""The text of a completion -> its parts: tagged sections and Python code.

Plain string searches, linear in the length of the text: a completion is hostile input. Nothing here raises on
any string, and nothing here judges whether an answer is right; that is what `rewards` and `sandbox` do.
"""

from collections.abc import Sequence

FENCE = "```"


def extract_tag(text: str, tag: str) -> str | None:
    """Returns what stands between the first `<tag>` and the next `</tag>`, stripped, or None without such a pair.

    Example:
    ```python
    >>> extract_tag("<thought>easy</thought><answer>42</answer>", "answer")
    '42'
    >>> extract_tag("<answer>never closed", "answer") is None
    True

    ```
    """
    _, opened, rest = text.partition(f"<{tag}>")
    inside, closed, _ = rest.partition(f"</{tag}>")
    return inside.strip() if opened and closed else None


def extract_fenced(text: str) -> str | None:
    """Returns the body of the first Markdown code fence, or None without one. A fence left open runs to the end.

    Example:
    ```python
    >>> extract_fenced("Here it is: ```python\\nx = 1\\n``` Done.")
    'x = 1'

    ```
    """
    _, opened, rest = text.partition(FENCE)
    if not opened:
        return None
    language, newline, body = rest.partition("\n")
    if not newline or language.strip().lower() not in ("", "python", "py", "python3"):
        body = rest
    return body.partition(FENCE)[0].strip("\n")


def extract_code(text: str, tag: str) -> str | None:
    """Returns the code inside `<tag>`, without a fence around it, or None when the tag is missing: the strict rule.

    Example:
    ```python
    >>> extract_code("<answer>\\n```python\\nx = 1\\n```\\n</answer>", "answer")
    'x = 1'

    ```
    """
    tagged = extract_tag(text, tag)
    if tagged is None:
        return None
    fenced = extract_fenced(tagged)
    return tagged if fenced is None else fenced


def extract_any_code(text: str, tag: str) -> str | None:
    """Returns code wherever it stands: in the tag, else in a fence, else from the first line that defines or imports.

    This is the lenient rule. It tells ability from format: a policy that solves the task but ignores the tags
    scores here and not under `extract_code`.

    Example:
    ```python
    >>> extract_any_code("Sure!\\ndef f():\\n    return 1", "answer")
    'def f():\\n    return 1'

    ```
    """
    code = extract_code(text, tag)
    if code is None:
        code = extract_fenced(text)
    if code is None:
        lines = text.split("\n")
        starts = (i for i, line in enumerate(lines) if line.startswith(("def ", "import ", "from ")))
        first = next(starts, None)
        code = None if first is None else "\n".join(lines[first:]).partition(f"</{tag}>")[0].rstrip()
    return code


def follows_format(text: str, tags: Sequence[str]) -> bool:
    """Whether the text is the tagged sections in order, each exactly once, with nothing but white space around them.

    Args:
        text: one completion.
        tags: names of the sections, such as `("thought", "answer")`.

    Example:
    ```python
    >>> follows_format("<thought>a\\nb</thought>\\n<answer>42</answer>", ("thought", "answer"))
    True
    >>> follows_format("<answer>42</answer>", ("thought", "answer"))
    False

    ```
    """
    if any(text.count(f"<{tag}>") != 1 or text.count(f"</{tag}>") != 1 for tag in tags):
        return False
    rest = text
    for tag in tags:
        before, _, rest = rest.partition(f"<{tag}>")
        if before.strip():
            return False
        _, closed, rest = rest.partition(f"</{tag}>")
        if not closed:
            return False
    return not rest.strip()
