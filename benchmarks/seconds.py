"""Where the seconds of the chain go: `python benchmarks/seconds.py`, about twenty minutes on an idle machine.

Runs chapters 1 to 5 of a recipe, each under py-spy (`pip install py-spy==0.4.3`), which notes ten times a second what a
program is doing, and sorts what it saw of the notebook's own thread by the functions that it was in. A chapter's time
before its first cell and after its last one is papermill's. Beside it the memory of all processes together is watched.
Writes `benchmarks/results/seconds.md`.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import psutil

from grpo_utils import runs
from grpo_utils.runs import chain

RESULTS = Path(__file__).parent / "results" / "seconds.md"
RATE = 10  # samples a second
NOTEBOOK = ".run_code (IPython"
# part -> what a stack holds then; the first that fits counts
PARTS = {
    "imports": r"_find_and_load ",
    "loading models": r"load_policy \(|from_pretrained \(|with_adapter \(",
    "packing the weights": r"packed_weights \(",
    "reading prompts": r"_read \(grpo_utils|of \(grpo_utils/policy/batching",
    "decoding: head": r"_step \(grpo_utils/policy/batching(?!.*DecoderLayer).*_packed_product",
    "decoding: products of the layers": r"_step \(grpo_utils/policy/batching.*_packed_product",
    "decoding: attention": r"_step \(grpo_utils/policy/batching.*(attention \(grpo_utils|update \(grpo_utils)",
    "decoding: norms, positions, activations, residuals": r"_step \(grpo_utils/policy/batching.*forward \(",
    "decoding: sampling": r"choose \(grpo_utils",
    "decoding: the rest": r"generate_completions \(grpo_utils",
    "sandbox": r"\(grpo_utils/sandbox",
    "training: backward": r"backward \(torch|run_backward",
    "training: forward and loss": r"compute_loss \(|_get_per_token_logps",
    "training: optimiser": r"step \(torch/optim|clip_grad",
    "tokenizing": r"\(transformers/tokenization|apply_chat_template",
    "statistics": r"\((scipy|sklearn|grpo_utils/evaluation/statistics)",
    "figures": r"\((matplotlib|grpo_utils/show/plots)",
    "the rest": "",
}


def part_of(stack: str) -> str:
    """The part that a stack of py-spy (`function (file);function (file);...`, the outermost first) belongs to.

    >>> part_of("<module> (cell.py);load (a.py);_find_and_load (<frozen importlib._bootstrap>);<module> (b.py)")
    'imports'
    """
    return next(part for part, pattern in PARTS.items() if re.search(pattern, stack))


def sampled(folded: Path) -> dict[str, float]:
    """Seconds by part in py-spy's raw output, of the thread that runs the notebook's cells."""
    seconds: dict[str, float] = defaultdict(float)
    for line in folded.read_text(encoding="utf-8").splitlines():
        stack, _, count = line.rpartition(" ")
        if NOTEBOOK in stack and stack.count("process ") == 2:  # the chain and its kernel; the sandbox has its own
            seconds[part_of(stack)] += int(count) / RATE
    return seconds


class Watch(threading.Thread):
    """The largest memory of a process and its descendants (MB; shared pages once), looked at every second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak = pid, 0.0

    def run(self) -> None:
        while psutil.pid_exists(self.pid):
            self.peak = max(self.peak, sum(map(_shared_once, _family(self.pid))) / 2**20)
            time.sleep(1)


def _family(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:  # ended meanwhile
        return []


def _shared_once(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except psutil.Error:  # ended meanwhile, or a candidate in a jail of another user
        return 0


def run_chapter(number: str, arguments: Sequence[str], folder: Path) -> tuple[float, dict[str, float], float]:
    """Wall-clock seconds of one chapter, what was sampled, and its peak memory in MB."""
    folded = folder / f"{number}.txt"
    grpo = [sys.executable, "-m", "grpo_utils", "reproduce", "--only", number, *arguments]
    command = ["py-spy", "record", "--subprocesses", "--idle", "--nonblocking", "--nolineno", "--format", "raw"]
    command += ["--rate", str(RATE), "--output", str(folded), "--", *grpo]
    began = time.monotonic()
    process = subprocess.Popen(command, env=os.environ | {"GRPO_OUTPUTS_DIR": str(folder)}, stdout=subprocess.DEVNULL)
    watch = Watch(process.pid)
    watch.start()
    if process.wait():
        sys.exit(f"Chapter {number} failed, for the reason above.")
    return time.monotonic() - began, sampled(folded), watch.peak


def main() -> None:
    """Runs the chapters, prints the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="cpu-code")
    asked = parser.parse_args()
    if shutil.which("py-spy") is None:
        sys.exit("py-spy is not there: pip install py-spy==0.4.3")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for path in chain.list_notebooks()[: chain.CHAPTERS]:
            found[path.name[:2]] = run_chapter(path.name[:2], ["--recipe", asked.recipe], Path(folder))
            print(path.stem, found[path.name[:2]], flush=True)
    lines = [
        f"`python benchmarks/seconds.py --recipe {asked.recipe}`: wall-clock seconds by chapter.",
        "",
        f"| part | {' | '.join(found)} | all | share |",
        "|---|" + "---|" * (len(found) + 2),
    ]
    total = sum(wall for wall, _, _ in found.values())
    rows = {part: [seconds[part] for _, seconds, _ in found.values()] for part in PARTS}
    rows["papermill, and the kernel's start and end"] = [
        wall - sum(seconds.values()) for wall, seconds, _ in found.values()
    ]
    rows["**all**"] = [wall for wall, _, _ in found.values()]
    for part, taken in rows.items():
        seconds = " | ".join(f"{one:.0f}" for one in taken)
        lines.append(f"| {part} | {seconds} | {sum(taken):.0f} | {sum(taken) / total:.0%} |")
    peaks = " | ".join(f"{peak:.0f}" for _, _, peak in found.values())
    lines.append(f"| peak memory of all processes, MB | {peaks} | {max(peak for _, _, peak in found.values()):.0f} | |")
    lines += ["", f"On {runs.processor()}."]
    runs.write_file(RESULTS, "\n".join(lines) + "\n")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
