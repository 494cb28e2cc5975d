"""A training as it goes: a panel that redraws itself in Jupyter, and lines of text where nobody looks at a display.

`plots` draws finished runs.
"""

import math
import os
import warnings
from collections.abc import Sequence
from datetime import timedelta
from html import escape
from statistics import fmean
from typing import Any

from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.getipython import get_ipython
from IPython.display import HTML, display

from grpo_utils.runs import HEADLESS, LogEntry

LINES = 40  # that a training prints, however long it is
POINTS = 200  # that a curve of the panel has, however long the log is
RECENT = 5  # log entries that foretell the time left
TITLES = {
    "completions/mean_length": "length (tokens)",
    "completions/clipped_ratio": "cut off (share)",
    "frac_reward_zero_std": "groups without spread (share)",
}


class PanelWarning(UserWarning):
    """The panel cannot show a training that goes on."""


def is_watched() -> bool:
    """Whether somebody sees what is displayed: this is a notebook's kernel, and `reproduce` did not start it."""
    return isinstance(get_ipython(), ZMQInteractiveShell) and HEADLESS not in os.environ


class Panel:
    """Shows a training: what `training.train` and `training.warm_start` take as `on_log`.

    A panel that fails warns; the training goes on.

    Example:
        >>> panel = Panel()
        >>> for step in (1, 2):
        ...     panel({"step": step, "max_steps": 16, "reward": 0.5, "num_tokens": 900 * step, "step_time": 30.0})
        step    1 of 16  reward 0.50  tokens per second 30  30.0 s a step  0:07:30 left
        step    2 of 16  reward 0.50  tokens per second 30  30.0 s a step  0:07:00 left
    """

    def __init__(self) -> None:
        self.log: list[LogEntry] = []
        self.next_line = 0
        self.handle: Any = None

    def __call__(self, entry: LogEntry) -> None:
        """Takes the next entry of the log; one without loss and reward, such as the summary at the end, is left out."""
        if not {"reward", "loss"} & set(entry):
            return
        self.log.append(entry)
        try:
            self._show(entry["step"], entry["max_steps"])
        except Exception as error:  # whatever it is, it is not worth a training
            text = f"The panel cannot show this training, which goes on: {type(error).__name__}: {error}"
            warnings.warn(text, PanelWarning, stacklevel=2)

    def _show(self, step: int, last: int) -> None:
        if is_watched():
            page = HTML(render_panel(self.log))
            if self.handle is None:
                self.handle = display(page, display_id=True)
            else:
                self.handle.update(page)
        elif "going_on" in self.log[-1]:
            if len(self.log) == 1:
                print(f"going on from step {self.log[0]['going_on']} of {last}", flush=True)
        elif step >= min(self.next_line, last):
            print(describe(self.log), flush=True)
            self.next_line = step + max(1, last // LINES)


def curves(log: Sequence[LogEntry]) -> dict[str, list[float]]:
    """Returns what is shown of a log by its title, one number per entry, NaN where an entry has none.

    A log of GRPO shows its rewards, a log of supervised training its loss. `tokens per second` counts prompts too. A
    step that learns from an earlier one's completions (`num_iterations`) adds nothing but its time.
    """
    if not any("reward" in entry for entry in log):
        return {"loss (nats per token)": _values(log, "loss")}
    log = [entry for entry in log if "reward" in entry]
    parts = {key: key.split("/")[1] for key in log[-1] if key.startswith("rewards/") and key.endswith("/mean")}
    titles = {"reward": "reward", **parts, **{key: title for key, title in TITLES.items() if key in log[-1]}}
    steps, tokens, seconds = ([entry[key] for entry in log] for key in ("step", "num_tokens", "step_time"))
    taken = [step_time * (step - before) for step_time, step, before in zip(seconds, steps, [0, *steps], strict=False)]
    rates = [(now - before) / time for now, before, time in zip(tokens, [0, *tokens], taken, strict=False)]
    return {title: _values(log, key) for key, title in titles.items()} | {"tokens per second": rates}


def _values(log: Sequence[LogEntry], key: str) -> list[float]:
    return [math.nan if entry.get(key) is None else entry[key] for entry in log]


def describe(log: Sequence[LogEntry]) -> str:
    """Returns one line of text about the last entry of a log, with the time that is left at the pace of the last few.

    Example:
        >>> describe([{"step": 3, "max_steps": 16, "loss": 0.25}])
        'step    3 of 16  loss 0.25'
    """
    values = [f"{title.partition(' (')[0]} {_number(values[-1])}" for title, values in curves(log).items()]
    return "  ".join([f"step {log[-1]['step']:>4} of {log[-1]['max_steps']}", *values, *_pace(log)])


def _pace(log: Sequence[LogEntry]) -> list[str]:
    """The seconds of the last step and the time that is left; nothing where the trainer does not take the time."""
    own = [entry for entry in log[-RECENT:] if "going_on" not in entry]  # not of a process before, perhaps elsewhere
    paces = [entry["step_time"] for entry in own if "step_time" in entry]
    left = timedelta(seconds=round(fmean(paces or [0.0]) * (log[-1]["max_steps"] - log[-1]["step"])))
    return [f"{paces[-1]:.1f} s a step", f"{left} left"] if paces else []


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}"


def render_panel(log: Sequence[LogEntry]) -> str:
    """Returns the panel as HTML: a bar, the pace, and a small curve for every number.

    Text takes the colour of the page around it, so the panel can be read in light and in dark.
    """
    tiles = "".join(_tile(title, values) for title, values in curves(log).items())
    step, last = log[-1]["step"], log[-1]["max_steps"]
    begun = [f"going on from step {log[0]['going_on']}"] if "going_on" in log[0] else []
    words = ", ".join([f"step {step} of {last}", *begun, *_pace(log)])
    columns = "display:grid;grid-template-columns:repeat(auto-fill,minmax(9em,1fr));gap:0.5em 1.5em"
    return (
        f"<progress value='{step}' max='{last}' style='width:100%'></progress>"
        f"<p>{words}</p><div style='{columns}'>{tiles}</div>"
    )


def _tile(title: str, values: Sequence[float]) -> str:
    """A curve with its last, lowest and highest value; it begins at 0, or at the lowest value if that is below."""
    known = [(i, value) for i, value in enumerate(values) if not math.isnan(value)]
    thin = known[:: len(known) // POINTS + 1] + known[-1:]
    numbers = [value for _, value in known] or [math.nan]
    low, high = min(0.0, *numbers), max(1e-9, *numbers)
    width = max(len(values) - 1, 1)
    points = " ".join(f"{100 * i / width:.1f},{28 - 26 * (value - low) / (high - low):.1f}" for i, value in thin)
    return (
        f"<div>{escape(title)}<br><b>{_number(values[-1])}</b>"
        "<svg viewBox='0 0 100 30' preserveAspectRatio='none' style='display:block;width:100%;height:3em'>"
        f"<polyline points='{points}' fill='none' stroke='#0072B2' stroke-width='2' "
        "vector-effect='non-scaling-stroke'/></svg>"
        f"<small>from {_number(min(numbers))} to {_number(max(numbers))}</small></div>"
    )
