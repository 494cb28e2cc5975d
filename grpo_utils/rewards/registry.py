"""What a reward is, how it gets a name that recipes can use, and how names become what TRL calls."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from grpo_utils.runs import Recipe, UserError, nearest

Completion = str | list[dict[str, Any]]
TAGS = ("thought", "answer")  # the sections of a completion, unless the recipe names others

TRAINERS = {"prompts", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}  # not columns

Pay = float | tuple[float, float]
NOTHING: Mapping[str, Pay] = dict.fromkeys(("empty", "echo", "format_only", "wrong", "truncated"), 0.0)
"""What most rewards pay for completions that earn nothing; the kinds are those of `audit`."""


class Reward(Protocol):
    """What TRL calls: completions and data set columns in, one number or None per completion out."""

    def __call__(self, completions: Sequence[Completion], **columns: Any) -> list[float | None]: ...

    @property
    def __name__(self) -> str: ...


@dataclass(frozen=True)
class Registered:
    """A reward that recipes can name: `function`, whose settings are not yet bound, and what `reward` was told.

    Attributes:
        settings: names of its settings; those that map to True must be given.
    """

    function: Callable[..., list[float | None]]
    low: float
    high: float
    pays: Mapping[str, Pay]
    settings: Mapping[str, bool]


REGISTRY: dict[str, Registered] = {}
F = TypeVar("F", bound=Callable[..., Any])


def reward(low: float, high: float, pays: Mapping[str, Pay] | None = None) -> Callable[[F], F]:
    """Makes a function known to recipes under its own name. Use it as a decorator.

    Args:
        low: the least that the reward pays.
        high: the most that it pays.
        pays: what `audit` must find it paying, a number or a closed interval, by kind of completion. The gold answer
            must earn `high` where "gold" is not listed; a kind that is not listed may earn anything.

    Raises:
        ValueError: `low` is not below `high`: a reward that pays the same for everything teaches nothing. Or another
            file has a reward of this name.
    """
    if not low < high:
        raise ValueError(f"A reward must be able to pay different numbers, not {low} to {high}.")

    def register(function: F) -> F:
        there = REGISTRY.get(function.__name__)
        if there and there.function.__module__ != function.__module__:
            raise ValueError(f"There is a reward {function.__name__!r} already; give this one another name.")
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
        settings = {p.name: p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}
        REGISTRY[function.__name__] = Registered(function, low, high, pays or {}, settings)
        return function

    return register


def registered(name: str) -> Registered:
    """Returns a reward by its name; if there is none, a UserError says which there are."""
    if name not in REGISTRY:
        raise UserError(
            f"There is no reward {name!r}{nearest(name, REGISTRY)}; rewards: {', '.join(sorted(REGISTRY))}."
        )
    return REGISTRY[name]


def build_rewards(weights: Mapping[str, float], **settings: Any) -> tuple[list[Reward], list[float]]:
    """Returns the rewards that a recipe names, and their weights for TRL's `reward_weights`.

    Settings are bound with `functools.partial`: a configured reward can be pickled, and keeps its name.

    Args:
        weights: name of a registered reward -> weight.
        settings: values such as `tags=("thought", "answer")`; each reward gets those that it declares.

    Raises:
        UserError: a name is not registered, a reward lacks a setting, or no reward has a setting of that name.

    Example:
        >>> (truncated,), _ = build_rewards({"truncated": 0.5}, max_completion_length=3)
        >>> truncated(["cut", "ok"], completion_ids=[[1, 2, 3], [1, 2]])
        [-1.0, 0.0]
    """
    known = {name for entry in REGISTRY.values() for name in entry.settings}
    for name in settings:
        if name not in known:
            raise UserError(
                f"No reward has a setting {name!r}{nearest(name, known)}; settings: {', '.join(sorted(known))}."
            )
    functions: list[Reward] = []
    for name in weights:
        entry = registered(name)
        for setting, required in entry.settings.items():
            if required and setting not in settings:
                raise UserError(f"The reward {name!r} needs the setting {setting!r}; give it to `build_rewards`.")
        bound = functools.partial(entry.function, **{key: settings[key] for key in entry.settings if key in settings})
        bound.__name__ = name  # type: ignore[attr-defined], TRL unwraps a partial to find its name, others may not
        functions.append(cast(Reward, bound))
    return functions, list(weights.values())


def recipe_rewards(
    recipe: Recipe, stop_on_fault: bool = False, max_completion_length: int | None = None
) -> tuple[list[Reward], list[float]]:
    """Returns the rewards of a recipe with its settings bound, and their weights.

    Args:
        recipe: its `rewards` block, and the `prompt`, `dataset` and `grpo` blocks for settings.
        stop_on_fault: raise SandboxFault when the sandbox fails. TRL would count the reward's None as 0.
        max_completion_length: tokens that the completions were allowed; default: as many as in training.
    """
    return build_rewards(
        recipe.rewards,
        tags=recipe.prompt.tags,
        visible_asserts=recipe.prompt.visible_asserts,
        candidate_may_decide=recipe.dataset.candidate_may_decide,
        timeout=recipe.dataset.timeout,
        max_completion_length=max_completion_length or recipe.grpo["max_completion_length"],
        stop_on_fault=stop_on_fault,
    )


def texts(completions: Iterable[Completion]) -> list[str]:
    """Returns the text of each completion, which is a string or a list of chat messages, of which the last counts.

    A message's content is a string or a list of parts, whose texts are joined. Where there is none it is "": a chat
    without messages, a call of a tool, an image.

    Example:
        >>> parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
        >>> texts(["hi", [{"role": "assistant", "content": "hello"}], [{"role": "assistant", "content": parts}], []])
        ['hi', 'hello', 'hello', '']
    """
    return [_text(one[-1:] if isinstance(one, list) else one) for one in completions]


def _text(said: Any) -> str:
    """The text of a message, of its content, or of a part of it."""
    if isinstance(said, list | tuple):
        return "".join(map(_text, said))
    if isinstance(said, Mapping):
        return _text(said.get("content", said.get("text")))
    return "" if said is None else str(said)


def column(columns: Mapping[str, Any], name: str) -> Sequence[Any]:
    """Returns the values of a column that a reward needs, one per completion; a UserError says that there is none."""
    if name not in columns:
        raise missing_column(f"`{name}`", columns)
    return columns[name]


def missing_column(needed: str, columns: Mapping[str, Any]) -> UserError:
    """Returns the error that says what a reward needs of a data set, and which columns that has."""
    there = ", ".join(sorted(set(columns) - TRAINERS)) or "none"
    return UserError(
        f"A reward of this training needs the column {needed}, and the data set has {there}: rename a column, or take "
        "all that rewards read from `grpo_utils.tasks.columns`."
    )
