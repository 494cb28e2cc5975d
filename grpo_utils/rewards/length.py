"""Rewards for the length of a completion in tokens. TRL passes the token ids as `completion_ids`."""

import math
from collections.abc import Sequence
from typing import Any

from . import code
from .maths import soft_correctness
from .registry import TAGS, Completion, column, reward


def _correct(completions: Sequence[Completion], columns: dict[str, Any], **settings: Any) -> list[float | None]:
    """Whether each completion is right: by `correct`, or where there is no column `task` by the columns there are."""
    if "task" in columns or code.has_programs(columns):
        return (code.correct if "task" in columns else code.tests)(completions, **settings, **columns)
    return soft_correctness(completions, tags=settings["tags"], **columns)


@reward(-0.5, 0.5, {"gold": (-0.5, 0.5), "empty": 0.0, "truncated": -0.5})
def length_penalty(
    completions: Sequence[Completion],
    *,
    tags: Sequence[str] = TAGS,
    candidate_may_decide: bool = False,
    timeout: float | None = None,
    stop_on_fault: bool = False,
    **columns: Any,
) -> list[float | None]:
    """Against padding: from 0.5 for the shortest completion of its prompt to -0.5 for the longest, and at most 0 for
    a wrong one.

    Kimi k1.5 (arXiv 2501.12599, section 2.3.3). When all completions of a prompt are equally long, all get 0. Needs
    the columns of `correct`, `tests` or `soft_correctness`, and `completion_ids`; without `prompts` the whole batch
    counts as one group.

    Example:
        >>> columns = {"answer": ["42"] * 3, "completion_ids": [[0] * 10, [0] * 30, [0] * 20]}
        >>> length_penalty(["<answer>42</answer>", "<answer>42</answer>", "<answer>41</answer>"], **columns)
        [0.5, -0.5, 0.0]
    """
    lengths = [len(ids) for ids in column(columns, "completion_ids")]
    owners = [repr(prompt) for prompt in columns.get("prompts", [""] * len(lengths))]
    groups: dict[str, list[int]] = {}
    for owner, length in zip(owners, lengths, strict=True):
        groups.setdefault(owner, []).append(length)
    bounds = {owner: (min(group), max(group)) for owner, group in groups.items()}
    rewards: list[float | None] = []
    settings = {"candidate_may_decide": candidate_may_decide, "timeout": timeout, "stop_on_fault": stop_on_fault}
    every = _correct(completions, columns, tags=tags, **settings)
    for owner, length, correct in zip(owners, lengths, every, strict=True):
        shortest, longest = bounds[owner]
        score = 0.5 - (length - shortest) / (longest - shortest) if longest > shortest else 0.0
        rewards.append(None if correct is None else score if correct else min(0.0, score))
    return rewards


@reward(-1.0, 1.0, {"gold": (0.5, 1.0), "empty": -1.0, **dict.fromkeys(("echo", "format_only", "wrong"), (-1.0, -0.5))})
def cosine(
    completions: Sequence[Completion],
    *,
    max_completion_length: int,
    tags: Sequence[str] = TAGS,
    candidate_may_decide: bool = False,
    timeout: float | None = None,
    stop_on_fault: bool = False,
    **columns: Any,
) -> list[float | None]:
    """By correctness and length: 1 to 0.5 for a right completion, the shorter the better; -1 to -0.5 for a wrong one,
    the longer the better, so that a policy that cannot solve a task yet may think for longer.

    Yeo et al. 2025, arXiv 2502.03373, appendix C.1, with the values of TRL's `get_cosine_scaled_reward`, which decides
    correctness by math-verify. Needs the columns of `correct`, `tests` or `soft_correctness`, and `completion_ids`.
    """
    rewards: list[float | None] = []
    settings = {"candidate_may_decide": candidate_may_decide, "timeout": timeout, "stop_on_fault": stop_on_fault}
    every = _correct(completions, columns, tags=tags, **settings)
    for correct, ids in zip(every, column(columns, "completion_ids"), strict=True):
        size = 0.75 + 0.25 * math.cos(min(len(ids) / max_completion_length, 1.0) * math.pi)
        rewards.append(None if correct is None else size if correct else -size)
    return rewards


@reward(-1.0, 0.0, {"gold": (-1.0, 0.0), "empty": 0.0, "truncated": -1.0})
def overlong(completions: Sequence[Completion], *, max_completion_length: int, **columns: Any) -> list[float | None]:
    """TRL's `get_soft_overlong_punishment`: 0 up to three quarters of the maximal length, then down to -1 at all of it.

    DAPO (Yu et al. 2025, arXiv 2503.14476, equation 13), with a quarter of the length as the soft cache.

    Example:
        >>> overlong([""] * 3, max_completion_length=80, completion_ids=[[0] * 60, [0] * 70, [0] * 80])
        [0.0, -0.5, -1.0]
    """
    from trl.rewards.other_rewards import get_soft_overlong_punishment

    punish = get_soft_overlong_punishment(max_completion_length, max(1, max_completion_length // 4))
    return punish(completion_ids=column(columns, "completion_ids"))


@reward(-1.0, 0.0, {"gold": (-1.0, 0.0), "empty": 0.0, "truncated": -1.0})
def truncated(completions: Sequence[Completion], *, max_completion_length: int, **columns: Any) -> list[float | None]:
    """-1 for a completion that has as many tokens as it was allowed, and so was cut off, else 0.

    One that happens to end with its last allowed token is taken for cut off as well.
    """
    # + 0.0, or the rest would be paid -0.0
    return [-float(len(ids) >= max_completion_length) + 0.0 for ids in column(columns, "completion_ids")]
