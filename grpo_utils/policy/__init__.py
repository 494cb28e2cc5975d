"""A recipe -> the policy: model and tokenizer, adapters swapped in place, batched generation.

`loading` has the first two, `decoding` the third, and `cpu` what makes them fast without a GPU. The embedded model and
a hub id or local folder go through the same call. It does not train (see `training`) and does not score (see
`evaluation`).
"""

from .decoding import ChatOrText, Sampled, generate, prompt_ids
from .loading import (
    EMBEDDED,
    ModelError,
    Policy,
    adapted,
    load,
    load_config,
    load_tokenizer,
    resolve,
    unreachable,
)

__all__ = [
    "EMBEDDED",
    "ChatOrText",
    "ModelError",
    "Policy",
    "Sampled",
    "adapted",
    "generate",
    "load",
    "load_config",
    "load_tokenizer",
    "prompt_ids",
    "resolve",
    "unreachable",
]
