"""A vLLM server beside a trainer without a GPU: one program generates and another one learns.

This is the decoupled pattern of large runs, small enough to read. TRL's own client hands the weights over by NCCL,
which only GPUs have; here they go through the disk, as a LoRA adapter. `train.py` uses it, README.md says more.
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
from trl.trainer.grpo_trainer import GRPOTrainer

from grpo_utils import policy, runs
from grpo_utils.policy import vllm
from grpo_utils.runs import Recipe, RunError
from grpo_utils.tasks import Message
from grpo_utils.training.generation import Rollouts, completion_seeds

HOST = "127.0.0.1"
START_SECONDS, REPLY_SECONDS = 600.0, 1800.0
MODEL_LENGTH = 1024  # tokens of a prompt and its completion
# Linux sends the server SIGTERM (15) when the trainer has been killed, and execv keeps that (1, PR_SET_PDEATHSIG)
WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"
SETTINGS = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # server and trainer use the same cores, one after the other
    "VLLM_HOST_IP": HOST,  # for what its own processes say to each other
    "VLLM_NO_USAGE_STATS": "1",  # it would report to its makers
}
CORRECTION = {  # by importance sampling: server and trainer give a token slightly different probabilities
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",  # one weight for a completion, 0 where it is above clip_max
    "vllm_importance_sampling_clip_max": 3.0,
}


def need_vllm() -> None:
    """Raises RunError if vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise RunError("vLLM is not installed here: make an environment from requirements/cpu-vllm.lock (README.md).")


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
        for name, value in CORRECTION.items():
            setattr(self.trainer, name, value)
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
        seeds = completion_seeds(trainer, len(chats))
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
    length = str(MODEL_LENGTH)
    return [*command, "--no-enable-chunked-prefill", "--max-model-len", length, "--max-num-batched-tokens", length]
