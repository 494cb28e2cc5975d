"""Recipes: what ships is valid, and what is wrong is named with its nearest right spelling, before a run begins."""

import dataclasses

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from peft import LoraConfig
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.sft_config import SFTConfig

from grpo_utils import policy, rewards, runs, training
from grpo_utils.__main__ import app
from grpo_utils.runs import RecipeError, UserError, commands, core_yaml
from grpo_utils.tasks import DataError
from grpo_utils.training import memory

BLOCKS = {"grpo": GRPOConfig, "warm_start": SFTConfig, "lora": LoraConfig}
SECTIONS = {
    "model": runs.Model,
    "dataset": runs.Dataset,
    "prompt": runs.Prompt,
    "evaluation": runs.Evaluation,
    "teacher": runs.Teacher,
}
KEYS = [
    *runs.Recipe.model_fields,
    *(f"{block}.{field.name}" for block, target in BLOCKS.items() for field in dataclasses.fields(target)),
    *(f"{block}.{name}" for block, section in SECTIONS.items() for name in section.model_fields),
]
WORDS = ["", "no", "1e3", "steps", "cosine", "{", "{}", "a\0b", "/etc/passwd"]
NUMBERS = st.integers() | st.integers(-2, 9) | st.floats() | st.sampled_from([10**400, 2**40, 1e300, float("nan")])
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from(WORDS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(0, 3), inner),
    max_leaves=5,
)


def set_on_the_command_line(*texts: str) -> runs.Recipe:
    return runs.load_recipe(*commands.parameters_of("smoke-code", texts, None))


@pytest.mark.parametrize("name", runs.recipe_files())
def test_every_shipped_recipe_builds_what_the_trainer_needs(name, tmp_path):
    recipe = runs.load_recipe(name)
    training.check_arguments(recipe)
    config = training.grpo_config(recipe, tmp_path)
    assert config.max_steps == recipe.grpo["max_steps"]
    assert config.reward_weights == list(recipe.weights.values())
    assert LoraConfig(**recipe.lora).r == recipe.lora["r"]
    functions, _ = rewards.recipe_rewards(recipe)
    assert [function.__name__ for function in functions] == list(recipe.rewards)


@pytest.mark.parametrize("name", runs.recipe_files())
def test_the_resolved_recipe_reads_back_to_an_equal_one(name, tmp_path):
    recipe = runs.load_recipe(name, {"seed": 7})
    path = tmp_path / "resolved.yaml"
    path.write_text(recipe.to_yaml())
    assert runs.load_recipe(path) == recipe


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"promt.shots": 1}, r"Unknown key 'promt' in .*cpu-code.yaml \(did you mean 'prompt'\?\)"),
        ({"prompt.shot": 1}, r"Unknown key 'prompt.shot' in .* \(did you mean 'shots'\?\)"),
        ({"prompt.shots": -1}, r"Key 'prompt.shots' in .* is wrong: .*, not -1"),
        ({"seed": "x"}, r"Key 'seed' in .* is wrong"),
        ({"seed.x": 1}, r"Override 'seed.x' does not fit"),
        ({"rewards": {}}, r"Key 'rewards' in .* is wrong"),
        ({"name": "../elsewhere"}, r"Key 'name' in .* is wrong"),
        ({"dataset.limits": {"tset": 3}}, r"Key 'dataset.limits.tset"),
        ({"prompt.shots": 2}, r"evaluation.samples.validation lacks prompt.shots, the number 2"),
        ({"evaluation.samples.train": {}}, r"evaluation.samples.train must have prompt.shots, 0, and no other number"),
        (
            {"dataset.pass_rate": [0.1, 0.9], "evaluation.samples.train": {0: 7}},
            r"dataset.pass_rate needs evaluation.samples.train of at least 8 completions",
        ),
        ({"grpo.log_completions": False}, r"yaml: grpo.log_completions must stay true: the notebooks"),
        ({"grpo": {"max_steps": 1}}, r"yaml: grpo.num_generations is missing"),
        ({"grpo.max_steps": 1e2}, r"yaml: grpo.max_steps is wrong: .* a valid integer, not 100.0: write 100\.$"),
        ({"grpo.max_steps": -1}, r"grpo.max_steps is wrong: .* greater than 0, not -1"),
        ({"grpo.max_steps": True}, r"grpo.max_steps is wrong: .* a valid integer, not True"),
        ({"grpo.max_completion_length": 20.0}, r"grpo.max_completion_length is wrong: .* not 20.0: write 20\.$"),
        ({"grpo.max_completion_length": None}, r"grpo.max_completion_length is wrong: .* not None"),
        ({"grpo.temperature": "x"}, r"grpo.temperature is wrong: .* a valid number, not 'x'"),
        ({"grpo.temperature": 0}, r"grpo.temperature is wrong: .* greater than 0, not 0"),
        ({"grpo.num_generations": 0}, r"grpo.num_generations is wrong: .* greater than or equal to 2, not 0"),
        ({"lora.r": 0}, r"lora.r is wrong: .* greater than 0, not 0"),
        ({"lora.target_modules": "all"}, r"lora.target_modules is wrong: .* a valid list or 'all-linear', not 'all'"),
        ({"lora.target_modules": []}, r"lora.target_modules is wrong: list should have at least 1 item"),
        ({"seed": -1}, r"Key 'seed' in .* is wrong: .* greater than or equal to 0, not -1"),
        ({"seed": 2**32}, r"Key 'seed' in .* is wrong: .* less than"),
        ({"seed": True}, r"Key 'seed' in .* is wrong: .* a valid integer, not True"),
        ({"model.load_in_4bit": "yes"}, r"Key 'model.load_in_4bit' in .* a valid boolean, not 'yes'"),
        ({"prompt.shots": 1.0}, r"Key 'prompt.shots' in .* a valid integer, not 1.0: write 1\.$"),
        ({"rewards.tests": float("nan")}, r"Key 'rewards.tests' in .* a number must be finite, not nan"),
        ({"rewards.tests": "1.0"}, r"Key 'rewards.tests' in .* a valid number, not '1.0'"),
        ({"evaluation.temperature": float("inf")}, r"Key 'evaluation.temperature' in .* must be finite, not inf"),
        ({"grpo.lr_scheduler_kwargs": {"a": [1, -float("inf")]}}, r"'grpo.lr_scheduler_kwargs.a' in .* not -inf"),
        ({"lora.alpha_pattern": {"q": {1, 2}}}, r"'lora.alpha_pattern.q' in .* a value is a text, .* not \{1, 2\}"),
        ({"dataset.pass_rate": [0.9, 0.1]}, r"'dataset.pass_rate' in .* in order and from 0 to 1, not \[0.9, 0.1\]"),
        ({"dataset.timeout": 0}, r"Key 'dataset.timeout' in .* greater than 0, not 0"),
        ({"evaluation.samples.test": {0: 0}}, r"must sample the training prompt at least once"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_file(overrides, message):
    with pytest.raises(RecipeError, match=message):
        runs.load_recipe("cpu-code", overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"grpo.learning_rat": 1e-4}, r"'grpo.learning_rat'.*'learning_rate'"),
        ({"warm_start.max_step": 4}, r"'warm_start.max_step'.*'max_steps'"),
        ({"warm_start.seed": 4}, r"'warm_start.seed', which follows from its other blocks"),
        ({"lora.rank": 4}, r"'lora.rank'"),
        ({"lora.task_type": "CAUSAL_LM"}, r"'lora.task_type', which follows from its other blocks"),
        ({"rewards.test": 1.0}, r"'rewards.test'.*'tests'"),
        ({"grpo.seed": 1}, r"'grpo.seed', which follows from its other blocks"),
        ({"grpo.num_generations": 7}, r"grpo block .* does not fit together"),
        ({"grpo.learning_rate": "5e-4"}, r"'grpo.learning_rate' of recipe 'cpu-code' .* a valid number, not '5e-4'"),
        ({"grpo.learning_rate": 0.0}, r"'grpo.learning_rate' .* greater than 0, not 0.0"),
        ({"grpo.learning_rate": 10**400}, r"'grpo.learning_rate' .* a valid number, not 1000"),
        ({"grpo.beta": -0.1}, r"'grpo.beta' .* greater than or equal to 0, not -0.1"),
        ({"grpo.max_grad_norm": None}, r"'grpo.max_grad_norm' .* a valid number, not None"),
        ({"grpo.gradient_accumulation_steps": 0}, r"'grpo.gradient_accumulation_steps' .* greater than 0"),
        ({"grpo.save_steps": 0}, r"'grpo.save_steps' .* greater than 0"),
        ({"grpo.top_p": 1.5}, r"grpo.top_p is wrong: input should be less than or equal to 1, not 1.5"),
        ({"grpo.use_vllm": 1}, r"'grpo.use_vllm' .* a valid boolean, not 1"),
        ({"grpo.loss_type": "dapoo"}, r"'grpo.loss_type' .* 'grpo', 'dr_grpo', .* not 'dapoo'"),
        ({"grpo.lr_scheduler_type": "x"}, r"'grpo.lr_scheduler_type' .* 'linear', 'cosine', .* not 'x'"),
        ({"grpo.optim": 8}, r"'grpo.optim' .* 'adamw_torch', .* not 8"),
        ({"grpo.generation_kwargs": "x"}, r"grpo.generation_kwargs must be keys and values, not 'x'"),
        ({"grpo.save_strategy": "epoch"}, r"'grpo.save_strategy' .* 'steps', not 'epoch'"),
        ({"grpo.logging_steps": 100}, r"grpo block .* no step is logged: logging_steps \(100\)"),
        ({"grpo.lr_scheduler_type": "cosine_with_min_lr"}, r"grpo block .* One of min_lr or min_lr_rate should be set"),
        ({"warm_start.max_steps": 1e2}, r"'warm_start.max_steps' .* a valid integer, not 100.0: write 100\.$"),
        ({"warm_start.max_steps": 0}, r"'warm_start.max_steps' .* -1 or greater than 0, not 0"),
        ({"warm_start.per_device_train_batch_size": 0}, r"'warm_start.per_device_train_batch_size' .* greater than 0"),
        ({"warm_start.train_sampling_strategy": "x"}, r"'warm_start.train_sampling_strategy' .* 'group_by_length'"),
        ({"lora.lora_dropout": 1.0}, r"'lora.lora_dropout' .* less than 1, not 1.0"),
        ({"lora.lora_alpha": 32.5}, r"'lora.lora_alpha' .* a valid integer, not 32.5"),
        ({"lora.target_modules": ["q_proj", 3]}, r"lora.target_modules is wrong: .* a valid string"),
        ({"lora.layers_to_transform": ["x"]}, r"'lora.layers_to_transform' .* a valid integer, not \['x'\]"),
    ],
)
def test_an_argument_that_the_installed_versions_do_not_know_is_refused(overrides, message):
    with pytest.raises(RecipeError, match=message):
        training.check_arguments(runs.load_recipe("cpu-code", overrides))


def test_a_recipe_lies_with_the_untested_ones_if_it_needs_a_gpu_and_says_so():
    for name, path in runs.recipe_files().items():
        needs_a_gpu = runs.load_recipe(name).without_gpu is not None
        assert (path.parent.name == "untested") == needs_a_gpu, name
        assert path.read_text().startswith("# Never run on a GPU") == needs_a_gpu, name


@pytest.mark.parametrize("name", runs.recipe_files())
def test_the_trainer_gets_the_values_of_a_shipped_recipe_as_they_are_in_the_file(name, tmp_path):
    recipe, text = runs.load_recipe(name), yaml.safe_load(runs.recipe_files()[name].read_text())
    for block in ("grpo", "warm_start", "lora"):
        given_, got = text.get(block), getattr(recipe, block)
        assert given_ == got
        assert [(key, type(value)) for key, value in (given_ or {}).items()] == [
            (key, type(value)) for key, value in (got or {}).items()
        ]
    config = training.grpo_config(recipe, tmp_path)
    assert {key: getattr(config, key) for key in ("learning_rate", "beta", "max_steps") if key in text["grpo"]} == {
        key: text["grpo"][key] for key in ("learning_rate", "beta", "max_steps") if key in text["grpo"]
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("5e-4", 5e-4), ("1e3", 1e3), (".5", 0.5), ("5.", 5.0), ("5.0e-4", 5e-4), ("-1E+2", -100.0)],
        *[("12", 12), ("010", 10), ("0o10", 8), ("0x10", 16), ("-3", -3), ("'007'", "007"), ('"5e-4"', "5e-4")],
        *[
            ("on", "on"),
            ("no", "no"),
            ("Yes", "Yes"),
            ("1:30", "1:30"),
            ("1_000", "1_000"),
            ("2001-01-01", "2001-01-01"),
        ],
        *[("true", True), ("False", False), ("null", None), ("~", None), ("nan", "nan"), ("inf", "inf"), ("=", "=")],
    ],
)
def test_a_value_means_the_same_in_a_file_and_on_the_command_line(text, value, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(runs.load_recipe("smoke-code").to_yaml().replace("learning_rate: 0.0005", f"learning_rate: {text}"))
    for recipe in (runs.load_recipe(path), set_on_the_command_line(f"grpo.learning_rate={text}")):
        found = recipe.grpo["learning_rate"]
        assert (type(found), found) == (type(value), value)


def test_a_name_in_quotes_stays_the_text():
    assert set_on_the_command_line("name='007'").name == "007"


@settings(deadline=None)
@given(VALUES)
@example("5e-4")
@example("a\x85b \u2028")
@example("010")
@example("0o7")
@example({"no": "off", "1e3": "1:30"})
def test_what_is_dumped_is_read_back_by_this_and_by_other_readers(value):
    text = core_yaml.dump_yaml(value)
    assert repr(core_yaml.load_yaml(text)) == repr(value)
    assert repr(yaml.safe_load(text)) == repr(value)


@pytest.mark.parametrize(
    "text",
    ["seed: 1\nname: x\nseed: 2\n", "grpo:\n  beta: 0.0\n\n  beta: 0.1\n", "grpo: {a: 1, a: 1}", "a: {0: 1, 0x0: 2}"],
)
def test_a_key_that_is_there_twice_is_named_with_its_line(text, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=r"mine.yaml is not valid YAML: the key .* is there a second time on line \d"):
        runs.load_recipe(path)


def test_a_block_may_take_over_the_keys_of_another_one():
    text = "one: &one {a: 1, b: 2}\ntwo: {<<: *one, b: 3}\nthree: {<<: [{a: 4}, *one], '<<': 5}\n"
    expected = {"one": {"a": 1, "b": 2}, "two": {"a": 1, "b": 3}, "three": {"a": 4, "b": 2, "<<": 5}}
    assert core_yaml.load_yaml(text) == expected
    with pytest.raises(ValueError, match=r"the key 'b' is there a second time on line 2"):
        core_yaml.load_yaml("one: &one {a: 1, b: 2}\ntwo: {<<: *one, b: 3, b: 4}\n")


def test_a_recipe_that_contains_itself_is_refused():
    overrides: dict = {"grpo.generation_kwargs": {}}
    overrides["grpo.generation_kwargs"]["again"] = overrides["grpo.generation_kwargs"]
    with pytest.raises(RecipeError, match="a part of it contains itself"):
        runs.load_recipe("smoke-code", overrides)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=2))
@example({"grpo.num_generations": 0})
@example({"grpo.lr_scheduler_kwargs": {"x": None}})
@example({"grpo.deepspeed": "x"})
@example({"warm_start.fsdp": "\x08"})
@example({"launcher": "a\0b"})
def test_any_value_of_any_key_is_right_or_refused_in_one_line(overrides):
    try:
        recipe = runs.load_recipe("smoke-code", overrides)
        training.check_arguments(recipe)
        assert core_yaml.load_yaml(recipe.to_yaml())
    except UserError as error:
        sentence = str(error)
        assert "\n" not in sentence
        assert sentence.isprintable()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"dataset.limits": {"train": 1}}, r"takes 2 prompts, and the training split has 1 tasks: loosen .* `dataset`"),
        ({"grpo.gradient_accumulation_steps": 3}, r"takes 6 prompts, and the training split has 4 tasks"),
        ({"grpo.steps_per_generation": 3}, r"takes 6 prompts"),
        ({"grpo.generation_batch_size": 12}, r"takes 6 prompts"),
        ({"dataset.limits": {"validation": 0}}, r"No validation task of 'starter' is left"),
        ({"evaluation.samples.test.9": 1}, r"asks for 9 worked examples; starter has 8"),
        ({"dataset.name": "no-such"}, r"no data set 'no-such'"),
    ],
)
def test_too_few_tasks_are_told_before_the_first_notebook(overrides, message):
    recipe = runs.load_recipe("smoke-code", overrides)
    training.check_arguments(recipe)
    with pytest.raises(DataError, match=message):
        training.check_before_start(recipe)


def test_a_step_of_several_processes_needs_the_prompts_of_all(tmp_path, monkeypatch):
    launcher = tmp_path / "two.yaml"
    launcher.write_text("num_processes: 3\n")
    recipe = runs.load_recipe("smoke-code", {"launcher": str(launcher)})
    with pytest.raises(DataError, match=r"takes 6 prompts, and the training split has 4 tasks"):
        training.check_before_start(recipe)
    monkeypatch.setenv("LOCAL_RANK", "0")  # in one of the processes
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(DataError, match=r"takes 6 prompts"):
        training.training_set(recipe, tmp_path)


def test_processes_may_share_a_group():
    """Four processes of two completions are one group of eight, which one process alone could not have."""
    changes = {"grpo.per_device_train_batch_size": 2, "grpo.num_generations": 8}
    training.check_arguments(runs.load_recipe("smoke-code", {"launcher": "zero2", **changes}))
    with pytest.raises(RecipeError, match=r"generation_batch_size \(2\) must be divisible by num_generations \(8\)"):
        training.check_arguments(runs.load_recipe("smoke-code", changes))
    with pytest.raises(RecipeError, match=r"generation_batch_size \(8\) must be divisible by num_generations \(6\)"):
        training.check_arguments(
            runs.load_recipe("smoke-code", {"launcher": "zero2", **changes, "grpo.num_generations": 6})
        )


def test_a_filter_that_leaves_fewer_tasks_than_a_step_takes_is_told_before_training(tmp_path):
    settings = {"dataset.pass_rate": [0.4, 0.6], "evaluation.samples.train": {1: 8}}
    recipe = runs.load_recipe("smoke-code", settings)
    training.check_before_start(recipe)  # how many will pass is not known yet
    record = tmp_path / "evaluations" / "warm-start.train.1shot.json"
    record.parent.mkdir()
    greedy, solved = {"strict": True}, [{"strict": True}, {"strict": False}]  # the greedy one does not count
    batch = training.grpo.tasks.load_split(recipe, "train")
    rows = [
        {"task_id": one.task_id, "completions": [greedy, *(solved if i == 0 else solved[1:])]}
        for i, one in enumerate(batch)
    ]
    runs.write_file(record, training.grpo.json.dumps({"tasks": rows}))
    with pytest.raises(DataError, match=r"takes 2 prompts, and the training split has 1 tasks"):
        training.practice_tasks(recipe, tmp_path)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"lora.target_modules": ["qproj"]}, r"lora block .* Target modules \{'qproj'\} not found in the base model"),
        ({"lora.layers_to_transform": [99]}, r"lora block .* not found in the base model"),
        ({"grpo.optim": "paged_adamw_8bit"}, r"grpo block .* install `bitsandbytes`"),
        ({"grpo.use_vllm": True}, r"grpo.use_vllm of recipe .* needs a GPU; on a CPU see examples/decoupled"),
    ],
)
def test_what_the_model_or_the_machine_lacks_is_told_before_the_first_notebook(overrides, message):
    with pytest.raises(UserError, match=message):
        training.check_before_start(runs.load_recipe("smoke-code", overrides))


def test_all_linear_matrices_are_named_in_one_word():
    every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    block = {"lora.layers_to_transform": None}
    recipes = [runs.load_recipe("smoke-code", block | {"lora.target_modules": one}) for one in ("all-linear", every)]
    one, other = (memory.count_parameters(policy.load_model_config(recipe.model), recipe.lora) for recipe in recipes)
    assert one == other


@pytest.mark.parametrize("text", ["grpo.learning_rate='5e-4'", "dataset.limits.train=1", "lora.target_modules=[qproj]"])
@pytest.mark.parametrize("command", ["reproduce", "train"])
def test_a_wrong_recipe_starts_nothing(command, text, tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_OUTPUTS_DIR", str(tmp_path / "outputs"))
    with pytest.raises(UserError, match=r"learning_rate|takes 2 prompts|Target modules"):
        app([command, "--recipe", "smoke-code", "--set", text], standalone_mode=False)
    assert not list(tmp_path.iterdir())


def test_the_estimate_of_memory_refuses_a_wrong_recipe_too():
    with pytest.raises(RecipeError, match=r"'grpo.optim'"):
        app(["memory", "--recipe", "smoke-code", "--set", "grpo.optim=8"], standalone_mode=False)


def test_an_unknown_recipe_files_the_nearest_one():
    with pytest.raises(RecipeError, match=r"'cpu-cod' \(did you mean 'cpu-code'\?\)"):
        runs.load_recipe("cpu-cod")


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2", "just words", ""])
def test_a_file_that_is_no_recipe_is_refused_by_name(text, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=r"mine\.yaml"):
        runs.load_recipe(path)


def test_a_missing_key_is_named(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(runs.load_recipe("cpu-code").to_yaml().replace("lora:", "lara:"))
    with pytest.raises(RecipeError, match=r"'lora' is missing"):
        runs.load_recipe(path)


@pytest.mark.parametrize(("float32", "bfloat16", "chosen"), [(1.9, 1.0, "bfloat16"), (1.0, 1.9, "float32")])
def test_auto_is_what_the_processor_is_faster_in_measured_once(float32, bfloat16, chosen, monkeypatch, tmp_path):
    measured = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        runs.machine,
        "_seconds_of_products",
        lambda: measured.append(1) or {"float32": float32, "bfloat16": bfloat16},
    )
    for _ in range(2):
        runs.faster_dtype.cache_clear()  # as in another process
        recipe = runs.load_recipe("smoke-code", {"model.dtype": "auto"})
        assert recipe.model.dtype == chosen
        assert f"dtype: {chosen}" in recipe.to_yaml()
    assert measured == [1]
    (kept,) = (tmp_path / "grpo_utils").iterdir()
    kept.write_text("")  # a damaged file is measured again
    runs.faster_dtype.cache_clear()
    assert runs.faster_dtype() == kept.read_text() == chosen
    runs.faster_dtype.cache_clear()


def test_all_recipes_of_a_process_have_one_dtype_where_no_file_can_be_kept(monkeypatch, tmp_path):
    (tmp_path / "grpo_utils").touch()  # a file where the folder of the cache would be
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seconds = iter([{"float32": 1.9, "bfloat16": 1.0}, {"float32": 1.0, "bfloat16": 1.0}])
    monkeypatch.setattr(runs.machine, "_seconds_of_products", lambda: next(seconds))
    runs.faster_dtype.cache_clear()
    assert [runs.load_recipe("cpu-code").model.dtype for _ in range(2)] == ["bfloat16"] * 2
    runs.faster_dtype.cache_clear()
