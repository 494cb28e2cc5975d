"""What `VllmServer` uses of vLLM's server, with `policy.generate_completions` behind it: MODEL and PORT are given.

The weights really come from disk and the log-probabilities from a forward pass of its own, so a training with it shows
whether the trainer hands over the right adapter at the right time.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import torch

from grpo_utils import policy, runs

ADAPTERS: dict[str, Path] = {}


def complete(base: policy.Policy, ask: dict[str, Any]) -> dict[str, Any]:
    """The reply to `/v1/completions`."""
    prompt = base.tokenizer.decode(ask["prompt"])
    assert policy.prompt_ids(base.tokenizer, [prompt]) == [ask["prompt"]]
    seeds = range(ask["seed"], ask["seed"] + ask["n"])
    settings: Any = {"temperature": ask["temperature"], "max_new_tokens": ask["max_tokens"], "batch_size": ask["n"]}
    with policy.with_adapter(base, ADAPTERS[ask["model"]]) as tuned, torch.inference_mode():
        sampled = policy.generate_completions(tuned, [prompt] * ask["n"], list(seeds), **settings)
        choices = []
        for one in sampled:
            logits = tuned.model(torch.tensor([ask["prompt"] + one.ids])).logits[0, len(ask["prompt"]) - 1 : -1]
            logprobs = torch.log_softmax(logits.float() / ask["temperature"], dim=-1)
            drawn = logprobs.gather(1, torch.tensor(one.ids)[:, None])[:, 0]
            choices.append({"token_ids": one.ids, "logprobs": {"token_logprobs": drawn.tolist()}})
    return {"choices": choices}


def serve(base: policy.Policy, port: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(200 if self.path == "/health" else 404, "")

        def do_POST(self) -> None:
            ask = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/v1/load_lora_adapter":
                ADAPTERS[ask["lora_name"]] = Path(ask["lora_path"])
                self.reply(200, "loaded")
            elif self.path == "/v1/unload_lora_adapter":
                del ADAPTERS[ask["lora_name"]]
                self.reply(200, "unloaded")
            else:
                self.reply(200, json.dumps(complete(base, ask)))

        def reply(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

    HTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    recipe = runs.load_recipe("smoke-code", {"model": {"name": sys.argv[1], "dtype": "float32"}})
    serve(policy.load_policy(recipe), int(sys.argv[2]))
