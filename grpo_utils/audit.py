"""The audit: what every reward pays for completions whose worth is known, over a whole data set, before training.

A reward that can never fire is the most common silent bug of public GRPO notebooks. So each task is answered in
seven ways, and each reward has said in its registration what it must pay for them:

| kind | completion |
|---|---|
| gold | the reference answer, written as the policy should write it |
| empty | nothing |
| echo | the question, repeated |
| format_only | the tags with next to nothing in them |
| wrong | right format, plausible content, wrong result |
| truncated | the gold answer, cut off in the middle at the limit of tokens |
| padded | the gold answer, its thought drawn out by 3,000 characters |

What it does not do: find a reward that a clever policy can earn without solving the task. It knows seven completions.
"""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false
# pyright: reportReturnType=false, reportOperatorIssue=false, reportCallIssue=false

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from grpo_utils.errors import UserError
from grpo_utils.recipes import Prompt
from grpo_utils.rewards.registry import Reward, registered
from grpo_utils.tasks import Task

KINDS = ("gold", "empty", "echo", "format_only", "wrong", "truncated", "padded")
PADDING = "Let me think about that again. " * 100
TOLERANCE = 1e-9  # of sums of weights in floating point


class AuditError(UserError):
    """A reward does not pay what it must."""


@dataclass(frozen=True)
class Example:
    """One task, and two answers to it whose worth is known.

    Attributes:
        question: what the policy is asked.
        gold: the reference answer, in the format that the rewards look for.
        wrong: an answer in that format which is plausible and wrong.
        columns: what the data set holds for this task, by column.
    """

    question: str
    gold: str
    wrong: str
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class Audit:
    """What was found.

    Attributes:
        table: mean reward, one row per kind of completion and one column per reward, with "weighted sum" last.
        failures: one sentence for each thing that is not as it must be.
    """

    table: pd.DataFrame
    failures: list[str]

    def require(self) -> None:
        """Raises AuditError with all failures, if there are any."""
        if self.failures:
            raise AuditError(" ".join(self.failures))


def audit(
    rewards: Sequence[Reward],
    examples: Sequence[Example],
    tags: Sequence[str],
    *,
    weights: Sequence[float] | None = None,
    max_completion_length: int = 512,
    encode: Callable[[str], Sequence[int]] = str.encode,
) -> Audit:
    """Scores seven kinds of completions of every task with every reward, and compares with what the rewards promise.

    Args:
        rewards: from `rewards.build`.
        examples: the tasks, from `examples`.
        tags: names of the tagged sections.
        weights: one per reward; default: 1 for each.
        max_completion_length: tokens at which a completion is cut off.
        encode: text -> token ids; the default counts bytes. Use the tokenizer's where lengths matter.

    Returns:
        The mean rewards and the failures: a promise that is not kept, a reward that never pays its minimum, and
        weights under which the gold answer earns no more than an empty one.

    Raises:
        UserError: a reward is not registered, or needs a column that the data set lacks.

    Example:
    ```python
    >>> from grpo_utils import rewards
    >>> example = Example("6 * 7?", "<thought>a\\nb</thought><answer>42</answer>",
    ...                   "<thought>a</thought><answer>41</answer>", {"answer": "42"})
    >>> functions, weights = rewards.build({"soft_correctness": 1.0, "strict_format": 0.25})
    >>> report = audit(functions, [example], ("thought", "answer"), weights=weights)
    >>> report.failures, report.table.loc["wrong"].tolist()
    ([], [0.0, 1.0, 0.25])

    ```
    """
    weights = [1.0] * len(rewards) if weights is None else weights
    batch = [(kind, example) for example in examples for kind in KINDS]
    completions = [completion(kind, example, tags) for kind, example in batch]
    ids = [list(encode(text))[:max_completion_length] for text in completions]
    columns = {name: [example.columns[name] for _, example in batch] for name in examples[0].columns}
    columns["prompts"] = [example.question for _, example in batch]
    columns["completion_ids"] = [
        [0] * max_completion_length if kind == "truncated" else each for (kind, _), each in zip(batch, ids, strict=True)
    ]
    questions = columns["prompts"]
    names = [reward.__name__ for reward in rewards]
    scores = pd.DataFrame(
        {name: reward(completions, **columns) for name, reward in zip(names, rewards, strict=True)}, dtype=float
    )
    scores["weighted sum"] = scores.fillna(0.0)[names] @ list(weights)
    kinds = pd.Series([kind for kind, _ in batch])
    failures = [failure for name in names for failure in _broken_promises(name, scores[name], kinds, questions)]
    table = scores.groupby(kinds).mean().loc[list(KINDS)]
    return Audit(table, failures + _cancelled(table))


def completion(kind: str, example: Example, tags: Sequence[str]) -> str:
    """Returns one of the seven ways to answer a task.

    Example:
    ```python
    >>> completion("format_only", Example("6 * 7?", "42", "41", {}), ("thought", "answer"))
    '<thought>hm</thought>\\n<answer>pass</answer>'

    ```
    """
    return {
        "gold": example.gold,
        "empty": "",
        "echo": example.question,
        "format_only": "\n".join(f"<{tag}>{'hm' if tag != tags[-1] else 'pass'}</{tag}>" for tag in tags),
        "wrong": example.wrong,
        "truncated": example.gold[: len(example.gold) // 2],
        "padded": example.gold.replace(f"</{tags[0]}>", f" {PADDING}</{tags[0]}>", 1),
    }[kind]


def _broken_promises(name: str, scores: pd.Series, kinds: pd.Series, questions: Sequence[str]) -> Iterable[str]:
    entry = registered(name)
    for kind in KINDS:
        promised = entry.pays.get(kind, entry.high if kind == "gold" else (entry.low, entry.high))
        low, high = promised if isinstance(promised, tuple) else (promised, promised)
        paid = scores[kinds == kind].dropna()
        off = paid[(paid < low - TOLERANCE) | (paid > high + TOLERANCE)]
        if len(off):
            wanted = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            yield (
                f"{name!r} must pay {wanted} for {kind.replace('_', ' ')} completions and pays "
                f"{off.iloc[0]:g} for {len(off)} of {len(paid)}, first for {questions[off.index[0]][:70]!r}."
            )
    if scores.isna().all():
        yield f"{name!r} pays for nothing: it knows no gold answer."
    elif scores.min() > entry.low + TOLERANCE:
        yield f"{name!r} never pays its minimum, {entry.low:g}: the least is {scores.min():g}."


def _cancelled(table: pd.DataFrame) -> list[str]:
    total = table["weighted sum"]
    better = [kind for kind in ("empty", "echo", "truncated") if total["gold"] <= total[kind] + TOLERANCE]
    if not better:
        return []
    return [
        f"With these weights the gold answer earns {total['gold']:g}, and {better[0].replace('_', ' ')} completions "
        f"{total[better[0]]:g}: rewards cancel, or a sign is wrong."
    ]


def examples(batch: Sequence[Task], prompt: Prompt) -> list[Example]:
    """Returns tasks as the audit takes them.

    Args:
        batch: the tasks.
        prompt: the recipe's `prompt` block: tags, and the number of asserts shown.

    Example:
    ```python
    >>> from grpo_utils import recipes, tasks
    >>> batch = [tasks.MathsTask(task_id=0, text="6 * 7?", solution="6 * 7 = 42", answer="42")]
    >>> examples(batch, recipes.load("cpu-code").prompt)[0].wrong
    '<thought>\\n6 * 7 = 42\\n</thought>\\n<answer>\\n47\\n</answer>'

    ```
    """
    tags = prompt.tags
    return [Example(t.question(prompt), t.reference_answer(tags), t.wrong_answer(tags), t.columns()) for t in batch]
