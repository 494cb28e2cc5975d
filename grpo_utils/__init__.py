"""Rewards, sandbox, evaluation and training for the GRPO notebooks.

`extractors`, `sandbox`, `rewards` and `statistics` do not import torch, so that any trainer can use them.
"""

import os

# torch's OpenMP threads spin while they wait for each other. When another program needs one of the cores, they
# spin away the very time slice that the other thread is waiting for: on 2 cores with one of them busy, a
# generation step took 7.6 s instead of 0.24 s. A short spin costs nothing on an idle machine and 0.48 s on a
# busy one (`python benchmarks/generation.py`). It has to be set before torch is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
