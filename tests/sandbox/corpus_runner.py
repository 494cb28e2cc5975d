"""Runs the corpus of hostile programs in one sandbox and prints what each of them did, one JSON list per line.

Start it in namespaces of its own, as `test_corpus` does: some cases try to kill every process they can see.
"""

import json
import os
import resource
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HOST = Path("/tmp/sbx_host")
HONEST, WRONG = "def add(a, b): return a + b", "def add(a, b): return 0"
TESTS = ["assert add(1, 2) == 3"]
TIMEOUT = 1.0


def listen() -> list[socket.socket]:
    """The listeners that no case may reach."""
    unix = socket.socket(socket.AF_UNIX)
    (HOST / "sock").unlink(missing_ok=True)
    unix.bind(str(HOST / "sock"))
    tcp, udp = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for opened, port in ((tcp, 47391), (udp, 47392)):
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(("127.0.0.1", port))
    dgram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    (HOST / "dgram").unlink(missing_ok=True)
    dgram.bind(str(HOST / "dgram"))
    for opened in (unix, tcp):
        opened.listen()
    for opened in (unix, tcp, udp, dgram):
        opened.setblocking(False)
    return [unix, tcp, udp, dgram]


def reached(listeners: list[socket.socket]) -> Iterator[str]:
    for listener in listeners:
        try:
            listener.recv(10) if listener.type == socket.SOCK_DGRAM else listener.accept()
            yield f"connection to {listener.getsockname()}"
        except BlockingIOError:
            pass  # as it should be: nobody came


def left(private: bool) -> set[str]:
    """Files, and where nobody else makes any, also shared memory and processes."""
    shared = [*Path("/dev/shm").iterdir(), *Path("/proc").glob("[0-9]*")] if private else []
    return {str(path) for path in (*HOST.iterdir(), *shared)}


def memory_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB


def verdict_on(sandbox: Any, case: dict[str, Any]) -> Any:
    if isinstance(case["code"], list):  # a long text: parts, each with how often it comes
        case = {**case, "code": "".join(part * times for part, times in case["code"])}
    if "output" in case:
        return sandbox.check_script(case["code"], case["output"], stdin=case["stdin"])
    names = case.get("names", ["add"])
    return sandbox.check(case["code"], case["tests"], names=names, setup=case.get("setup", ""))


def broken_rules(sandbox: Any, case: dict[str, Any], listeners: list[socket.socket], private: bool) -> Iterator[str]:
    """Run one case; yield every rule of the host that it broke."""
    before, canary, memory = left(private), (HOST / "canary.txt").stat(), memory_peak()
    for earlier in case.get("before", ()):
        sandbox.check(earlier["code"], earlier["tests"], setup=earlier["setup"])
    started = time.monotonic()
    verdict = verdict_on(sandbox, case)
    if time.monotonic() - started > 2 * TIMEOUT * max(1.0, os.getloadavg()[0]):
        yield f"{time.monotonic() - started:.1f} seconds"
    said = case.get("may_decide", False) and verdict.decided_by_candidate
    if verdict.ok and case["expected"] == "fail" and not said:
        yield "forged"
    if verdict.status not in ("passed", "unsupported") and case["expected"] == "pass":
        yield f"honest program refused: {verdict}"
    if verdict.status == case.get("not_status") or verdict.status != case.get("status", verdict.status):
        yield f"not to be {verdict.status}"
    if verdict.status == "infrastructure":
        yield "the sandbox broke"
    yield from reached(listeners)
    if left(private) != before:
        yield f"left behind: {left(private) ^ before}"
    if (HOST / "canary.txt").read_text() != "canary" or (HOST / "canary.txt").stat().st_mode != canary.st_mode:
        yield "canary changed"
    yield from (name for name in case["host_check"].get("no_file", []) if os.path.exists(name))
    if not sandbox.check(HONEST, TESTS).ok or sandbox.check(WRONG, TESTS).ok:
        yield "the next check went wrong"
    if memory_peak() - memory > 64 << 10:
        yield f"{memory_peak() - memory} KiB more in the trusted process"


def main(cases: Path, skip: str) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from grpo_utils.sandbox import Sandbox

    warnings.simplefilter("ignore")  # a missing layer is what some of these runs are about
    HOST.mkdir(exist_ok=True)
    (HOST / "canary.txt").write_text("canary")
    (HOST / "answers.json").write_text('{"1,2": 3, "-5,12": 7, "1234,4321": 5555}')
    os.environ["SBX_ANSWERS"] = "assert add(1, 2) == 3"
    listeners = listen()
    with Sandbox(workers=1, timeout=TIMEOUT) as sandbox:
        sandbox.check(HONEST, TESTS)
        print(json.dumps(["layers", [layer.name for layer in sandbox.layers if layer.on]]))
        for line in cases.read_text(encoding="utf-8").splitlines():
            case = json.loads(line)
            if not skip or not case["id"].startswith(skip):
                rules = list(broken_rules(sandbox, case, listeners, private=not skip))
                print(json.dumps([case["id"], rules]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
