"""Trainer callbacks that let a training run survive: a seal on every checkpoint, and an end that loses no step."""

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import TrainerCallback

from grpo_utils import runs


class SealCheckpoints(TrainerCallback):
    """Seals every checkpoint once all processes have written their part of it (`runs.seal`)."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            runs.seal(Path(args.output_dir) / f"checkpoint-{state.global_step}")


class StopOnSignal(TrainerCallback):
    """Ends the training after the step at hand, with a checkpoint, on SIGTERM or Ctrl-C; a second signal does not wait.

    Outside the main thread, where Python delivers no signals, it does nothing.

    A checkpoint that only a signal asked for is marked with a file `extra`: `runs.drop_extra` removes it in the end, so
    that the run has the same checkpoints as one that was never stopped.

    Attributes:
        asked: a signal came, to this process or to another of the training.
    """

    def __init__(self) -> None:
        self.asked = self.extra = False
        self.before: dict[int, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self._ask) for number in (signal.SIGTERM, signal.SIGINT)}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self.restore()
        print("stopping: this step is ended and saved first", flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.asked = any(gather_object([self.asked]))  # all processes stop at one step, or they wait for each other
        if self.asked:
            self.extra = not control.should_save
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.extra and state.is_world_process_zero:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / runs.EXTRA).touch()

    def restore(self) -> None:
        """Gives the signals back to those who had them before the training."""
        for number, handler in self.before.items():
            signal.signal(number, handler)
