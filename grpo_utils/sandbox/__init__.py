"""Runs code that a model wrote against tests, and says which of them it really passes.

>>> from grpo_utils.sandbox import Sandbox
>>> with Sandbox(workers=1) as sandbox:
...     verdict = sandbox.check("def add(a, b): return a + b", ["assert add(1, 2) == 3", "assert add(2, 2) == 5"])
>>> verdict.status, verdict.passed, verdict.total
('failed', 1, 2)

The verdict is by value. Tests are parsed on the trusted side (`planner`), only the candidate's own calls travel to a
confined process (`jail`), what they return comes back as plain data (`decoder`) and is compared here (`judge`). The
process that runs the candidate never holds an expected value: nothing it can print, patch, exit or write makes a wrong
answer right. A small process per core, forked once per check, holds the kernel's layers of protection (`worker`,
`jail.zygote`); `python -m grpo_utils.sandbox` shows which of them this host offers.

What it does not do: tell whether a program that returns the right values computes them, or has learned the asserts
that its prompt showed by heart. Keep some asserts hidden and report both. Nor does it judge objects that are not plain
data, changes that a function makes to its arguments, or tests that use a returned value as a size (`"x" * f(3)`),
which a hostile candidate could use to fill the memory of the process that judges.

Linux on x86-64 or aarch64 only; the standard library only; nothing here imports torch.
"""

from .pool import Sandbox, SandboxUnavailable, capabilities, run_tests, shared
from .verdict import Check, Layer, Status, Verdict

__all__ = [
    "Check",
    "Layer",
    "Sandbox",
    "SandboxUnavailable",
    "Status",
    "Verdict",
    "capabilities",
    "run_tests",
    "shared",
]
