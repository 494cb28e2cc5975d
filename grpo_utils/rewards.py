"""Completions -> rewards, with the signature that TRL's GRPOTrainer calls.

A reward is a callable `reward(completions, **columns) -> list[float | None]`: one number per completion, where
`columns` holds the columns of the data set as lists of the same length. This module needs neither torch nor TRL.

TRL also takes None for "not known", but adds it up as 0 when another reward knows the sample. So a fault of the
sandbox itself is raised, never scored: training stops and goes on from its last checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from grpo_utils.extractors import extract_code, follows_format
from grpo_utils.recipes import UserError
from grpo_utils.sandbox import Check, Sandbox, Verdict


class SandboxFault(UserError):
    """The sandbox itself failed; nothing is known about the candidate."""


Completion = str | list[dict[str, str]]


class Reward(Protocol):
    """What TRL calls: completions and data set columns in, one number or None per completion out."""

    __name__: str

    def __call__(self, completions: Sequence[Completion], **columns: Any) -> list[float | None]: ...


Factory = Callable[[Sequence[str], Sandbox], Reward]
REGISTRY: dict[str, Factory] = {}


def register(factory: Factory) -> Factory:
    """Makes a reward known to recipes under its factory's name. Use it as a decorator.

    The factory gets the recipe's tag names and the sandbox and returns the reward:

    ```python
    >>> @register
    ... def short(tags, sandbox):
    ...     def reward(completions, **columns):
    ...         return [float(len(text_of(completion)) < 200) for completion in completions]
    ...     return reward
    >>> with Sandbox() as sandbox:
    ...     rewards, weights = build({"short": 0.5}, ("thought", "answer"), sandbox)
    >>> rewards[0].__name__, rewards[0](["brief"]), weights
    ('short', [1.0], [0.5])
    >>> del REGISTRY["short"]

    ```
    """
    REGISTRY[factory.__name__] = factory
    return factory


def build(weights: Mapping[str, float], tags: Sequence[str], sandbox: Sandbox) -> tuple[list[Reward], list[float]]:
    """Returns the rewards that a recipe names, and their weights for TRL's `reward_weights`.

    Args:
        weights: name of a registered reward -> weight.
        tags: names of the tagged sections, such as `("thought", "answer")`.
        sandbox: where rewards run code.

    Raises:
        ValueError: a name is not registered.
    """
    unknown = [name for name in weights if name not in REGISTRY]
    if unknown:
        raise ValueError(f"There is no reward {unknown[0]!r}; rewards: {', '.join(sorted(REGISTRY))}.")
    rewards = []
    for name in weights:
        reward = REGISTRY[name](tags, sandbox)
        reward.__name__ = name  # TRL logs a reward under its name
        rewards.append(reward)
    return rewards, list(weights.values())


def text_of(completion: Completion) -> str:
    """Returns the text of a completion that is a string or a list of chat messages.

    Example:
    ```python
    >>> text_of([{"role": "assistant", "content": "hello"}])
    'hello'

    ```
    """
    return completion if isinstance(completion, str) else completion[-1]["content"]


@register
def tests(tags: Sequence[str], sandbox: Sandbox) -> Reward:
    """1 when the code inside the answer tag passes every assert of the task, shown and hidden, else 0.

    Needs the columns `asserts`, `setup` and `names` (see `training.columns`).
    """

    def reward(completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        verdicts = _judge(completions, columns, tags, sandbox)
        return [float(verdict.ok) for verdict in verdicts]

    return reward


@register
def runs(tags: Sequence[str], sandbox: Sandbox) -> Reward:
    """1 when every assert gets an answer, right or wrong, from the code inside the answer tag, else 0.

    A step towards `tests` for a policy that still misnames functions or breaks the syntax: in a group in which no
    program passes, it tells those that run from those that do not. Needs the same columns as `tests`.
    """

    def reward(completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        verdicts = _judge(completions, columns, tags, sandbox)
        answered = [bool(one.outcomes) and set(one.outcomes) <= {"passed", "failed"} for one in verdicts]
        return [float(each) for each in answered]

    return reward


def _judge(
    completions: Sequence[Completion], columns: Mapping[str, Any], tags: Sequence[str], sandbox: Sandbox
) -> list[Verdict]:
    codes = [extract_code(text_of(completion), tags[-1]) or "" for completion in completions]
    rows = zip(codes, columns["asserts"], columns["setup"], columns["names"], strict=True)
    return judge([Check(code, asserts, names, setup) for code, asserts, setup, names in rows], sandbox)


def judge(checks: Sequence[Check], sandbox: Sandbox) -> list[Verdict]:
    """Returns the verdicts on candidates.

    Raises:
        SandboxFault: the sandbox itself failed, so nothing is known about some candidate.
    """
    verdicts = sandbox.check_many(checks)
    faults = [verdict for verdict in verdicts if verdict.status == "infrastructure"]
    if faults:
        raise SandboxFault(f"The sandbox failed ({faults[0].error_message}); run the same command again to go on.")
    return verdicts


@register
def strict_format(tags: Sequence[str], sandbox: Sandbox) -> Reward:
    """1 when the completion is its tagged sections in order and nothing else, over any number of lines, else 0."""

    def reward(completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        return [float(follows_format(text_of(completion), tags)) for completion in completions]

    return reward
