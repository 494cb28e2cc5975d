"""Watches a run's log for the ways in which the signal of GRPO dies, and names the likely cause.

A dead run looks like a live one: the loss of GRPO is near zero in both, and steps go by. Each rule looks at the last
entries of TRL's log and names a setting to change. The thresholds are rules of thumb from public failures, set so that
a healthy run passes; a warning is a reason to look, not a verdict.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Mapping
from statistics import median
from types import MappingProxyType
from typing import Any

from transformers import TrainerCallback

Entry = dict[str, Any]
SAME = 1e-6  # a standard deviation that is rounding


class SignalWarning(UserWarning):
    """The training signal is dead or dying."""


class SignalGuard(TrainerCallback):
    """Warns once per rule when the log of a GRPO run shows a known disease.

    Args:
        window: number of log entries that a rule looks at, at least 1; none fires before there are as many.
        weights: the weight of every reward by its name, as `Recipe.weights`; one that is not named has 1.

    Example:
        >>> guard = SignalGuard(window=2)
        >>> [guard.watch({"reward": 0.0, "frac_reward_zero_std": share}) for share in (0.5, 0.6)]
        [[], []]
        >>> guard.watch({"reward": 0.0, "frac_reward_zero_std": 1.0})[0]
        '80% of the groups of the last 2 log entries are without spread: ...'
    """

    def __init__(self, window: int = 10, weights: Mapping[str, float] = MappingProxyType({})) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        self.window = window
        self.weights = weights
        self.log: list[Entry] = []
        self.fired: set[str] = set()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for entry in state.log_history:  # of a run that is resumed, what it has logged and been warned of before
            self.watch(entry)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for message in self.watch(kwargs["logs"]):
            warnings.warn(f"Step {state.global_step}: {message}", SignalWarning, stacklevel=2)

    def watch(self, entry: Entry) -> list[str]:
        """Takes one entry of the log and returns what is newly wrong, one sentence or two for each rule."""
        if entry.get("reward") is None:  # such as the summary at the end
            return []
        self.log.append(entry)
        if len(self.log) < self.window:
            return []
        found = {name: rule(self) for name, rule in RULES.items() if name not in self.fired}
        self.fired |= {name for name, message in found.items() if message}
        return [message for message in found.values() if message]

    def values(self, key: str, first: bool = False) -> list[float]:
        """Returns a value of the last (or first) entries, without those in which it is missing or not finite."""
        part = self.log[: self.window] if first else self.log[-self.window :]
        return [value for entry in part if (value := number(entry, key)) is not None]

    def mean(self, key: str, first: bool = False) -> float | None:
        """Returns the mean of a value over the last (or first) entries, or None when one of them lacks it."""
        values = self.values(key, first)
        return sum(values) / self.window if len(values) == self.window else None

    def reward_names(self) -> list[str]:
        """Returns the names of the rewards."""
        return [key.split("/")[1] for key in self.log[-1] if key.startswith("rewards/") and key.endswith("/mean")]


def number(entry: Entry, key: str) -> float | None:
    """Returns a value of a log entry, or None when it is missing, no number or not finite."""
    value = entry.get(key)
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def groups_without_spread(guard: SignalGuard) -> str | None:
    """Most groups are without spread, so without advantage and gradient (DAPO, arXiv 2503.14476, section 3.2)."""
    share = guard.mean("frac_reward_zero_std")
    if share is None or share < 0.8:
        return None
    return (
        f"{share:.0%} of the groups of the last {guard.window} log entries are without spread: their completions "
        "earned the same and teach nothing. Filter tasks that are always or never solved (dataset.pass_rate, "
        "dataset.max_difficulty), raise grpo.temperature or grpo.num_generations, or add a graded reward."
    )


def dead_reward(guard: SignalGuard) -> str | None:
    """A reward has paid the same for every completion since the start; one that got there later is only satisfied.

    Steps in which it was known for no completion say nothing, and a weight of 0 only watches.
    """
    for name in guard.reward_names():
        known = [spread for entry in guard.log if (spread := number(entry, f"rewards/{name}/std")) is not None]
        paid = guard.mean(f"rewards/{name}/mean")
        if guard.weights.get(name, 1.0) and paid is not None and len(known) >= guard.window and max(known) <= SAME:
            return (
                f"The reward {name!r} has paid {paid:g} for every completion so far: it "
                "never fires, or always. Run the audit of notebook 01 and look at some completions; else take it out."
            )
    return None


def cancelling_rewards(guard: SignalGuard) -> str | None:
    """Several rewards vary and their weighted sum does not."""
    names, total = guard.reward_names(), guard.mean("reward_std")
    parts = {name: abs(guard.weights.get(name, 1.0)) * (guard.mean(f"rewards/{name}/std") or 0.0) for name in names}
    parts = {name: part for name, part in parts.items() if part > SAME}
    if total is None or len(parts) < 2 or total > 0.1 * max(parts.values()):
        return None
    return (
        f"The rewards {', '.join(map(repr, parts))} vary, and their weighted sum hardly does (standard deviation "
        f"{total:.2g}): they cancel. Change the signs or sizes in the recipe's rewards block."
    )


def traded_reward(guard: SignalGuard) -> str | None:
    """One reward has fallen far while the sum of all rose: the policy gave it up for the others (chapter 7)."""
    paid, pays = (guard.mean("reward", first) for first in (True, False))
    if paid is None or pays is None or pays <= paid:
        return None
    for name in guard.reward_names():
        before, after = (guard.mean(f"rewards/{name}/mean", first) for first in (True, False))
        if guard.weights.get(name, 1.0) <= 0 or before is None or after is None:
            continue
        if after < 0.5 * before and before - after > 0.1:
            return (
                f"The weighted sum rose from {paid:.2g} to {pays:.2g} and the reward {name!r} fell from "
                f"{before:.2g} to {after:.2g}: it is given up for the others. Look at the logged completions; raise "
                "its weight in the recipe's rewards block, or take out what pays without it."
            )
    return None


def cut_off(guard: SignalGuard) -> str | None:
    """Most completions end at the limit, so they never finish an answer (huggingface/trl #5697)."""
    share = guard.mean("completions/clipped_ratio")
    if share is None or share < 0.5:
        return None
    return (
        f"{share:.0%} of the last completions were cut off at the limit of tokens and miss what comes at the end. "
        "Raise grpo.max_completion_length (notebook 01 shows how long answers are), or check that the tokenizer's EOS "
        "token is the one that ends a turn of this model's chat template."
    )


def length_drift(guard: SignalGuard) -> str | None:
    """Completions have become twice or half as long, and the reward is no better for it."""
    before, after = (guard.mean("completions/mean_length", first) for first in (True, False))
    if before is None or after is None or 0.5 * before < after < 2 * before:
        return None
    paid, pays = (guard.mean("reward", first) for first in (True, False))
    if paid is None or pays is None or pays > paid:
        return None
    grown = after > before
    remedy = "add length_penalty or overlong to the rewards" if grown else "lower the weight of rewards for shortness"
    return (
        f"Completions went from {before:.0f} to {after:.0f} tokens and the reward did not rise: look for "
        f"{'padding' if grown else 'empty answers'} in the logged completions; {remedy}, and try "
        "grpo.loss_type dr_grpo, which does not divide by a completion's length."
    )


def kl_jump(guard: SignalGuard) -> str | None:
    """The policy has left its start in one leap."""
    values = guard.values("kl")
    if len(values) < max(2, guard.window) or values[-1] <= max(0.1, 10 * median(values[:-1])):
        return None
    return (
        f"The KL divergence to the start jumped from {median(values[:-1]):.2g} to {values[-1]:.2g} nats per token: a "
        "step was too large. Lower grpo.learning_rate or grpo.max_grad_norm, raise grpo.beta, or go back a checkpoint."
    )


def entropy_collapse(guard: SignalGuard) -> str | None:
    """The policy writes nearly the same completion every time (Cui et al. 2025, arXiv 2505.22617)."""
    before, after = (guard.mean("entropy", first) for first in (True, False))
    if before is None or after is None or after >= 0.2 * before:
        return None
    return (
        f"The entropy fell from {before:.2g} to {after:.2g} nats per token: completions of a group are nearly equal. "
        "Raise grpo.temperature, lower grpo.learning_rate, set grpo.epsilon_high (0.28 in DAPO), or stop earlier."
    )


def not_a_number(guard: SignalGuard) -> str | None:
    """The trainer's own numbers are not finite; that of one reward may be, when it was known for no completion."""
    for entry, key in itertools.product(guard.log[-guard.window :], ("reward", "loss", "grad_norm", "kl")):
        if isinstance(entry.get(key), float) and number(entry, key) is None:
            return (
                f"The {key} is {entry[key]}, and the policy may be lost: look for rewards that are not finite; "
                "else go back a checkpoint, and lower grpo.learning_rate or set model.dtype to float32."
            )
    return None


_RULES = (
    groups_without_spread,
    dead_reward,
    cancelling_rewards,
    traded_reward,
    cut_off,
    length_drift,
    kl_jump,
    entropy_collapse,
    not_a_number,
)
RULES: dict[str, Callable[[SignalGuard], str | None]] = {rule.__name__: rule for rule in _RULES}
