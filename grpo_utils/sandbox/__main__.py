"""Command line: what protects this host, whether it works, and checks of single files.

python -m grpo_utils.sandbox                                   the layers, and a self-test
python -m grpo_utils.sandbox solution.py "assert f(1) == 2"    one file against asserts
"""

import argparse
import sys
from pathlib import Path

from .pool import Sandbox, SandboxUnavailable, capabilities
from .verdict import Check

_HONEST = "def add(a, b): return a + b"
_TESTS = ("assert add(1, 2) == 3", "assert add(20, 22) == 42")
SELF_TEST = (
    # what it shows, program, the right status
    ("an honest program passes", _HONEST, "passed"),
    ("a wrong one does not", "def add(a, b): return 3", "failed"),
    ("leaving early is no way to pass", "import os\ndef add(a, b): os._exit(0)", "crash"),
    ("nor is what equals everything", "from unittest.mock import ANY\ndef add(a, b): return ANY", "unsupported"),
    ("files cannot be read", f"open('/etc/passwd').read()\n{_HONEST}", "error"),
    ("or written", f"open('/tmp/sandbox_self_test', 'w')\n{_HONEST}", "error"),
    ("no network", f"import socket\nsocket.socket()\n{_HONEST}", "error"),
    ("no new process", f"import os\nos.fork()\n{_HONEST}", "error"),
    ("memory is bounded", f"x = bytearray(1 << 34)\n{_HONEST}", "error"),
    ("time is bounded", f"while True: pass\n{_HONEST}", "timeout"),
    ("and the next honest program passes", _HONEST, "passed"),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit code is 0 when all is well, 1 when not, 2 without a sandbox or the file."""
    parser = argparse.ArgumentParser(prog="python -m grpo_utils.sandbox", description="Check untrusted Python code.")
    parser.add_argument("file", nargs="?", type=Path, help="a program; without it, report and self-test")
    parser.add_argument("tests", nargs="*", help="asserts for it")
    parser.add_argument("--timeout", type=float, default=3.0, help="seconds (default: 3)")
    parser.add_argument("--strict", action="store_true", help="refuse to run when a layer of protection is missing")
    options = parser.parse_args(arguments)
    try:
        if not options.file:
            for layer in capabilities():
                print(f"{layer.name:14}{'on' if layer.on else 'MISSING':10}{layer.detail}")
            print()
        with Sandbox(workers=1, timeout=options.timeout, strict=options.strict) as sandbox:
            return _check_file(sandbox, options.file, options.tests) if options.file else _self_test(sandbox)
    except (SandboxUnavailable, OSError, UnicodeDecodeError) as error:  # the last two: a file that cannot be read
        print(error, file=sys.stderr)
        return 2


def _self_test(sandbox: Sandbox) -> int:
    verdicts = sandbox.check_many([Check(code, _TESTS, timeout=1.0) for _, code, _ in SELF_TEST])
    wrong = 0
    for (what, _, right), verdict in zip(SELF_TEST, verdicts, strict=True):
        wrong += verdict.status != right
        print(f"{'ok' if verdict.status == right else 'WRONG':8}{what} ({verdict.status})")
    return 1 if wrong else 0


def _check_file(sandbox: Sandbox, file: Path, tests: list[str]) -> int:
    verdict = sandbox.check(file.read_text(encoding="utf-8"), tests)
    for test, outcome in zip(tests, verdict.outcomes, strict=False):
        print(f"{outcome:10}{test}")
    error = ": ".join(part for part in (verdict.error_type, verdict.error_message) if part)
    print(f"{verdict.status}, {verdict.passed} of {verdict.total}{f' ({error})' if error else ''}")
    print(verdict.stdout, end="")
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    sys.exit(main())
