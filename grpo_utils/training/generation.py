"""Where a step's completions come from: the trainer's own model, or a vLLM server beside it.

`coupled` and `VllmServer` both give TRL's trainer its `rollout_func`. The server is for machines without a GPU: the
decoupled pattern of large runs, in which one program generates and another one learns, small enough to read. TRL's own
client hands the weights over by NCCL, which only GPUs have; here they go through the disk, as a LoRA adapter.
"""

import importlib.util
import itertools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import httpx
import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from grpo_utils import policy, runs
from grpo_utils.policy import vllm
from grpo_utils.runs import Recipe, RunError
from grpo_utils.tasks import Message

Rollouts = dict[str, list[Any] | None]
HOST = "127.0.0.1"
START_SECONDS, REPLY_SECONDS = 600.0, 1800.0
# Linux sends the server SIGTERM (15) when the trainer has been killed, and execv keeps that (1, PR_SET_PDEATHSIG)
WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"
SETTINGS = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # server and trainer use the same cores, one after the other
    "VLLM_HOST_IP": HOST,  # for what its own processes say to each other
    "VLLM_NO_USAGE_STATS": "1",  # it would report to its makers
}


def coupled(chats: list[list[Message]], trainer: GRPOTrainer) -> Rollouts:
    """Generates a step's completions for TRL (its `rollout_func`) with `policy.generate_completions`.

    On a CPU this is faster than TRL's own call of transformers, because what all prompts begin with is computed once.
    It returns one list of token ids per chat, and no `logprobs`: TRL computes them itself.
    """
    config: Any = trainer.args
    tokenizer = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    sampling = runs.sampling_of(vars(config))
    model.eval()
    sampled = policy.generate_completions(
        policy.Policy(model, tokenizer),
        chats,
        seeds=_seeds(trainer, len(chats)),
        temperature=config.temperature,
        max_new_tokens=config.max_completion_length,
        batch_size=len(chats),
        sampling=sampling,
    )
    model.train()
    return {
        "prompt_ids": policy.prompt_ids(tokenizer, chats, sampling.chat_template_kwargs),
        "completion_ids": [one.ids for one in sampled],
        "logprobs": None,
    }


def _seeds(trainer: Any, number: int) -> list[int]:
    """A seed for every completion of a step, which may have several generations: from run, step and place in it."""
    step = trainer.state.global_step
    last, before = getattr(trainer, "seeded", (step, 0))  # how many completions of a step, in all processes, have one
    before = before if last == step else 0
    trainer.seeded = step, before + trainer.accelerator.num_processes * number
    first = (trainer.args.seed * 1_000_003 + step) * 10_007 + before
    first += trainer.accelerator.process_index * number
    return list(range(first, first + number))


def is_decoupled(recipe: Recipe) -> bool:
    """Whether a `VllmServer` shall generate: the recipe asks for vLLM's server, and there is no GPU.

    Raises:
        RunError: vLLM is not installed, or several processes are to train.
    """
    grpo = recipe.grpo
    if torch.cuda.is_available() or not grpo.get("use_vllm") or grpo.get("vllm_mode") != "server":
        return False
    if recipe.launcher:
        raise RunError(
            f"Recipe {recipe.name!r} generates beside the trainer, which is one process: remove its launcher."
        )
    if importlib.util.find_spec("vllm") is None:
        raise RunError(
            f"Recipe {recipe.name!r} generates with vLLM's CPU build, which is not installed: make an environment from "
            "requirements/cpu-vllm.lock, or set grpo.use_vllm to false."
        )
    return True


class VllmServer:
    """A vLLM server for one training: it starts with the `with` block and has ended when that is left.

    Args:
        recipe: its `model`, `lora` and `seed` say what to serve.
        log: file that takes what the server prints.
        trainer: built without vLLM; in the block it generates here.

    Raises:
        RunError: on entering the block, and later from each call, when the server has ended or does not answer.
    """

    def __init__(self, recipe: Recipe, log: Path, trainer: GRPOTrainer) -> None:
        self.log = log
        self.trainer: Any = trainer  # TRL does not declare what __enter__ sets
        with socket.create_server((HOST, 0)) as free:
            self.port: int = free.getsockname()[1]
        self.command = server_command(recipe, self.port)
        self.key = secrets.token_hex()  # other users of the machine can reach the port, and would load weights there
        self.client = httpx.Client(
            base_url=f"http://{HOST}:{self.port}",
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=REPLY_SECONDS,
            limits=httpx.Limits(max_keepalive_connections=0),  # between two steps the server would close them
            trust_env=False,  # no proxy stands before it
        )

    def __enter__(self) -> Self:
        # 1. the server, which ends with the trainer however that ends
        self.adapters = Path(tempfile.mkdtemp(prefix="grpo-adapters-"))
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", WITH_PARENT, *self.command],
                env=os.environ | SETTINGS | {"VLLM_API_KEY": self.key},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to the trainer, which saves its step first; and see __exit__
            )
        limit = time.monotonic() + START_SECONDS
        with ExitStack() as stack:
            stack.push(self)  # who is interrupted while waiting leaves no server behind either
            while not self._is_up():
                if self.process.poll() is not None or time.monotonic() > limit:
                    raise self._ended()
                time.sleep(0.2)
            stack.pop_all()
        # 2. what TRL sets where it makes its own client: it then calls `sync_weights` when a step has changed the
        # weights, its `rollout_func`, and corrects for the log-probabilities that this returns
        self.trainer.use_vllm, self.trainer.vllm_generation, self.trainer._last_loaded_step = True, self, -1
        self.trainer.rollout_func = self.rollouts
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        with suppress(ProcessLookupError):  # its engine is a process of its own, and outlives a server that crashed
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.client.close()
        shutil.rmtree(self.adapters)

    def sync_weights(self) -> None:
        """Writes the policy's adapter to disk and has the server load it."""
        # a new name each time: vLLM keeps the keys and values of prompts by the adapter's name
        self.adapter = f"step-{self.trainer.state.global_step}"
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        model.save_pretrained(self.adapters / self.adapter, selected_adapters=["default"])  # without the reference
        self._post("/v1/load_lora_adapter", lora_name=self.adapter, lora_path=str(self.adapters / self.adapter))
        for old in self.adapters.iterdir():
            if old.name != self.adapter:
                self._post("/v1/unload_lora_adapter", lora_name=old.name)
                shutil.rmtree(old)

    def rollouts(self, chats: list[list[Message]], trainer: GRPOTrainer) -> Rollouts:
        """Generates a step's completions for TRL, as `coupled` does.

        `logprobs` has one number per completion token: the natural logarithm of the probability, at the recipe's
        temperature, with which the server drew it. TRL compares it with the trainer's own, and weighs every completion
        with the ratio (`vllm_importance_sampling_correction`).
        """
        template = runs.sampling_of(vars(trainer.args)).chat_template_kwargs
        ids = policy.prompt_ids(trainer.processing_class, chats, template)
        seeds = _seeds(trainer, len(chats))
        groups = [list(group) for _, group in itertools.groupby(range(len(ids)), key=ids.__getitem__)]
        with ThreadPoolExecutor(len(groups)) as pool:  # all at once: the server forms its own batches
            replies = list(pool.map(lambda group: self._complete(ids[group[0]], len(group), seeds[group[0]]), groups))
        choices = list(itertools.chain.from_iterable(replies))
        return {
            "prompt_ids": ids,
            "completion_ids": [choice["token_ids"] for choice in choices],
            "logprobs": [choice["logprobs"]["token_logprobs"] for choice in choices],
        }

    def _complete(self, prompt: Sequence[int], number: int, seed: int) -> list[dict[str, Any]]:
        """Completions of one prompt; vLLM gives the i-th the seed `seed + i`."""
        config = self.trainer.args
        reply = self._post(
            "/v1/completions",
            model=self.adapter,
            prompt=prompt,
            n=number,
            seed=seed,
            temperature=config.temperature,
            max_tokens=config.max_completion_length,
            **vllm.arguments(runs.sampling_of(vars(config))),
            logprobs=0,  # of the tokens drawn, without the likeliest ones
            return_token_ids=True,
        )
        return json.loads(reply)["choices"]

    def _is_up(self) -> bool:
        with suppress(httpx.TransportError):
            return self.client.get("/health").is_success
        return False

    def _post(self, path: str, **body: Any) -> str:
        try:
            reply = self.client.post(path, json=body)
        except httpx.TransportError as error:
            raise self._ended() from error
        if not reply.is_success:
            raise RunError(f"The vLLM server refused {path}: {reply.text[:300]} (its log: {self.log}).")
        return reply.text

    def _ended(self) -> RunError:
        with suppress(subprocess.TimeoutExpired):  # a connection breaks a moment before the process has ended
            self.process.wait(1)
        code = self.process.poll()
        what = "does not answer" if code is None else f"ended with exit code {code}"
        return RunError(f"The vLLM server {what}: the last lines of {self.log} say why.")


def server_command(recipe: Recipe, port: int) -> list[str]:
    """Returns the command that serves the recipe's model on this machine alone."""
    model = policy.resolve_model(recipe.model.name)
    # what `vllm serve` runs; that itself looks for a package named vllm, and does not find it in the CPU build
    program = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command = [*program, "--host", HOST, "--port", str(port)]
    command += ["--dtype", recipe.model.dtype, "--seed", str(recipe.seed), "--max-num-seqs", "64"]
    command += ["--enable-lora", "--max-lora-rank", str(vllm.room_for(recipe.lora["r"]))]
    command += ["--logprobs-mode", "processed_logprobs"]  # those of the tempered distribution, as TRL computes them
    command += ["--block-size", "32"]  # a group shares the whole blocks of its prompt, which has fewer than 128 tokens
    # a prompt in one piece: vLLM 0.30 cannot take back the random number of a half-read one on a CPU
    length = str(recipe.grpo.get("vllm_max_model_length", 2048))
    return [*command, "--no-enable-chunked-prefill", "--max-model-len", length, "--max-num-batched-tokens", length]
