"""Rewards, sandbox, evaluation and training for the GRPO notebooks.

`extractors`, `sandbox`, `rewards` and `statistics` do not import torch, so that any trainer can use them.
"""

import os

# torch's OpenMP threads spin while they wait for each other. When another program needs one of the cores, they spin
# away the very time slice that the other thread is waiting for: a short spin makes a decoding step 1.5 times as fast
# there; on an idle machine two runs disagree, 1.1 and 0.7 times (`python benchmarks/generation.py`). To be set before
# torch is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
