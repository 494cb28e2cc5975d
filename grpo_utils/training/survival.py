"""Trainer callbacks that let a training run survive: sealed checkpoints, from which it goes on as if it had never
stopped, and an end that loses no step.
"""

import shutil
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import TrainerCallback

from grpo_utils import runs

REFERENCE = "ref"  # TRL's name for the frozen copy of a warm start, to which the KL divergence is measured


class SaveBetweenGenerations(TrainerCallback):
    """Puts a checkpoint off until all steps are done that learn from the completions at hand, and logs what led to it.

    There are several with `num_iterations` or `steps_per_generation` above their defaults. TRL keeps completions in
    memory only: a training that went on from a checkpoint among these steps would learn from others.
    """

    def __init__(self) -> None:
        self.batches = 0  # since the training began, which it does between two generations
        self.several = False  # some steps learn from the completions of an earlier one
        self.between = False  # the step that has just ended was the last one to learn from its completions
        self.due = False  # a checkpoint has been asked for, and waits

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.every = args.steps_per_generation * args.num_iterations
        self.several = args.gradient_accumulation_steps % self.every > 0
        if state.save_steps * args.gradient_accumulation_steps % self.every and state.is_world_process_zero:
            print("checkpoints wait for the last of the steps that learn from the same completions", flush=True)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.batches += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.batches += 1
        self.between = self.batches % self.every == 0
        self.due |= control.should_save
        control.should_save = self.due and (self.between or state.global_step >= state.max_steps)
        self.due &= not control.should_save
        # means over the steps since the last entry: those before a checkpoint are known to this process alone
        control.should_log |= control.should_save


class KeepOrder(TrainerCallback):
    """Gives a resumed training the order of tasks that it would have had: TRL's sampler draws one for each epoch."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        batches = kwargs["train_dataloader"].batch_sampler
        sampler = getattr(batches, "batch_sampler", batches).sampler  # one of several processes has a share of batches
        for _ in range(int(state.epoch or 0)):
            next(iter(sampler))  # draws an order


class SealCheckpoints(TrainerCallback):
    """Seals every checkpoint once all processes have written their part of it.

    The reference of the KL divergence is removed: it is the warm start, which the run's folder has, and transformers
    5.17 would load it in the place of the policy's adapter.
    """

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            if (folder / REFERENCE).is_dir():
                shutil.rmtree(folder / REFERENCE)
            runs.seal_adapter(folder)


class StopOnSignal(TrainerCallback):
    """Ends the training after the step at hand, with a checkpoint, on SIGTERM or Ctrl-C; a second signal does not wait.

    Where several steps learn from the same completions, it ends after the last of them (`SaveBetweenGenerations`).
    Outside the main thread, where Python delivers no signals, it does nothing.

    A checkpoint that only a signal asked for is marked with a file `extra`: `runs.drop_extra` removes it in the end, so
    that the run has the same checkpoints as one that was never stopped.
    """

    def __init__(self, generations: SaveBetweenGenerations) -> None:
        self.generations = generations  # in the trainer's list of callbacks it stands before this one
        self.asked = False  # a signal came, to this process or to another of the training
        self.extra = False
        self.before: dict[int, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self._ask) for number in (signal.SIGTERM, signal.SIGINT)}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self.restore()
        what = "the steps that learn from these completions are" if self.generations.several else "this step is"
        print(f"stopping: {what} ended and saved first", flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.asked = any(gather_object([self.asked]))  # all processes stop at one step, or they wait for each other
        if self.asked and self.generations.between:
            self.extra = not control.should_save
            control.should_save = control.should_log = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.extra and state.is_world_process_zero:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / runs.EXTRA).touch()

    def restore(self) -> None:
        """Gives the signals back to those who had them before the training."""
        for number, handler in self.before.items():
            signal.signal(number, handler)
