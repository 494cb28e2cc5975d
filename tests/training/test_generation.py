"""The decoupled pattern: a server that generates and a trainer that learns, joined by an adapter on disk."""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from trl.trainer.grpo_trainer import GRPOTrainer

from grpo_utils import evaluation, policy, runs, tasks, training
from grpo_utils.policy.batching import Batch
from grpo_utils.sandbox import Sandbox

STAND_IN = Path(__file__).parents[1] / "policy" / "vllm_stand_in.py"
# Answers /health and dies at the first request that matters; its child stands for vLLM's engine.
DYING = """
import os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
child = subprocess.Popen(["sleep", "600"])
print("child", child.pid, flush=True)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        os._exit(7)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
no_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="the environment cpu-vllm.lock has it")


def is_alive(process: int) -> bool:
    """Whether it runs; one that has ended may still wait for its parent to read its exit code."""
    state = Path(f"/proc/{process}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def ends(process: int) -> bool:
    """Whether it has ended, or does so soon: a killed process lives on until it is its turn on a busy machine."""
    limit = time.monotonic() + 20
    while is_alive(process) and time.monotonic() < limit:
        time.sleep(0.05)
    return not is_alive(process)


def load(name: str, model: Path, **settings: Any) -> runs.Recipe:
    """Two steps of eight short completions with a small random model, by SGD in float32: see test_distributed."""
    overrides = {"name": name, "model": {"name": str(model), "dtype": "float32"}, "warm_start": None}
    overrides |= {"rewards": {"overlong": 1.0}, "prompt.shots": 0, "evaluation.samples.validation": {0: 1}}
    overrides |= {"evaluation.samples.train": {0: 1}}
    overrides |= {"lora.layers_to_transform": None, "evaluation.samples.test": {0: 1}, "grpo.num_generations": 4}
    overrides |= {"grpo.per_device_train_batch_size": 8, "grpo.temperature": 1.0, "grpo.max_completion_length": 24}
    overrides |= {"grpo.optim": "sgd", "grpo.learning_rate": 0.05, "grpo.max_steps": 3}
    overrides |= {f"grpo.{key}": value for key, value in settings.items()}
    return runs.load_recipe("smoke-code", overrides)


def test_a_server_and_a_trainer_learn_what_one_process_learns(tiny_model, monkeypatch):
    """With the same seeds both write the same completions, as long as the server has the weights of this very step."""
    monkeypatch.setattr(training.grpo, "is_decoupled", lambda recipe: recipe.grpo.get("use_vllm", False))
    monkeypatch.setattr(
        training.generation,
        "server_command",
        lambda recipe, port: [sys.executable, str(STAND_IN), recipe.model.name, str(port)],
    )
    logs, weights = [], []
    for recipe in (load("one", tiny_model), load("two", tiny_model, use_vllm=True, vllm_mode="server")):
        run = runs.start_run(recipe)
        training.train(recipe, run)
        logs.append([entry for entry in runs.read_log(run / "training_log.jsonl") if "reward" in entry])
        weights.append(load_file(runs.checkpoints(run)[-1] / "adapter_model.safetensors"))
    for coupled, decoupled in zip(*logs, strict=True):
        for key in ("step", "reward", "completions/mean_length", "loss", "grad_norm"):
            assert decoupled[key] == pytest.approx(coupled[key], rel=1e-3, abs=1e-5), key
        for end in ("min", "max"):  # server and trainer give every token the same probability
            assert decoupled[f"sampling/importance_sampling_ratio/{end}"] == pytest.approx(1.0, abs=1e-3)
    assert logs[0][0]["grad_norm"] > 0.0, "all completions are equally good: the comparison shows nothing"
    for name, tensor in weights[0].items():
        assert (tensor - weights[1][name]).norm() <= 1e-3 * tensor.norm(), name


@no_vllm
def test_vllm_serves_the_weights_of_every_step():
    """Its engine computes in its own order, so ratios are not exactly 1; with old weights they would be far from it."""
    settings: Any = {"grpo.use_vllm": True, "grpo.vllm_mode": "server", "grpo.learning_rate": 3e-3}
    recipe = runs.load_recipe("smoke-code", {"grpo.max_steps": 3, **settings})
    run = runs.start_run(recipe)
    training.train(recipe, run)
    entries = [entry for entry in runs.read_log(run / "training_log.jsonl") if "reward" in entry]
    assert len(entries) == 3
    for entry in entries:
        assert entry["sampling/sampling_logp_difference/mean"] < 0.05, entry


def test_cpu_vllm_is_cpu_code_with_a_server():
    """So that a difference between their curves can only come from who generates."""
    decoupled = runs.load_recipe("cpu-vllm")
    server = {f"grpo.{key}": value for key, value in decoupled.grpo.items() if "vllm" in key}
    assert decoupled == runs.load_recipe("cpu-code", {"name": "cpu-vllm", **server})


def test_a_recipe_for_a_server_without_vllm_names_its_lock(monkeypatch):
    recipe = runs.load_recipe("cpu-vllm")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(runs.RunError, match=r"not installed.*requirements/cpu-vllm\.lock"):
        training.is_decoupled(recipe)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # there it is TRL that talks to the server
    assert not training.is_decoupled(recipe)


def test_several_trainers_with_a_server_each_are_refused():
    with pytest.raises(runs.RunError, match="one process: remove its launcher"):
        training.is_decoupled(runs.load_recipe("cpu-vllm", {"launcher": "ddp"}))


def test_only_a_recipe_that_asks_for_a_server_gets_one():
    assert not training.is_decoupled(runs.load_recipe("cpu-code"))
    assert not training.is_decoupled(runs.load_recipe("llama3-8b-mbpp-a100"))


def test_a_server_that_dies_is_one_sentence_and_leaves_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(
        training.generation, "server_command", lambda recipe, port: [sys.executable, "-c", DYING, str(port)]
    )
    log = tmp_path / "vllm.log"
    trainer: Any = SimpleNamespace()
    with training.VllmServer(runs.load_recipe("cpu-vllm"), log, trainer) as server:
        assert trainer.vllm_generation is server
        with pytest.raises(runs.RunError, match=rf"ended with exit code 7: the last lines of {log} say why\.$"):
            server._post("/v1/completions")
    assert ends(int(log.read_text().split()[1]))
    assert not server.adapters.exists()


def test_a_server_that_cannot_start_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(
        training.generation, "server_command", lambda recipe, port: [sys.executable, "-c", "raise SystemExit(3)"]
    )
    trainer: Any = SimpleNamespace()
    server = training.VllmServer(runs.load_recipe("cpu-vllm"), tmp_path / "vllm.log", trainer)
    with pytest.raises(runs.RunError, match="ended with exit code 3"):
        server.__enter__()
    assert vars(trainer) == {}


def test_a_server_ends_with_a_trainer_that_is_killed(tmp_path):
    """The killed one has no chance to say goodbye: the kernel does."""
    trainer = f"""
import os, sys
from pathlib import Path
from types import SimpleNamespace
from grpo_utils import runs
from grpo_utils.training import generation
generation.server_command = lambda recipe, port: [sys.executable, "-c", {DYING!r}, str(port)]
recipe, log = runs.load_recipe("cpu-vllm"), Path({str(tmp_path / "vllm.log")!r})
with generation.VllmServer(recipe, log, SimpleNamespace()) as server:
    print(server.process.pid, flush=True)
    os.kill(os.getpid(), 9)
"""
    killed = subprocess.run([sys.executable, "-c", trainer], capture_output=True, text=True, timeout=1200, check=False)
    assert killed.returncode == -9, killed.stderr
    limit = time.monotonic() + 60
    while is_alive(int(killed.stdout)):
        assert time.monotonic() < limit
        time.sleep(0.05)
    os.killpg(int(killed.stdout), 9)  # its child, which stands for the engine: vLLM's own ends with the server


# ---------------------------------------------------------------------------------------------------------- sampling

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
def test_what_leaves_one_token_makes_training_and_evaluation_greedy(given, tiny_model, tmp_path, sandbox):
    recipe = load("one", tiny_model, **given)
    trainer = trainer_of(recipe, tmp_path)
    chats = [row["prompt"] for row in trainer.train_dataset.select(range(2))] * 2  # type: ignore[union-attr]
    sampled = training.coupled(chats, trainer)["completion_ids"]
    current = policy.Policy(trainer.model, trainer.processing_class)
    settings: Any = {"temperature": 1.0, "max_new_tokens": 24, "batch_size": 4}
    greedy = [one.ids for one in policy.generate_completions(current, chats, [None] * 4, **settings)]
    assert (sampled == greedy) == bool(given)
    assert all(len(set(texts)) == 1 for texts in evaluated(recipe, trainer, sandbox)) == bool(given)


def test_a_repetition_penalty_holds_in_training_and_evaluation(tiny_model, tmp_path, sandbox):
    recipe = load("one", tiny_model, repetition_penalty=1e6)
    trainer = trainer_of(recipe, tmp_path)
    chats = [row["prompt"] for row in trainer.train_dataset.select(range(4))]  # type: ignore[union-attr]
    written = training.coupled(chats, trainer)
    for prompt, ids in zip(written["prompt_ids"] or [], written["completion_ids"] or [], strict=True):
        assert len({*prompt, *ids}) == len(set(prompt)) + len(ids)
    assert evaluated(recipe, trainer, sandbox) != evaluated(load("one", tiny_model), trainer, sandbox)


@pytest.mark.parametrize("template", [None, {"enable_thinking": False}])
def test_training_evaluation_and_trl_ask_with_the_same_prompts(template, tiny_model, tmp_path, sandbox, monkeypatch):
    recipe = load("one", tiny_model, chat_template_kwargs=template)
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


def test_a_record_with_other_sampling_is_made_again(tiny_model):
    plain, neutral, cut = (load("one", tiny_model, **given) for given in ({}, {"top_p": 1.0}, {"top_p": 0.9}))
    headers = [evaluation.record_header(recipe, [], None) for recipe in (plain, neutral, cut)]
    assert headers[0] == headers[1]
    assert headers[0]["sampling"] == {}
    assert headers[2]["sampling"] == {"top_p": 0.9}


def test_the_server_is_asked_with_the_recipes_sampling(tiny_model, tmp_path, monkeypatch):
    given: Any = {"top_k": 20, "top_p": 0.9, "min_p": 0.05, "generation_kwargs": {"repetition_penalty": 1.1}}
    recipe = load("one", tiny_model, **given)
    trainer: Any = SimpleNamespace(args=training.grpo_config(recipe, tmp_path))
    server, sent = training.VllmServer(recipe, tmp_path / "log", trainer), []
    server.adapter = "step-0"
    monkeypatch.setattr(server, "_post", lambda path, **body: sent.append(body) or '{"choices": []}')
    server._complete([1, 2], 2, 0)
    assert {key: sent[0][key] for key in ("top_k", "top_p", "min_p", "repetition_penalty")} == {
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
    }


def test_the_server_gets_the_policys_adapter_alone(tiny_model, tmp_path, monkeypatch):
    """Where there is a warm start and a KL divergence, the model holds a second one: its reference."""
    config = LoraConfig(r=2, target_modules=["q_proj"])
    model: Any = get_peft_model(policy.load_policy(load("one", tiny_model)).model, config)
    model.add_adapter("ref", config)
    accelerator = SimpleNamespace(unwrap_model=lambda model: model)
    trainer: Any = SimpleNamespace(model=model, accelerator=accelerator, state=SimpleNamespace(global_step=3))
    server = training.VllmServer(load("one", tiny_model), tmp_path / "log", trainer)
    server.adapters, sent = tmp_path / "adapters", []
    monkeypatch.setattr(server, "_post", lambda path, **body: sent.append(body["lora_name"]))
    server.sync_weights()
    assert sent == ["step-3"]
    assert {path.name for path in (server.adapters / "step-3").iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    }


@pytest.mark.parametrize("ends", [None, 7, [7, 8]])
def test_a_completion_ends_where_trl_says_that_it_ends(ends, tiny_model, tmp_path, monkeypatch):
    load_model = policy.load_policy

    def load_with_ends(recipe: Any) -> policy.Policy:
        base = load_model(recipe)
        base.model.generation_config.eos_token_id = ends
        return base

    monkeypatch.setattr(policy, "load_policy", load_with_ends)
    trainer: Any = trainer_of(load("one", tiny_model), tmp_path)
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
def test_what_cannot_be_honoured_is_refused_by_name(given, message, tiny_model):
    with pytest.raises(runs.RecipeError, match=message):
        load("one", tiny_model, **given)
