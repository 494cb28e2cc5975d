"""The audit: what every reward pays for completions whose worth is known, over a whole data set, before training.

Each task is answered in seven ways (`completion`), and each reward has said in its registration what it must pay for
them. A task whose reference the sandbox cannot judge, which takes too long or whose asserts its own code decides, can
teach nothing: the audit names all of them, why, and what to write into the recipe.

What it does not do: find a reward that a clever policy can earn without solving the task. It knows seven completions.
"""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false
# pyright: reportReturnType=false, reportOperatorIssue=false, reportCallIssue=false

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from grpo_utils.runs import Prompt, Recipe, UserError
from grpo_utils.sandbox import Verdict, shared
from grpo_utils.tasks import Task

from .code import has_programs, verdicts
from .registry import Reward, recipe_rewards, registered

KINDS = ("gold", "empty", "echo", "format_only", "wrong", "truncated", "padded")
OF_GOLD = ("gold", "truncated", "padded")  # what a task without a reference does not have
PADDING = "Let me think about that again. " * 100
TOLERANCE = 1e-9  # of sums of weights in floating point


class AuditError(UserError):
    """A reward does not pay what it must."""


@dataclass(frozen=True)
class Example:
    """One task, and in the format that the rewards look for a right answer to it, or None, and a wrong one."""

    question: str
    gold: str | None
    wrong: str
    columns: Mapping[str, Any]
    split: str = "train"
    task_id: int | str = 0


@dataclass(frozen=True)
class Audit:
    """What was found.

    Attributes:
        table: mean reward, one row per kind of completion and one column per reward, with "weighted sum" last.
        failures: one sentence for each thing that is not as it must be.
        notes: one sentence for each thing to know that the recipe allows.
    """

    table: pd.DataFrame
    failures: list[str]
    notes: list[str]

    def require(self) -> None:
        """Raises AuditError with all failures, if there are any."""
        if self.failures:
            raise AuditError(" ".join(self.failures))


def audit_rewards(
    rewards: Sequence[Reward],
    examples: Sequence[Example],
    tags: Sequence[str],
    *,
    weights: Sequence[float] | None = None,
    max_completion_length: int = 512,
    encode: Callable[[str], Sequence[int]] = str.encode,
    candidate_may_decide: bool = False,
    timeout: float | None = None,
) -> Audit:
    """Scores seven kinds of completions of every task with every reward, and compares with what the rewards promise.

    Args:
        rewards: from `build_rewards`.
        examples: the tasks, from `audit_examples`.
        tags: names of the tagged sections.
        weights: one per reward; default: 1 for each.
        max_completion_length: tokens at which a completion is cut off.
        encode: text -> token ids; the default counts bytes. Use the tokenizer's where lengths matter.
        candidate_may_decide, timeout: of the recipe's `dataset` block, as the rewards have them.

    Returns:
        The mean rewards and the failures: a promise that is not kept, a reward that never pays its minimum, weights
        under which the gold answer earns no more than an empty one, and tasks that cannot be judged, which are then
        held to no promise.

    Raises:
        UserError: a reward is not registered, or needs a column that the data set lacks.

    Example:
        >>> from grpo_utils import rewards
        >>> example = Example("6 * 7?", "<thought>a\\nb</thought><answer>42</answer>",
        ...                   "<thought>a</thought><answer>41</answer>", {"answer": "42"})
        >>> functions, weights = rewards.build_rewards({"soft_correctness": 1.0, "strict_format": 0.25})
        >>> report = audit_rewards(functions, [example], ("thought", "answer"), weights=weights)
        >>> report.failures, report.table.loc["wrong"].tolist()
        ([], [0.0, 1.0, 0.25])
    """
    # 1. what every reward pays for every completion
    weights = [1.0] * len(rewards) if weights is None else weights
    batch = [(kind, example) for example in examples for kind in KINDS]
    known = pd.Series([example.gold is not None or kind not in OF_GOLD for kind, example in batch])
    completions = [completion(kind, example, tags) for kind, example in batch]
    columns = {name: [example.columns[name] for _, example in batch] for name in examples[0].columns}
    columns["prompts"] = [example.question for _, example in batch]
    columns["completion_ids"] = [
        [0] * max_completion_length if kind == "truncated" else list(encode(text))[:max_completion_length]
        for (kind, _), text in zip(batch, completions, strict=True)
    ]
    paid = {reward.__name__: reward(completions, **columns) for reward in rewards}
    for name, values in paid.items():
        if len(values) != len(completions):
            raise UserError(
                f"{name!r} must return a number for each completion: {len(completions)}, not {len(values)}."
            )
    scores = pd.DataFrame(paid, dtype=float)
    scores["weighted sum"] = scores.fillna(0.0)[[*paid]] @ list(weights)
    scores, kinds = scores[known], pd.Series([kind for kind, _ in batch])[known]
    # 2. which tasks the sandbox cannot judge: they are held to no promise
    golds: list[Verdict] = []  # where no gold answer is known, of the wrong one: it too shows what cannot be judged
    if has_programs(columns) and any("candidate_may_decide" in registered(name).settings for name in paid):
        graded = verdicts(completions, tags, columns, timeout)
        golds = [graded[i if known[i] else i + KINDS.index("wrong")] for i in range(0, len(batch), len(KINDS))]
    apart, failures, notes = _apart(examples, golds, candidate_may_decide, timeout)
    if without := sum(example.gold is None for example in examples):
        notes.append(f"{without} of {len(examples)} tasks have no reference: whether they can be solved, nobody tried.")
    kept = pd.Series([i // len(KINDS) not in apart for i in range(len(batch))])[known]
    # 3. what is paid against what was promised
    if kept.any():  # else the table shows what is paid where nothing can be judged
        scores, kinds = scores[kept], kinds[kept]
        for name in paid:
            failures += _broken_promises(name, scores[name], kinds, examples, golds)
    table = scores.groupby(kinds).mean().reindex([kind for kind in KINDS if (kinds == kind).any()])
    return Audit(table, failures + (_cancelled(table) if kept.any() else []), notes)


def audit_recipe(
    recipe: Recipe, splits: Mapping[str, Sequence[Task]], encode: Callable[[str], Sequence[int]] = str.encode
) -> Audit:
    """Audits the rewards of a recipe on tasks of its splits; see `audit_rewards`."""
    functions, weights = recipe_rewards(recipe)
    return audit_rewards(
        functions,
        [one for split, batch in splits.items() for one in audit_examples(batch, recipe.prompt, split)],
        recipe.prompt.tags,
        weights=weights,
        max_completion_length=recipe.grpo["max_completion_length"],
        encode=encode,
        candidate_may_decide=recipe.dataset.candidate_may_decide,
        timeout=recipe.dataset.timeout,
    )


def _apart(
    examples: Sequence[Example], golds: Sequence[Verdict], may_decide: bool, timeout: float | None
) -> tuple[set[int], list[str], list[str]]:
    """The tasks that are held to no promise, by position, and what is to be said of them: failures and notes."""
    unsupported = [i for i, verdict in enumerate(golds) if verdict.status == "unsupported"]
    late = [i for i, verdict in enumerate(golds) if verdict.status == "timeout"]
    decided = [i for i, verdict in enumerate(golds) if verdict.ok and verdict.decided_by_candidate]
    failures, notes = [], []
    if unsupported:
        failures.append(
            f"The sandbox cannot judge the reference of {len(unsupported)} of {len(golds)} tasks, so that no answer to "
            f"them earns anything ({_kinds_of([golds[i] for i in unsupported])}; see docs/judged.md): write "
            f"`leave_out: {_by_split(examples, unsupported)}` under `dataset` in the recipe."
        )
    if late:
        seconds = timeout or shared().timeout
        failures.append(
            f"The reference of {len(late)} of {len(golds)} tasks takes longer than {seconds:g} s here: write "
            f"`timeout: {4 * seconds:g}` or `leave_out: {_by_split(examples, late)}` under `dataset` in the recipe."
        )
    if decided:
        which = f"{len(decided)} of {len(golds)} tasks, {_by_split(examples, decided)}"
        own = "the asserts compare objects of the program's own classes, so that its own code decides"
        if may_decide:
            notes.append(f"In {which}, {own}; `dataset.candidate_may_decide` lets it.")
        else:
            failures.append(
                f"In {which}, {own}, and no answer counts as right: add them to `dataset.leave_out`, or set "
                "`dataset.candidate_may_decide` to true if the policy will not write an __eq__ that is always true."
            )
    return {*unsupported, *late, *(() if may_decide else decided)}, failures, notes


def _kinds_of(verdicts: Sequence[Verdict]) -> str:
    """The reasons of verdicts, each kind with its number; those that differ in a name only are of one kind."""
    kinds: dict[str, list[str]] = {}
    for verdict in verdicts:
        kinds.setdefault(re.sub(r"'[^']*'", "", verdict.error_message), []).append(verdict.error_message)
    ordered = sorted(kinds.values(), key=len, reverse=True)
    return "; ".join(f"{len(reasons)}: {reasons[0]}" for reasons in ordered)


def _by_split(examples: Sequence[Example], chosen: Sequence[int]) -> str:
    """Tasks as `dataset.leave_out` takes them."""
    ids: dict[str, list[int | str]] = {}
    for i in chosen:
        ids.setdefault(examples[i].split, []).append(examples[i].task_id)
    return json.dumps(ids, ensure_ascii=False)


def _reason(verdict: Verdict) -> str:
    """Why a gold answer does not pass, for the end of a sentence."""
    words = ": ".join(part for part in (verdict.error_type, verdict.error_message) if part)
    return "" if verdict.ok else f", where the sandbox says {verdict.status}{f' ({words})' if words else ''}"


def completion(kind: str, example: Example, tags: Sequence[str]) -> str:
    """Returns one of the seven ways to answer a task.

    Example:
        >>> completion("format_only", Example("6 * 7?", "42", "41", {}), ("thought", "answer"))
        '<thought>hm</thought>\\n<answer>pass</answer>'
    """
    gold = example.gold or ""
    return {
        "gold": gold,
        "empty": "",
        "echo": example.question,
        "format_only": "\n".join(f"<{tag}>{'hm' if tag != tags[-1] else 'pass'}</{tag}>" for tag in tags),
        "wrong": example.wrong,
        "truncated": gold[: len(gold) // 2],  # its tokens are counted as all that are allowed
        "padded": gold.replace(f"</{tags[0]}>", f" {PADDING}</{tags[0]}>", 1),
    }[kind]


def _broken_promises(
    name: str, scores: pd.Series, kinds: pd.Series, examples: Sequence[Example], golds: Sequence[Verdict]
) -> Iterator[str]:
    entry = registered(name)
    for kind in KINDS:
        promised = entry.pays.get(kind, entry.high if kind == "gold" else (entry.low, entry.high))
        low, high = promised if isinstance(promised, tuple) else (promised, promised)
        paid = scores[kinds == kind].dropna()
        off = paid[(paid < low - TOLERANCE) | (paid > high + TOLERANCE)]
        if len(off):
            wanted = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            first = off.index[0] // len(KINDS)
            yield (
                f"{name!r} must pay {wanted} for {kind.replace('_', ' ')} completions and pays "
                f"{off.iloc[0]:g} for {len(off)} of {len(paid)}, first for "
                f"{examples[first].split} {examples[first].task_id!r}, {examples[first].question[:70]!r}"
                f"{_reason(golds[first]) if golds and kind == 'gold' else ''}."
            )
    if scores.isna().all():
        yield f"{name!r} pays for nothing: it knows no gold answer."
    elif (kinds == "gold").any() and scores.min() > entry.low + TOLERANCE:  # only padding earns the least for length
        yield f"{name!r} never pays its minimum, {entry.low:g}: the least is {scores.min():g}."


def _cancelled(table: pd.DataFrame) -> list[str]:
    total = table["weighted sum"]
    if "gold" not in total:
        return []
    better = [kind for kind in ("empty", "echo", "truncated") if total["gold"] <= total[kind] + TOLERANCE]
    if not better:
        return []
    return [
        f"With these weights the gold answer earns {total['gold']:g}, and {better[0].replace('_', ' ')} completions "
        f"{total[better[0]]:g}: give a reward for right answers, such as `correct`, the largest weight, or mend the "
        "sign of one that cancels it."
    ]


def audit_examples(batch: Sequence[Task], prompt: Prompt, split: str = "train") -> list[Example]:
    """Returns tasks of one split as the audit takes them.

    Example:
        >>> from grpo_utils import runs, tasks
        >>> batch = [tasks.MathsTask(task_id=0, text="6 * 7?", solution="6 * 7 = 42", answer="42")]
        >>> audit_examples(batch, runs.load_recipe("cpu-code").prompt)[0].wrong
        '<thought>\\n6 * 7 = 42\\n</thought>\\n<answer>\\n47\\n</answer>'
    """
    tags = prompt.tags
    return [
        Example(t.question(prompt), t.reference_answer(prompt), t.wrong_answer(tags), t.columns(), split, t.task_id)
        for t in batch
    ]
