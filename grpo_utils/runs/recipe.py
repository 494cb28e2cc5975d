"""A YAML file in `recipes/` -> a validated `Recipe`: everything that a run needs.

The `grpo`, `warm_start` and `lora` blocks are the keyword arguments of TRL's `GRPOConfig` and `SFTConfig` and of PEFT's
`LoraConfig`; `training.check_arguments` compares them with the installed versions. Files and overrides are YAML 1.2
(see `core_yaml`), and no value is converted: a number in quotes is a text, `100.0` and `1e2` are no whole numbers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Strict,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from .core_yaml import dump_yaml, load_yaml
from .errors import UserError, nearest
from .imports import import_files
from .machine import faster_dtype
from .sources import ROOT

Split = Literal["train", "validation", "test"]
RECIPES = ROOT / "recipes"
BASE, WARM_START = "base", "warm-start"  # policies, by the names that their records have
FOR_A_RATE = 8  # completions of a task, at least, to choose tasks by their pass rate
NEEDED = {  # what others than the trainer read
    "grpo": {
        "max_steps": PositiveInt,
        "num_generations": Annotated[int, Field(ge=2)],  # a completion is compared with its group
        "per_device_train_batch_size": PositiveInt,
        "temperature": PositiveFloat,
        "max_completion_length": PositiveInt,
    },
    "lora": {"r": PositiveInt, "target_modules": Annotated[list[str], Field(min_length=1)] | Literal["all-linear"]},
}
SEEDS = 1_800_000_000  # numpy takes 32 bits, and 64 hold the seed of a completion, ten thousand million times as large


class RecipeError(UserError):
    """A recipe that cannot be used."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _ordered(shares: tuple[float, float]) -> tuple[float, float]:
    if not 0 <= shares[0] <= shares[1] <= 1:
        raise ValueError("the least and the largest share must be in order and from 0 to 1")
    return shares


def _dtype(name: str) -> str:
    return faster_dtype() if name == "auto" else name


class Model(_Section):
    """Which model: `embedded:smollm2-135m-instruct`, a hub id, or a local folder; and how its weights are held.

    A `dtype` of `auto` becomes what this machine's processor is faster in (`faster_dtype`). `load_in_4bit` holds the
    frozen weights in NF4 (QLoRA, arXiv 2305.14314). `engine` says what trains: Unsloth's patches of TRL, or TRL on
    plain transformers.
    """

    name: str
    dtype: Annotated[Literal["bfloat16", "float16", "float32", "auto"], AfterValidator(_dtype)] = "bfloat16"
    engine: Literal["transformers", "unsloth"] = "transformers"
    load_in_4bit: bool = False


class Dataset(_Section):
    """Which tasks. `shuffle` is a seed to reorder splits with; `limits` then shortens them to a number or a share.

    The other keys filter the training split: `max_difficulty` is the largest number of branches in a reference program,
    or of steps in a worked solution; `pass_rate` keeps the tasks of which the start of GRPO solves at least and at most
    such a share of its completions.

    `leave_out` names tasks by split and `task_id` that are neither trained on nor measured, above all those that the
    audit finds the sandbox unable to judge. `candidate_may_decide` says whether an assert may count as passed where the
    program's own code decided it, by the `__eq__` of its class for instance (see docs/judged.md). `timeout` is how many
    seconds a check of a program may take, in audit, training and evaluation.
    """

    name: str
    max_grade: int | None = Field(default=None, ge=1)
    max_difficulty: int | None = Field(default=None, ge=0)
    pass_rate: Annotated[tuple[float, float], Strict(False), AfterValidator(_ordered)] | None = None
    shuffle: int | None = None
    limits: dict[Split, NonNegativeInt | Annotated[float, Field(gt=0, lt=1)]] = Field(default_factory=dict)
    leave_out: dict[Split | Literal["prompt"], list[int | str]] = Field(default_factory=dict)
    candidate_may_decide: bool = False
    timeout: PositiveFloat = 3.0


class Prompt(_Section):
    """How a task is put to the policy: system prompt, tags, worked examples in the training prompt, asserts shown.

    `thoughts` says what worked examples and the answers of the warm start have in the first tag: each task's own
    thought (a template where it has none), a template, or nothing.
    """

    system: str
    tags: Annotated[tuple[str, str], Strict(False)]
    shots: int = Field(ge=0)
    visible_asserts: int = Field(ge=0)
    thoughts: Literal["own", "template", "none"] = "own"


class Evaluation(_Section):
    """How a policy is measured.

    `samples` says for each split how many completions to sample per task, by number of worked examples in the
    prompt; the greedy completion always comes on top. `engine` says what generates: transformers, or vLLM, whose random
    numbers are others.
    """

    samples: dict[Split, dict[Annotated[NonNegativeInt, Strict(False)], NonNegativeInt]]  # a dotted key is a text
    temperature: float = Field(gt=0)
    max_new_tokens: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    engine: Literal["transformers", "vllm"] = "transformers"


class Sampling(_Section):
    """How completions are asked for, besides their temperature and their length; the defaults change nothing.

    `top_k` (Fan et al. 2018, arXiv 1805.04833), `top_p` (Holtzman et al. 2019, arXiv 1904.09751) and `min_p` (Nguyen
    et al. 2024, arXiv 2407.01082) leave out unlikely tokens, `repetition_penalty` (Keskar et al. 2019, arXiv
    1909.05858) makes those less likely that are there already, and `chat_template_kwargs` are for the tokenizer's chat
    template, such as Qwen3's `enable_thinking`. GRPO's own log-probabilities stay those of all tokens at the
    temperature: completions drawn from fewer are slightly off-policy.
    """

    top_k: NonNegativeInt = 0
    top_p: float = Field(default=1.0, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0)
    chat_template_kwargs: dict[str, Any] | None = None


NEUTRAL = Sampling()


def sampling_of(grpo: Mapping[str, Any]) -> Sampling:
    """Returns what the keyword arguments of a `GRPOConfig` say of sampling.

    Raises:
        ValueError: a value is wrong, or there is an argument that evaluation could not follow.
    """
    more = grpo.get("generation_kwargs") or {}
    if not isinstance(more, Mapping):
        raise ValueError(f"grpo.generation_kwargs must be keys and values, not {_short(repr(more))}")
    known = [key for key in Sampling.model_fields if key != "chat_template_kwargs"]
    for key in more:
        if key not in known:
            raise ValueError(f"grpo.generation_kwargs.{key} is not honoured everywhere: it may hold {', '.join(known)}")
    if grpo.get("vllm_structured_outputs_regex"):
        raise ValueError("grpo.vllm_structured_outputs_regex is not honoured in evaluation: remove it")
    given = {key: grpo[key] for key in Sampling.model_fields if key in grpo}
    try:
        found = Sampling.model_validate({**given, **more})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"grpo.{key} is wrong: {first['msg'].lower()}, not {_short(repr(first['input']))}") from error
    for key in ("add_generation_prompt", "continue_final_message", "return_dict", "tokenize"):
        if key in (found.chat_template_kwargs or {}):
            raise ValueError(f"grpo.chat_template_kwargs.{key} follows from the chat: remove it")
    return found


class Teacher(_Section):
    """A model that grades the reasoning of completions during training: see `rewards.teacher`.

    `url` is an OpenAI-compatible endpoint, up to its `/v1`; its API key, if it wants one, is read from the environment
    variable GRPO_TEACHER_KEY. The grade, from 0 to 1, enters the reward with `weight`. A run makes at most `calls`
    calls, `parallel` at a time, each of which may take `timeout` seconds.
    """

    url: str = Field(pattern=r"^https?://[\w.-]+(:\d{1,5})?(/[^\s@?#]*)?$")  # a key has no place in a recipe
    model: str
    weight: float = Field(gt=0)
    calls: NonNegativeInt
    parallel: int = Field(default=16, ge=1)
    timeout: float = Field(default=60.0, gt=0)


class Recipe(_Section):
    """All settings of a run. Read one with `load_recipe`.

    `warm_start`, keyword arguments of TRL's `SFTConfig`, asks for supervised steps on the references before GRPO.
    `without_gpu` makes a recipe one for GPUs, and names the recipe to run on a machine that has none. `launcher` has
    `accelerate launch` start the training: a file in `launchers/`, or the path of another (see docs/scaling.md).
    `imports` holds Python files, name -> text: in a recipe that is written by hand it lists their paths.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")  # it becomes a folder
    imports: dict[str, str] = Field(default_factory=dict)
    model: Model
    lora: dict[str, Any]
    dataset: Dataset
    prompt: Prompt
    rewards: dict[str, float] = Field(min_length=1)
    teacher: Teacher | None = None
    warm_start: dict[str, Any] | None = None
    grpo: dict[str, Any]
    evaluation: Evaluation
    tracking: Literal["none", "wandb", "tensorboard", "trackio"] = "none"
    without_gpu: str | None = None
    launcher: str | None = None
    seed: int = Field(default=0, ge=0, lt=SEEDS)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for split in ("validation", "test"):
            if self.prompt.shots not in self.evaluation.samples.get(split, {}):
                raise ValueError(f"evaluation.samples.{split} lacks prompt.shots, the number {self.prompt.shots}")
        for split in ("train", "validation", "test"):
            if self.evaluation.samples.get(split, {}).get(self.prompt.shots) == 0:
                raise ValueError(f"evaluation.samples.{split} must sample the training prompt at least once")
        if list(self.evaluation.samples.get("train", {})) != [self.prompt.shots]:
            raise ValueError(
                f"evaluation.samples.train must have prompt.shots, {self.prompt.shots}, and no other number"
            )
        if self.dataset.pass_rate and self.evaluation.samples["train"][self.prompt.shots] < FOR_A_RATE:
            raise ValueError(f"dataset.pass_rate needs evaluation.samples.train of at least {FOR_A_RATE} completions")
        if self.model.engine == "unsloth" and (self.warm_start or self.launcher):
            raise ValueError("model.engine unsloth trains in one process without a warm start; use transformers")
        if self.teacher and self.teacher.weight >= max(self.rewards.values()):
            raise ValueError("teacher.weight must be below the largest weight in rewards: a text can talk to a teacher")
        for block, keys in NEEDED.items():
            settings = getattr(self, block)
            for key, kind in keys.items():
                if key not in settings:
                    raise ValueError(f"{block}.{key} is missing")
                if wrong := complaint(settings[key], kind):
                    raise ValueError(f"{block}.{key} is wrong: {wrong}")
        if not self.grpo.get("log_completions", True):
            raise ValueError("grpo.log_completions must stay true: the notebooks read the stored completions")
        sampling_of(self.grpo)
        return self

    @property
    def start(self) -> str:
        """The policy that GRPO begins with, by its name in records: the warm start, or the base where there is none."""
        return WARM_START if self.warm_start else BASE

    @property
    def sampling(self) -> Sampling:
        """What the `grpo` block says of sampling: evaluation asks the policy as training does."""
        return sampling_of(self.grpo)

    @property
    def weights(self) -> dict[str, float]:
        """Weight of every reward by its name, the teacher's included, in the order in which TRL gets them."""
        return self.rewards | ({"teacher": self.teacher.weight} if self.teacher else {})

    def to_yaml(self) -> str:
        """Returns the recipe as YAML text that `load_recipe` reads back to an equal recipe."""
        return dump_yaml(self.model_dump(mode="json", exclude=None if self.imports else {"imports"}))


def recipe_files() -> dict[str, Path]:
    """Returns the recipes that ship with the project, name -> file; those in `untested/` have never run on a GPU."""
    return {path.stem: path for folder in (RECIPES, RECIPES / "untested") for path in sorted(folder.glob("*.yaml"))}


def load_recipe(name: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Reads and validates a recipe.

    Args:
        name: a recipe that ships with the project, such as `"cpu-code"`, or the path of a YAML file.
        overrides: values by dotted key, such as `{"grpo.max_steps": 5, "seed": 1}`; files under `imports` come on
            top of the recipe's.

    Raises:
        RecipeError: the file is missing or malformed, or a key or value in it is wrong.
        UserError: a Python file that it imports is missing or fails.

    Example:
        >>> load_recipe("smoke-code", {"seed": 3}).seed
        3
    """
    known = recipe_files()
    path = Path(name) if str(name).endswith((".yaml", ".yml")) else known.get(str(name))
    if path is None or not path.is_file():
        raise RecipeError(f"There is no recipe {str(name)!r}{nearest(str(name), known)}; recipes: {', '.join(known)}.")
    settings = parse_yaml(path.read_bytes(), str(path))
    if not isinstance(settings, dict):
        raise RecipeError(f"{path} must hold keys and values, such as those in {RECIPES / 'cpu-code.yaml'}.")
    more = {"imports": [], **(overrides or {})}
    imported = more.pop("imports")
    for key, value in more.items():
        _set(settings, key, value)
    _refuse_unusual(settings, path)
    import_files(settings, imported, path.parent)
    try:
        return Recipe.model_validate({"name": path.stem, **settings})
    except ValidationError as error:
        raise RecipeError(_explain(error, path)) from error


def parse_yaml(text: str | bytes, name: str) -> Any:
    """Returns what a YAML text says, or raises RecipeError that calls it `name`."""
    try:
        return load_yaml(text)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError, LookupError, AttributeError, TypeError) as error:
        raise RecipeError(f"{name} is not valid YAML: {_short(error)}") from error


def _short(value: object) -> str:
    """A value as one line of at most 200 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 200 else f"{text[:200]}..."


def _set(settings: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, last = dotted.split(".", 1 if dotted.startswith("rewards.") else -1)  # FILE.py:NAME is a key
    for section in sections:
        settings = settings.setdefault(section, {})
        if not isinstance(settings, dict):
            raise RecipeError(f"Override {dotted!r} does not fit: {section!r} is a value, not a section.")
    settings[last] = value


def _refuse_unusual(settings: dict[str, Any], path: Path) -> None:
    """Refuses numbers that are not finite, wherever they stand, and what YAML's tags can make: dates, bytes, sets."""
    try:
        for key, value in _leaves(settings):
            if isinstance(value, float) and not math.isfinite(value):
                raise RecipeError(f"Key {key!r} in {path} is wrong: a number must be finite, not {value}.")
            if not isinstance(value, str | int | float | None):
                raise RecipeError(
                    f"Key {key!r} in {path} is wrong: a value is a text, a number, true, false, null, a list or a "
                    f"block, not {_short(repr(value))}."
                )
    except RecursionError as error:
        raise RecipeError(f"{path} is wrong: a part of it contains itself.") from error


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its dotted key; one in a list has the key of the list."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _leaves(one, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _leaves(one, key)
    else:
        yield key, value


def complaint(value: Any, kind: Any) -> str | None:
    """Returns what is wrong with a value of YAML that is to be of some type, or None; nothing is converted.

    Example:
        >>> complaint(1e2, int)
        'input should be a valid integer, not 100.0: write 100'
        >>> complaint("x", int | list[int] | None)
        "input should be a valid integer or a valid list, not 'x'"
    """
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        return _said(error.errors(), value)
    return None


def _said(errors: Sequence[ErrorDetails], value: Any) -> str:
    """What pydantic says against a value: several things when it may be of several types."""
    said = [one["msg"].removeprefix("Value error, ") for one in errors]
    said = [one[0].lower() + one[1:] for one in said]
    said = [one for one in said if "instance of" not in one] or said  # YAML has texts for the members of an enum
    start = "input should be "
    parts = [one if i == 0 else one.removeprefix(start) for i, one in enumerate(dict.fromkeys(said))]
    whole = isinstance(value, float) and value.is_integer() and any("integer" in one for one in said)
    return f"{' or '.join(parts)}, not {_short(repr(value))}{f': write {value:.0f}' if whole else ''}"


def _explain(error: ValidationError, path: Path) -> str:
    """The first of pydantic's complaints as one sentence that names the key, the file and the nearest valid key."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        section: Any = Recipe
        for part in first["loc"][:-1]:
            annotation = section.model_fields[str(part)].annotation
            section = next((one for one in get_args(annotation) if one is not type(None)), annotation)  # X | None
        valid = list(section.model_fields)
        return f"Unknown key {key!r} in {path}{nearest(str(first['loc'][-1]), valid)}; valid keys: {', '.join(valid)}."
    if first["type"] == "missing":
        return f"Key {key!r} is missing in {path}."
    if not key:
        return f"{path}: {first['msg'].removeprefix('Value error, ')}."
    return f"Key {key!r} in {path} is wrong: {_said([first], first['input'])}."
