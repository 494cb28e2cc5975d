"""Generation in training: what a recipe says of sampling holds there as in evaluation, and so does the prompt."""

from pathlib import Path
from typing import Any

import pytest
from trl.trainer.grpo_trainer import GRPOTrainer

from grpo_utils import evaluation, policy, runs, tasks, training
from grpo_utils.policy.batching import Batch
from grpo_utils.sandbox import Sandbox

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:"
    "{% if enable_thinking is defined and not enable_thinking %} <think></think>{% endif %}{% endif %}"
)


def trainer_of(recipe: runs.Recipe, run: Path) -> GRPOTrainer:
    base = policy.load_policy(recipe)
    base.tokenizer.chat_template = TEMPLATE
    return GRPOTrainer(
        model=base.model,
        processing_class=base.tokenizer,
        args=training.grpo_config(recipe, run),
        train_dataset=training.training_set(recipe, run),
        reward_funcs=[lambda completions, **columns: [0.0] * len(completions)],  # type: ignore[arg-type]
        rollout_func=training.coupled,  # type: ignore[arg-type]
    )


def evaluated(recipe: runs.Recipe, trainer: GRPOTrainer, sandbox: Sandbox) -> list[list[str]]:
    """The greedy text and two sampled ones of two tasks, as `evaluation` gets them of the trainer's model."""
    current = policy.Policy(trainer.model, trainer.processing_class)
    batch = tasks.load_split(recipe, "validation")[:2]
    records = evaluation.evaluate_policy(current, recipe, batch, [], 2, sandbox, "")
    return [[one["text"] for one in record["completions"]] for record in records]


@pytest.mark.parametrize(
    "given", [{}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"generation_kwargs": {"top_k": 1}}]
)
def test_what_leaves_one_token_makes_training_and_evaluation_greedy(given, tiny_recipe, tmp_path, sandbox):
    recipe = tiny_recipe("one", **given)
    trainer = trainer_of(recipe, tmp_path)
    chats = [row["prompt"] for row in trainer.train_dataset.select(range(2))] * 2  # type: ignore[union-attr]
    sampled = training.coupled(chats, trainer)["completion_ids"]
    current = policy.Policy(trainer.model, trainer.processing_class)
    settings: Any = {"temperature": 1.0, "max_new_tokens": 24, "batch_size": 4}
    greedy = [one.ids for one in policy.generate_completions(current, chats, [None] * 4, **settings)]
    assert (sampled == greedy) == bool(given)
    assert all(len(set(texts)) == 1 for texts in evaluated(recipe, trainer, sandbox)) == bool(given)


def test_a_repetition_penalty_holds_in_training_and_evaluation(tiny_recipe, tmp_path, sandbox):
    recipe = tiny_recipe("one", repetition_penalty=1e6)
    trainer = trainer_of(recipe, tmp_path)
    chats = [row["prompt"] for row in trainer.train_dataset.select(range(4))]  # type: ignore[union-attr]
    written = training.coupled(chats, trainer)
    for prompt, ids in zip(written["prompt_ids"] or [], written["completion_ids"] or [], strict=True):
        assert len({*prompt, *ids}) == len(set(prompt)) + len(ids)
    assert evaluated(recipe, trainer, sandbox) != evaluated(tiny_recipe("one"), trainer, sandbox)


@pytest.mark.parametrize("template", [None, {"enable_thinking": False}])
def test_training_evaluation_and_trl_ask_with_the_same_prompts(template, tiny_recipe, tmp_path, sandbox, monkeypatch):
    recipe = tiny_recipe("one", chat_template_kwargs=template)
    trainer: Any = trainer_of(recipe, tmp_path)
    task = tasks.load_split(recipe, "train")[0]
    chat = tasks.prompt_messages(task, recipe.prompt, [])
    ids, _, _ = trainer._tokenize_prompts([chat])
    assert trainer.processing_class.decode(ids[0]).endswith("<think></think>") == bool(template)
    asked = []

    def write(self: Batch, order: list[int]) -> list[tuple[int, list[int]]]:
        asked.append([self.ids[i] for i in order])
        return [(i, [0]) for i in order]

    monkeypatch.setattr(Batch, "write", lambda self, order: iter(write(self, order)))
    assert training.coupled([chat], trainer)["prompt_ids"] == ids
    current = policy.Policy(trainer.model, trainer.processing_class)
    evaluation.evaluate_policy(current, recipe, [task], [], 0, sandbox, "")
    assert asked == [ids, ids]


def test_a_warm_start_asks_with_the_same_prompts_too(tiny_model, tmp_path, monkeypatch):
    seen = []

    class Stop(Exception):
        pass

    def stop(trainer: Any) -> None:
        seen.append(trainer.processing_class.decode(trainer.train_dataset[0]["input_ids"]))
        raise Stop

    monkeypatch.setattr(training.grpo.SFTTrainer, "train", stop)
    overrides: Any = {
        "warm_start": {"max_steps": 1, "per_device_train_batch_size": 1},
        "lora.layers_to_transform": None,
    }
    overrides |= {"model": {"name": str(tiny_model), "dtype": "float32"}}
    overrides["grpo.chat_template_kwargs"] = {"greeting": "ahoy"}
    tokenizer = policy.load_tokenizer(runs.load_recipe("smoke-code", overrides).model)
    tokenizer.chat_template = "{{ greeting }}" + TEMPLATE
    monkeypatch.setattr(policy.loading, "load_tokenizer", lambda model: tokenizer)
    recipe = runs.load_recipe("smoke-code", overrides)
    with pytest.raises(Stop):
        training.warm_start(recipe, runs.start_run(recipe))
    assert seen[0].startswith("ahoy")
    monkeypatch.setattr(tasks.CodeTask, "reference_answer", lambda self, prompt: None)
    with pytest.raises(tasks.DataError, match="No training task has a reference to imitate: set `warm_start` to null"):
        training.warm_start(recipe, runs.start_run(recipe))


def test_a_record_with_other_sampling_is_made_again(tiny_recipe):
    plain, neutral, cut = (tiny_recipe("one", **given) for given in ({}, {"top_p": 1.0}, {"top_p": 0.9}))
    headers = [evaluation.record_header(recipe, [], None) for recipe in (plain, neutral, cut)]
    assert headers[0] == headers[1]
    assert headers[0]["sampling"] == {}
    assert headers[2]["sampling"] == {"top_p": 0.9}


@pytest.mark.parametrize("ends", [None, 7, [7, 8]])
def test_a_completion_ends_where_trl_says_that_it_ends(ends, tiny_recipe, tmp_path, monkeypatch):
    load_model = policy.load_policy

    def load_with_ends(recipe: Any) -> policy.Policy:
        base = load_model(recipe)
        base.model.generation_config.eos_token_id = ends
        return base

    monkeypatch.setattr(policy, "load_policy", load_with_ends)
    trainer: Any = trainer_of(tiny_recipe("one"), tmp_path)
    current = policy.Policy(trainer.model, trainer.processing_class)
    assert set(policy.decoding._end_ids(current)) == set(trainer.eos_token_ids)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"top_p": 1.5}, r"grpo\.top_p is wrong: input should be less than or equal to 1, not 1\.5"),
        ({"top_k": -1}, r"grpo\.top_k is wrong"),
        ({"min_p": "x"}, r"grpo\.min_p is wrong"),
        ({"repetition_penalty": 0.0}, r"grpo\.repetition_penalty is wrong"),
        ({"chat_template_kwargs": "no"}, r"grpo\.chat_template_kwargs is wrong"),
        ({"chat_template_kwargs": {"tokenize": False}}, r"grpo\.chat_template_kwargs\.tokenize follows from the chat"),
        ({"generation_kwargs": {"num_beams": 4}}, r"generation_kwargs\.num_beams is not honoured everywhere: .* top_k"),
        ({"generation_kwargs": "top_k"}, r"grpo\.generation_kwargs must be keys and values"),
        ({"vllm_structured_outputs_regex": "a*"}, r"vllm_structured_outputs_regex is not honoured in evaluation"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(given, message, tiny_recipe):
    with pytest.raises(runs.RecipeError, match=message):
        tiny_recipe("one", **given)
