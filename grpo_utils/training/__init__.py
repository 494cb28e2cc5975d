"""A recipe -> a trained policy: TRL's trainers in this project's terms.

`grpo` trains, `checks` says before it what a recipe gets wrong, `generation` brings completions, `launch` starts
several processes (or one that `unsloth` patches), `survival` makes checkpoints that a kill does not hurt,
`signal_guard` warns when the signal dies, `memory` says before all that what a GPU needs, `variants` begins trainings
that differ from a run's own in their rewards.

Advantage and loss are not here but TRL's: `GRPOTrainer._generate_and_score_completions` and `_compute_loss`. Chapter 6
writes both out and compares.
"""

from .generation import coupled
from .grpo import (
    TrainingLog,
    check_arguments,
    check_before_start,
    grpo_config,
    practice_tasks,
    sft_config,
    teacher_reward,
    train,
    training_set,
    warm_start,
)
from .launch import LAUNCHERS, is_launched, launch_command, launcher_file, run_launched
from .memory import CONTEXT, GB, advice, estimate_memory
from .signal_guard import RULES, SignalGuard, SignalWarning
from .survival import SaveBetweenGenerations, StopOnSignal
from .variants import ALONE, begin_variant, half_batch
