"""Runs code that a model wrote against tests, and says which of them it really passes.

>>> from grpo_utils.sandbox import Sandbox
>>> with Sandbox(workers=1) as sandbox:
...     verdict = sandbox.check("def add(a, b): return a + b", ["assert add(1, 2) == 3", "assert add(2, 2) == 5"])
>>> verdict.status, verdict.passed, verdict.total
('failed', 1, 2)

The verdict is by value. Three processes share the work. The trainer (`pool`, `worker`) sends checks and reads
verdicts. A judge per core (`judge`) parses the tests, sends only the candidate's own calls to a confined process
(`jail`), and compares what comes back; its time and memory are limited, and what a test changes stays with the check.
The process that runs the candidate never holds an expected value: nothing it can print, patch, exit or write makes a
wrong answer right. Objects that are no plain data stay with the candidate, and the tests get stand-ins for them
(`judge.remote`).
`python -m grpo_utils.sandbox` shows which of the kernel's layers of protection this host offers.

What it does not do: tell whether a program that returns the right values computes them, or has learned the asserts
that its prompt showed by heart. Keep some asserts hidden and report both. Where two objects of the candidate's
classes are compared, its own code gives the answer; the verdict says so (`decided_by_candidate`). A candidate can see
with `stat` which files this host has, and how large they are, but not what is in them.

Linux on x86-64 or aarch64 only; the standard library only; nothing here imports torch.
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
