"""What a low learning rate teaches is seen by generation as by the trainer."""

import pytest
import torch

from grpo_utils import policy, runs, tasks, training
from grpo_utils.policy import cpu

SETTINGS = {
    "model.dtype": "bfloat16",
    "dataset.limits.train": 4,
    "prompt.shots": 0,
    "evaluation.samples.train": {0: 1},
    "evaluation.samples.validation": {0: 1},
    "evaluation.samples.test": {0: 1},
    "lora": {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj", "o_proj", "down_proj"]},
    "lora.layers_to_transform": list(range(15, 30)),
    "warm_start": {"max_steps": 8, "per_device_train_batch_size": 4, "learning_rate": 5e-5},
    "warm_start.lr_scheduler_type": "constant",
}


def test_generation_has_the_log_probabilities_that_a_low_learning_rate_gave_the_trainer(monkeypatch):
    recipe = runs.load_recipe("smoke-code", SETTINGS)
    trained = []
    monkeypatch.setattr(policy, "round_once", lambda model, do=policy.round_once: trained.append(model) or do(model))
    adapter = training.warm_start(recipe, runs.start_run(recipe))
    base = policy.load_policy(recipe)
    batch = tasks.load_split(recipe, "train")

    def score(model):
        """The mean log-probability of the reference answers' tokens."""
        found = []
        for task in batch:
            chat = tasks.prompt_messages(task, recipe.prompt, [])
            answer = {"role": "assistant", "content": task.reference_answer(recipe.prompt)}
            (asked,), (whole,) = (policy.prompt_ids(base.tokenizer, [one]) for one in (chat, [*chat, answer]))
            every = torch.log_softmax(model(input_ids=torch.tensor([whole])).logits[0].float(), -1)
            found += [every[i - 1, whole[i]] for i in range(len(asked), len(whole))]
        return float(torch.stack(found).mean())

    with torch.inference_mode():
        before, in_trainer = score(base.model), score(trained[0].eval())
        with policy.with_adapter(base, adapter) as current, cpu.packed_weights(current.model):
            generated = score(current.model)
    assert in_trainer - before > 0.01
    assert generated - before == pytest.approx(in_trainer - before, rel=0.15)
