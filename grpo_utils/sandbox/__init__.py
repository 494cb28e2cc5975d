"""Runs code that a model wrote against tests, and says which of them it really passes.

>>> from grpo_utils.sandbox import Sandbox
>>> with Sandbox(workers=1) as sandbox:
...     verdict = sandbox.check("def add(a, b): return a + b", ["assert add(1, 2) == 3", "assert add(2, 2) == 5"])
>>> verdict.status, verdict.passed, verdict.total
('failed', 1, 2)

The verdict is by value: the process that runs the candidate never holds an expected value, and nothing that it can
print, patch, exit or write makes a wrong answer right. docs/sandbox.md tells of the three processes that share the work
(trainer: `pool`, `worker`; judge; `jail`), docs/judged.md what tests may look like. `python -m grpo_utils.sandbox`
shows which of the kernel's layers of protection this host offers.

Linux on x86-64 or aarch64 only; the standard library only. A candidate can see with `stat` which files this host has,
and how large they are, but not what is in them.
"""

from .judge.body import asserts_of
from .pool import Sandbox, SandboxUnavailable, capabilities, run_tests, shared
from .verdict import Check, Layer, Script, Status, Verdict

__all__ = [
    "Check",
    "Layer",
    "Sandbox",
    "SandboxUnavailable",
    "Script",
    "Status",
    "Verdict",
    "asserts_of",
    "capabilities",
    "run_tests",
    "shared",
]
