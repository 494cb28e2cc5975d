"""A recipe -> the policy: model and tokenizer, adapters swapped in place, batched generation.

`loading` has the first two, `decoding` the third, and `cpu` what makes them fast without a GPU; together they are the
`Engine` that `vllm` is with vLLM. `identity` tells one policy from another.
"""

from .cpu import round_once
from .decoding import ChatOrText, Engine, Sampled, generate_completions, prompt_ids
from .identity import MADE_WITH, base_fingerprint, identify_adapter, identify_base, update_norm
from .loading import (
    EMBEDDED,
    ModelError,
    Policy,
    load_model_config,
    load_policy,
    load_tokenizer,
    resolve_model,
    unreachable_model,
    with_adapter,
)
