"""What rewards and extractors cost beside the sandbox: `python benchmarks/rewards.py`, half a minute.

Processor time, the fastest of five runs each: a batch of 512 completions under all rewards that run no code, the
slowest reward and the slowest extractor on hostile texts of a megabyte, and the import in a fresh process.
"""

import subprocess
import sys
import time
from collections.abc import Callable

from grpo_utils import extractors, rewards

PROGRAM = "import time; began = time.process_time(); import grpo_utils.rewards; print(time.process_time() - began)"
RUN_CODE = {"correct", "tests", "tests_graded", "runs", "error_graded", "visible_tests", "hidden_tests"}
NAMES = [name for name in rewards.REGISTRY if name not in RUN_CODE]
BATCH = [f"<thought>{'so ' * 30}</thought>\n<answer>\n{'$' * (i % 2)}{i}\n</answer>" for i in range(512)]
TAGGED = {
    name: getattr(extractors, name)
    for name in ("extract_tag", "extract_code", "extract_any_code", "extract_candidates")
}
EXTRACTORS: dict[str, Callable[[str], object]] = {
    **{name: lambda text, extract=extract: extract(text, "answer") for name, extract in TAGGED.items()},
    "follows_format": lambda text: extractors.follows_format(text, ("thought", "answer")),
    "extract_fenced": extractors.extract_fenced,
    "extract_numbers": extractors.extract_numbers,
    "extract_final_number": extractors.extract_final_number,
    "extract_hash_answer": extractors.extract_hash_answer,
    "extract_xml_answer": extractors.extract_xml_answer,
    "extract_final_answer": extractors.extract_final_answer,
}
HOSTILE = {
    "opening tags": "<answer>" * 125_000,
    "tags with attributes": "<answer " * 125_000,
    "one long attribute": "<answer " + "a" * 1_000_000,
    "digits in a tag": f"<answer>{'9' * 1_000_000}</answer>",
    "numbers in a tag": f"<answer>{'1,' * 500_000}</answer>",
    "line breaks in a tag": "<answer>" + "\n" * 1_000_000 + "</answer>",
    "definitions": f"<answer>{'def inc ' * 125_000}</answer>",
    "boxes": "<answer>" + "\\boxed{" * 140_000 + "</answer>",
    "think": "<think>" * 70_000 + "</think>" * 60_000,
}


def milliseconds(work: Callable[[], object]) -> float:
    """Processor time of the fastest of five runs: other programs on this machine do not count."""
    took = []
    for _ in range(5):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took) * 1000


def score(names: list[str], completions: list[str]) -> None:
    """Calls rewards on completions of one task."""
    size = len(completions)
    columns = {"answer": ["42"] * size, "completion_ids": [[0] * 60] * size}
    programs = {"asserts": [["assert inc(1) == 2"]] * size, "names": [["inc"]] * size}
    for function in rewards.build_rewards(dict.fromkeys(names, 1.0), max_completion_length=100)[0]:
        own = programs if function.__name__ == "defines_function" else columns
        function(completions, **own)


def main() -> None:
    """Prints the measurements."""
    print(f"{len(BATCH)} completions, {len(NAMES)} rewards: {milliseconds(lambda: score(NAMES, BATCH)):.1f} ms")
    scores = {name: lambda text, name=name: score([name], [text]) for name in NAMES}
    for kind, functions in (("reward", scores), ("extractor", EXTRACTORS)):
        took, name, label = max(
            (milliseconds(lambda work=work, text=text: work(text)), name, label)
            for name, work in functions.items()
            for label, text in HOSTILE.items()
        )
        print(f"1 MB of hostile text: the slowest {kind} takes {took:.1f} ms ({name}, {label})")
    starts = [float(subprocess.check_output([sys.executable, "-c", PROGRAM], text=True)) for _ in range(5)]
    print(f"import grpo_utils.rewards: {min(starts):.3f} s")


if __name__ == "__main__":
    main()
