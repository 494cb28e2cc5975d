"""Completions -> rewards, with the signature that TRL's GRPOTrainer calls.

>>> from grpo_utils import rewards
>>> functions, weights = rewards.build_rewards({"tests": 1.0, "strict_format": 0.25}, tags=("thought", "answer"))
>>> [function.__name__ for function in functions], weights
(['tests', 'strict_format'], [1.0, 0.25])

A reward is a function `reward(completions, **columns) -> list[float | None]`: one number per completion, or None for
"not known" (a fault of the sandbox, an unreadable gold answer). `columns` are those of the data set, as lists of the
same length, and what the trainer knows besides (`prompts`, `completion_ids`). What stands behind a `*` are settings.

Nothing here imports torch, transformers or TRL before a reward is called.
"""

import importlib
import pkgutil

from .code import (
    SandboxFault,
    correct,
    counted,
    defines_function,
    error_graded,
    hidden_tests,
    judge_checks,
    runs,
    tests,
    tests_graded,
    visible_tests,
)
from .format import soft_format, strict_format, tag_count, think_format
from .length import cosine, length_penalty, overlong, truncated
from .maths import hard_correctness, integer, numeric, soft_correctness
from .registry import (
    NOTHING,
    REGISTRY,
    TAGS,
    Completion,
    Registered,
    Reward,
    build_rewards,
    column,
    missing_column,
    recipe_rewards,
    reward,
    texts,
)

for file in pkgutil.iter_modules(__path__):  # one that somebody adds is found by being there
    if file.name not in ("audit", "teacher"):  # no rewards that a recipe names, and slow to import
        importlib.import_module(f"{__name__}.{file.name}")
