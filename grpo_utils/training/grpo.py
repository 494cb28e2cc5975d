"""A recipe -> a trained policy: TRL's GRPOTrainer with LoRA, the recipe's rewards, and resume after a kill.

Where the recipe asks for a warm start, TRL's SFTTrainer first shows the policy reference answers. Trainers, optimiser
and adapters are TRL's and PEFT's own; this module only puts a recipe into their terms.
"""

import functools
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig, PeftModel
from transformers import PrinterCallback, Trainer, TrainerCallback, set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from grpo_utils import policy, rewards, runs, tasks
from grpo_utils.rewards import Reward
from grpo_utils.rewards.teacher import teacher
from grpo_utils.runs import LogEntry, Recipe, RecipeError, nearest
from grpo_utils.tasks import Task

from .checks import blaming, check_block, check_enough, check_heeded, check_schedule
from .generation import coupled
from .launch import as_one_process, launch_command, run_launched
from .memory import count_parameters, warn_if_short
from .shared_prompts import SharedPromptTrainer
from .signal_guard import SignalGuard
from .survival import KeepOrder, SaveBetweenGenerations, SealCheckpoints, StopOnSignal
from .unsloth import load_unsloth

SOURCES = (  # what makes an adapter
    *("extractors.py", "rewards", "tasks", "policy", "sandbox"),
    *("training/generation.py", "training/grpo.py", "training/shared_prompts.py"),
)
disable_progress_bars()  # of tokenizing: in a notebook that is kept they are dead widgets


def check_arguments(recipe: Recipe) -> None:
    """Compares the recipe's blocks with what the installed versions accept and what is installed.

    Raises:
        RecipeError: see `check_block` and `check_heeded`; or a block does not fit together, or something is missing.
    """
    for block, target in (("grpo", GRPOConfig), ("warm_start", SFTConfig), ("lora", LoraConfig)):
        check_block(recipe.name, block, getattr(recipe, block) or {}, target)
    for key in recipe.rewards:
        if key not in rewards.REGISTRY:
            own = ": a function becomes a reward by @reward(low, high)" if recipe.imports else ""
            near = nearest(key, rewards.REGISTRY)
            raise RecipeError(f"Unknown key 'rewards.{key}' in recipe {recipe.name!r}{near}{own}.")
    if recipe.tracking != "none" and importlib.util.find_spec(recipe.tracking) is None:
        raise RecipeError(f"Recipe {recipe.name!r} has tracking {recipe.tracking!r}: pip install {recipe.tracking}.")
    whole = as_one_process(recipe)
    with blaming(recipe, "grpo"):
        config = grpo_config(whole, Path("unused"))
        check_heeded(recipe, "grpo", config)
        check_schedule(config)
        if config.logging_steps > config.max_steps:
            raise ValueError(f"no step is logged: logging_steps ({config.logging_steps}) must not be above max_steps.")
    with blaming(recipe, "warm_start"):
        config = sft_config(whole, Path("unused"))
        check_heeded(recipe, "warm_start", config)
        check_schedule(config)
    with blaming(recipe, "lora"):
        check_heeded(recipe, "lora", LoraConfig(task_type="CAUSAL_LM", **recipe.lora))


def check_before_start(recipe: Recipe) -> None:
    """Checks what can be known of a recipe before its first notebook: arguments, tasks, layers, and what is installed.

    Raises:
        UserError: a RecipeError, as `check_arguments`, or what is missing on this machine: tasks, a model, vLLM.
    """
    check_arguments(recipe)
    if recipe.grpo.get("use_vllm") and recipe.without_gpu is None and not torch.cuda.is_available():
        raise RecipeError(f"grpo.use_vllm of recipe {recipe.name!r} needs a GPU; on a CPU see examples/decoupled.")
    with blaming(recipe, "grpo"):
        Trainer.get_optimizer_cls_and_kwargs(grpo_config(as_one_process(recipe), Path("unused")))
    tasks.check_data(recipe)
    check_enough(recipe, tasks.load_split(recipe, "train"))
    config = policy.load_model_config(recipe.model)
    with blaming(recipe, "lora"):
        count_parameters(config, recipe.lora)


def teacher_reward(recipe: Recipe, run: Path) -> list[Callable[..., Any]]:
    """Returns the async reward of the recipe's teacher, whose ledger the run keeps, or an empty list if it has none."""
    if recipe.teacher is None:
        return []
    ledger = run / "teacher.sqlite"
    return [functools.partial(teacher, settings=recipe.teacher, tags=recipe.prompt.tags, ledger=ledger)]


def practice_tasks(recipe: Recipe, run: Path) -> list[Task]:
    """Returns the tasks to train on: those of the training split with a pass rate within `dataset.pass_rate`.

    Raises:
        RunError: the recipe filters by pass rate, and notebook 03 has not measured it yet.
        DataError: fewer tasks are left than a step has prompts.
    """
    batch = tasks.load_split(recipe, "train")
    if recipe.dataset.pass_rate is not None:
        path = runs.record_path(run, recipe.start, "train", recipe.prompt.shots)
        measured = runs.read_json(runs.need_file(path, "03_reward_design"))["tasks"]
        # the first completion is the greedy one, which GRPO does not draw
        rates = {row["task_id"]: fmean(one["strict"] for one in row["completions"][1:]) for row in measured}
        if missing := [task.task_id for task in batch if task.task_id not in rates]:
            raise runs.RunError(f"{path} was made of other tasks, without {missing[0]!r}: run notebook 03 again.")
        low, high = recipe.dataset.pass_rate
        batch = [task for task in batch if low <= rates[task.task_id] <= high]
    check_enough(recipe, batch)
    return batch


def _storing(first: Reward, recipe: Recipe) -> Reward:
    """One of a trainer's rewards, which then has TRL store of every completion its task, length, and if it is right."""
    (correct,), _ = rewards.recipe_rewards(recipe.model_copy(update={"rewards": {"correct": 1.0}}))

    @functools.wraps(first)
    def paid(completions: Sequence[rewards.Completion], **columns: Any) -> list[float | None]:
        found, store = first(completions, **columns), columns["log_extra"]
        store("task_id", columns["task_id"])
        store("tokens", [len(ids) for ids in columns["completion_ids"]])
        store("strict", correct(completions, **columns))  # the sandbox remembers the batch that `first` had it judge
        return found

    return paid


def training_set(recipe: Recipe, run: Path) -> Dataset:
    """Returns what TRL trains on: `prompt` (a chat), `task_id`, and the columns that rewards read."""
    batch = practice_tasks(recipe, run)
    examples = tasks.worked_examples(recipe, recipe.prompt.shots)
    prompts = [tasks.prompt_messages(task, recipe.prompt, examples) for task in batch]
    return Dataset.from_dict({"prompt": prompts, "task_id": [task.task_id for task in batch], **tasks.columns(batch)})


def grpo_config(recipe: Recipe, run: Path) -> GRPOConfig:
    """Returns TRL's configuration: the recipe's `grpo` block, and what its other blocks and the machine decide."""
    weights = list(recipe.weights.values())
    settings = {"reward_weights": weights, "log_completions": True, "num_completions_to_print": 0}
    config = GRPOConfig(**_common(recipe, run) | settings | recipe.grpo)
    _refuse_divided_groups(recipe, config)
    return config


def _refuse_divided_groups(recipe: Recipe, config: GRPOConfig) -> None:
    """TRL asks each process for the rewards of its own completions, and may give it a part of a group."""
    comparing = [name for name in ("length_penalty", "teacher") if name in recipe.weights]
    held = config.per_device_train_batch_size * (config.steps_per_generation or 1)
    if comparing and config.world_size > 1 and held % (config.num_generations or 1):
        raise RecipeError(
            f"{comparing[0]!r} looks at a group of {config.num_generations} completions as a whole, and each of "
            f"{config.world_size} processes holds {held}: make grpo.per_device_train_batch_size times "
            "gradient_accumulation_steps a multiple of grpo.num_generations."
        )


def sft_config(recipe: Recipe, run: Path) -> SFTConfig:
    """Returns TRL's configuration of the warm start: the recipe's `warm_start` block, and what the machine decides."""
    settings = {"save_strategy": "no", "max_length": None, "logging_steps": 1}
    return SFTConfig(**_common(recipe, run) | settings | (recipe.warm_start or {}))


def _common(recipe: Recipe, run: Path) -> dict[str, Any]:
    """What both trainers need to know of the recipe's other blocks and of the machine."""
    cuda = torch.cuda.is_available()
    return {
        "output_dir": str(run / "checkpoints"),
        "run_name": recipe.name,  # to trackers
        "seed": recipe.seed,
        "report_to": recipe.tracking,
        "use_cpu": not cuda,
        "bf16": cuda and recipe.model.dtype == "bfloat16",
        "gradient_checkpointing": cuda,
        "dataloader_pin_memory": cuda,
        "disable_tqdm": True,
    }


class TrainingLog(TrainerCallback):
    """Appends every entry that the trainer logs to a JSONL file and hands it to `on_log`, `max_steps` added.

    When a killed run is resumed, both begin with what the checkpoint remembers: a kill may have cut the file anywhere.
    What `on_log` gets of it has the checkpoint's step as `going_on`.
    """

    def __init__(self, path: Path, on_log: Callable[[LogEntry], None]) -> None:
        self.path = path
        self.hand_over = on_log

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        entries = [{"step": entry["step"], **entry} for entry in state.log_history]
        runs.write_file(self.path, "".join(json.dumps(entry) + "\n" for entry in entries))
        for entry in entries:
            self.hand_over({**entry, "max_steps": state.max_steps, "going_on": state.global_step})

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # transformers' mean over the training is wrong after a resume: it counts all steps, but not the losses before
        entry = {"step": state.global_step, **{k: v for k, v in kwargs["logs"].items() if k != "train_loss"}}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        self.hand_over({**entry, "max_steps": state.max_steps})


@runs.writes_alone
def warm_start(recipe: Recipe, run: Path, on_log: Callable[[LogEntry], None] = lambda entry: None) -> Path | None:
    """Fine-tunes a fresh adapter on reference answers to training tasks, prompted as GRPO will prompt.

    It is meant to be short: long enough that the policy meets the format in its samples, so that groups have spread.
    The filters by difficulty are for GRPO's practice alone: here the hard tasks have something to show too.
    Arguments and errors are those of `train`.

    Returns:
        The adapter's folder, or None when the recipe wants no warm start. One that is already there is kept.
    """
    # 1. is it there?
    folder = run / "checkpoints" / runs.WARM_START
    if recipe.tracking == "wandb" and "WANDB_API_KEY" not in os.environ:
        os.environ.setdefault("WANDB_MODE", "offline")
    _refuse_other_origin(recipe, run)
    if runs.is_main_process():
        runs.drop_damaged(run)
    if recipe.warm_start is None or folder.is_dir():
        return folder if folder.is_dir() else None

    # 2. prompts and reference answers
    batch = tasks.shorten(tasks.load_judged(recipe, "train"), recipe.dataset, "train")
    batch = [task for task in batch if task.reference_answer(recipe.prompt)]
    if not batch:
        raise tasks.DataError("No training task has a reference to imitate: set `warm_start` to null in the recipe.")
    examples = tasks.worked_examples(recipe, recipe.prompt.shots)
    answers = [[{"role": "assistant", "content": task.reference_answer(recipe.prompt)}] for task in batch]
    prompts = [tasks.prompt_messages(task, recipe.prompt, examples) for task in batch]
    columns: dict[str, Any] = {"prompt": prompts, "completion": answers}
    if template := recipe.sampling.chat_template_kwargs:
        columns["chat_template_kwargs"] = [template] * len(batch)

    # 3. the training
    partial = folder.with_name(f"{runs.WARM_START}.partial")
    if runs.is_main_process():
        shutil.rmtree(partial, ignore_errors=True)
    config = sft_config(recipe, run)  # before the model: DeepSpeed divides the weights while they are loaded
    base = policy.load_policy(recipe)
    set_seed(recipe.seed)  # the adapter is initialised before the trainer seeds anything
    trainer = SFTTrainer(
        model=base.model,
        processing_class=base.tokenizer,
        args=config,
        train_dataset=Dataset.from_dict(columns),
        peft_config=LoraConfig(task_type="CAUSAL_LM", **recipe.lora),
        callbacks=[TrainingLog(run / "warm_start_log.jsonl", on_log)] if runs.is_main_process() else [],
    )
    policy.round_once(trainer.model)  # type: ignore[arg-type]
    trainer.remove_callback(PrinterCallback)
    trainer.train()

    # 4. the adapter has its name when it is whole
    trainer.save_model(str(partial))
    trainer.accelerator.wait_for_everyone()
    if runs.is_main_process():
        runs.seal_adapter(partial)
        partial.rename(folder)
    trainer.accelerator.wait_for_everyone()
    return folder


@runs.writes_alone
def train(
    recipe: Recipe,
    run: Path,
    on_log: Callable[[LogEntry], None] = lambda entry: None,
    beside: Callable[[GRPOTrainer], AbstractContextManager[Any]] = nullcontext,
) -> list[Path]:
    """Trains the recipe's policy with GRPO, from its last complete checkpoint, its warm start, or a fresh adapter.

    Where the recipe asks for several processes or for Unsloth, they are started here, and print their own log.

    Args:
        recipe: what to train.
        run: folder of the run, from `runs.start_run`.
        on_log: called with every log entry, once per `logging_steps`, when this process trains; where it goes on from a
            checkpoint, first with the entries of the steps before. See `show.panel.Panel`.
        beside: trainer -> what is open while it trains, such as a server that generates (`examples/decoupled`).

    Returns:
        The folders of all checkpoints (LoRA adapters), in the order of their steps.

    Raises:
        RunError: checkpoints are there that were made with another base, code or data, or the processes started here
            failed.
        KeyboardInterrupt: a signal stopped it; all steps that were taken are saved.
    """
    # 1. in which process?
    if elsewhere := launch_command(recipe, run):
        run_launched(elsewhere)
        return runs.checkpoints(run)
    main = runs.is_main_process()  # of several processes this one alone removes files

    # 2. from where? All processes go on from the same checkpoint
    if main:
        runs.drop_damaged(run)
    PartialState(cpu=not torch.cuda.is_available()).wait_for_everyone()
    done = runs.checkpoints(run)
    start = warm_start(recipe, run)
    if done and int(done[-1].name.partition("-")[2]) >= recipe.grpo["max_steps"]:
        return runs.drop_extra(run) if main else done

    # 3. configuration, policy and rewards
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental; the pinned version has it
    config = grpo_config(recipe, run)  # before the model: DeepSpeed divides the weights while they are loaded
    warn_if_short(recipe)
    unsloth = recipe.model.engine == "unsloth"
    base = load_unsloth(recipe) if unsloth else policy.load_policy(recipe)
    (first, *others), _ = rewards.recipe_rewards(recipe, stop_on_fault=True)

    # 4. the trainer
    generations, log = SaveBetweenGenerations(), TrainingLog(run / "training_log.jsonl", on_log)
    stop, guard = StopOnSignal(generations), SignalGuard(weights=recipe.weights)
    set_seed(recipe.seed)  # a fresh adapter is initialised before the trainer seeds anything
    trainer = (GRPOTrainer if torch.cuda.is_available() else SharedPromptTrainer)(
        model=PeftModel.from_pretrained(base.model, start, is_trainable=True) if start else base.model,
        processing_class=base.tokenizer,
        args=config,
        train_dataset=training_set(recipe, run),
        reward_funcs=[_storing(first, recipe), *others, *teacher_reward(recipe, run)],  # type: ignore[arg-type]
        rollout_func=None if torch.cuda.is_available() else coupled,  # type: ignore[arg-type]
        peft_config=None if start or unsloth else LoraConfig(task_type="CAUSAL_LM", **recipe.lora),
        callbacks=[generations, stop, KeepOrder(), SealCheckpoints(), *([log, guard] if main else [])],
    )
    model: Any = trainer.model
    # TRL holds an adapter on 4-bit weights in bfloat16, and PEFT would load the checkpoint's in float32
    model.load_adapter = functools.partial(model.load_adapter, autocast_adapter_dtype=False)
    policy.round_once(model)
    trainer.remove_callback(PrinterCallback)

    # 5. the training, and what a signal leaves of it
    try:
        with beside(trainer):
            trainer.train(resume_from_checkpoint=str(done[-1]) if done else None)
    finally:
        stop.restore()
    if stop.asked and trainer.state.global_step < recipe.grpo["max_steps"]:
        raise KeyboardInterrupt
    return runs.drop_extra(run) if main else runs.checkpoints(run)


def _refuse_other_origin(recipe: Recipe, run: Path) -> None:
    """Adapters made with another base, code or data are neither gone on with nor passed off as new."""
    path = run / "checkpoints" / policy.MADE_WITH
    code = runs.code_hash(*SOURCES)
    base = policy.base_fingerprint(recipe.model)
    origin = f"base {base}\ncode {code}\ndata {tasks.data_fingerprint(recipe)}\n"
    if not runs.adapters(run):
        runs.write_file(path, origin)
    elif not path.is_file() or path.read_text(encoding="utf-8") != origin:
        raise runs.RunError(
            f"The adapters in {path.parent} were made with another base, code or data: make them again with "
            "`grpo reproduce --from 03 --force`, or give this run a name of its own with --run."
        )
