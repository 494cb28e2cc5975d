"""examples/decoupled: a server that generates and a trainer that learns, joined by an adapter on disk."""

import functools
import importlib.util
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import server as decoupled
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from grpo_utils import policy, runs, training

STAND_IN = Path(__file__).parent / "vllm_stand_in.py"
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


def test_a_server_and_a_trainer_learn_what_one_process_learns(tiny_recipe, monkeypatch):
    """With the same seeds both write the same completions, as long as the server has the weights of this very step."""
    monkeypatch.setattr(
        decoupled,
        "server_command",
        lambda recipe, port: [sys.executable, str(STAND_IN), recipe.model.name, str(port)],
    )
    logs, weights = [], []
    for recipe, beside in ((tiny_recipe("one"), nullcontext), (tiny_recipe("two"), None)):
        run = runs.start_run(recipe)
        serve = functools.partial(decoupled.VllmServer, recipe, run / "vllm.log")
        training.train(recipe, run, beside=beside or serve)
        logs.append([entry for entry in runs.read_log(run / "training_log.jsonl") if "reward" in entry])
        weights.append(load_file(runs.checkpoints(run)[-1] / "adapter_model.safetensors"))
    for coupled, apart in zip(*logs, strict=True):
        for key in ("step", "reward", "completions/mean_length", "loss", "grad_norm"):
            assert apart[key] == pytest.approx(coupled[key], rel=1e-3, abs=1e-5), key
        for end in ("min", "max"):  # server and trainer give every token the same probability
            assert apart[f"sampling/importance_sampling_ratio/{end}"] == pytest.approx(1.0, abs=1e-3)
    assert logs[0][0]["grad_norm"] > 0.0, "all completions are equally good: the comparison shows nothing"
    for name, tensor in weights[0].items():
        assert (tensor - weights[1][name]).norm() <= 1e-3 * tensor.norm(), name


@no_vllm
def test_vllm_serves_the_weights_of_every_step():
    """Its engine computes in its own order, so ratios are not exactly 1; with old weights they would be far from it."""
    recipe = runs.load_recipe("smoke-code", {"grpo.max_steps": 3, "grpo.learning_rate": 3e-3})
    run = runs.start_run(recipe)
    training.train(recipe, run, beside=functools.partial(decoupled.VllmServer, recipe, run / "vllm.log"))
    entries = [entry for entry in runs.read_log(run / "training_log.jsonl") if "reward" in entry]
    assert len(entries) == 3
    for entry in entries:
        assert entry["sampling/sampling_logp_difference/mean"] < 0.05, entry


def test_without_vllm_one_sentence_names_its_lock(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(runs.RunError, match=r"not installed.*requirements/cpu-vllm\.lock"):
        decoupled.need_vllm()


def test_a_server_that_dies_is_one_sentence_and_leaves_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(decoupled, "server_command", lambda recipe, port: [sys.executable, "-c", DYING, str(port)])
    log = tmp_path / "vllm.log"
    trainer: Any = SimpleNamespace()
    with decoupled.VllmServer(runs.load_recipe("cpu-code"), log, trainer) as server:
        assert trainer.vllm_generation is server
        with pytest.raises(runs.RunError, match=rf"ended with exit code 7: the last lines of {log} say why\.$"):
            server._post("/v1/completions")
    assert ends(int(log.read_text().split()[1]))
    assert not server.adapters.exists()


def test_a_server_that_cannot_start_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(decoupled, "server_command", lambda recipe, port: [sys.executable, "-c", "raise SystemExit(3)"])
    trainer: Any = SimpleNamespace()
    server = decoupled.VllmServer(runs.load_recipe("cpu-code"), tmp_path / "vllm.log", trainer)
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
sys.path.insert(0, {str(Path(decoupled.__file__).parent)!r})
import server as generation
generation.server_command = lambda recipe, port: [sys.executable, "-c", {DYING!r}, str(port)]
recipe, log = runs.load_recipe("cpu-code"), Path({str(tmp_path / "vllm.log")!r})
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


def test_the_server_is_asked_with_the_recipes_sampling(tiny_recipe, tmp_path, monkeypatch):
    given: Any = {"top_k": 20, "top_p": 0.9, "min_p": 0.05, "generation_kwargs": {"repetition_penalty": 1.1}}
    recipe = tiny_recipe("one", **given)
    trainer: Any = SimpleNamespace(args=training.grpo_config(recipe, tmp_path))
    server, sent = decoupled.VllmServer(recipe, tmp_path / "log", trainer), []
    server.adapter = "step-0"
    monkeypatch.setattr(server, "_post", lambda path, **body: sent.append(body) or '{"choices": []}')
    server._complete([1, 2], 2, 0)
    assert {key: sent[0][key] for key in ("top_k", "top_p", "min_p", "repetition_penalty")} == {
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
    }


def test_the_server_gets_the_policys_adapter_alone(tiny_recipe, tmp_path, monkeypatch):
    """Where there is a warm start and a KL divergence, the model holds a second one: its reference."""
    config = LoraConfig(r=2, target_modules=["q_proj"])
    model: Any = get_peft_model(policy.load_policy(tiny_recipe("one")).model, config)
    model.add_adapter("ref", config)
    accelerator = SimpleNamespace(unwrap_model=lambda model: model)
    trainer: Any = SimpleNamespace(model=model, accelerator=accelerator, state=SimpleNamespace(global_step=3))
    server = decoupled.VllmServer(tiny_recipe("one"), tmp_path / "log", trainer)
    server.adapters, sent = tmp_path / "adapters", []
    monkeypatch.setattr(server, "_post", lambda path, **body: sent.append(body["lora_name"]))
    server.sync_weights()
    assert sent == ["step-3"]
    assert {path.name for path in (server.adapters / "step-3").iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    }
