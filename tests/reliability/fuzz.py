"""Fuzzing of everything that reads what others wrote: model-written text, recipes, tasks, records, logs.

A target takes bytes and may raise only what its documentation says. `mutants` makes inputs from valid ones by cutting,
doubling and exchanging pieces, the same ones at every call; `python tests/reliability/fuzz.py extractors -runs=1000000`
lets atheris (`pip install atheris`) look for inputs by coverage instead.
"""

import contextlib
import importlib
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grpo_utils import evaluation, extractors, runs, tasks

TAGS = ("thought", "answer")
FOLDER = Path(tempfile.gettempdir())
PIECES = [
    b"<answer>", b"</answer>", b"<thought>", b"</thought>", b"```", b"```python\n", b"\\boxed{", b"}", b"{", b"[", b"]",
    b"####", b"1,000", b"1e999", b"-", b".", b"/", b"%", b"$", b"\n", b"\r\n", b" ", b"\x00", b"\xff", b"\xed\xa0\x80",
    "\u0663".encode(), b": ", b"- ", b"? ", b"&a ", b"*a", b"!!float ", b"!!timestamp ", b"2001-99-99", b"'", b'"',
    b"NaN", b"null", b"1" * 5000, b"[" * 3000, b"{\"a\":" * 3000, b"def f():\n", b"(" * 300, b"\\u", b"\\ud800",
]  # fmt: skip


def extract(data: bytes) -> None:
    text = data.decode("utf-8", errors="surrogateescape")
    extractors.extract_tag(text, "answer")
    extractors.extract_fenced(text)
    extractors.extract_code(text, "answer")
    extractors.extract_any_code(text, "answer")
    extractors.extract_candidates(text, "answer")
    extractors.extract_final_number(text)
    extractors.extract_numbers(text)
    extractors.extract_hash_answer(text)
    extractors.extract_xml_answer(text)
    extractors.extract_final_answer(text)
    extractors.follows_format(text, TAGS)


def load_recipe(data: bytes) -> None:
    path = FOLDER / "fuzzed.yaml"
    path.write_bytes(data)
    with contextlib.suppress(runs.RecipeError):
        runs.load_recipe(path)


def load_tasks(data: bytes) -> None:
    path = FOLDER / "fuzzed.jsonl"
    path.write_bytes(data)
    with contextlib.suppress(tasks.DataError):
        tasks.read_jsonl(path)


def load_records(data: bytes) -> None:
    path = FOLDER / "evaluations" / "base.test.0shot.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    with contextlib.suppress(runs.RunError):
        evaluation.load_records(FOLDER)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "extractors": extract,
    "recipe": load_recipe,
    "tasks": load_tasks,
    "records": load_records,
}
RECORD = {
    "settings": {"checkpoint": "base", "split": "test", "shots": 0},
    "update_norm": 0.5,
    "tasks": [{"task_id": 1, "grade": 1, "completions": [{"text": "x", "strict": True, "visible": None}]}],
}


def seeds(target: str) -> list[bytes]:
    """Valid inputs of a target."""
    starter = (runs.ROOT / "data" / "starter" / "prompt.jsonl").read_bytes()
    number = b"<thought>2 + 2</thought><answer>\n```python\nx = 4\n```\n</answer> so #### 1,234.5 \\boxed{\\frac{1}{2}}"
    valid = {
        "extractors": [number, b"The answer is $3.50.", b"def f(x):\n    return x\n"],
        "recipe": [b"a: {b: [1, 2], c: d}\n", (runs.RECIPES / "smoke-code.yaml").read_bytes()],
        "tasks": [b"\n".join(starter.splitlines()[:2])],
        "records": [json.dumps(RECORD).encode()],
    }
    return valid[target]


def mutants(target: str, count: int, seed: int = 0) -> Iterator[bytes]:
    """Yields inputs for a target: valid ones with up to eight changes each."""
    rng = random.Random(f"{target}/{seed}")
    valid = seeds(target)
    for _ in range(count):
        data = rng.choice(valid)
        for _ in range(rng.randint(1, 8)):
            start = rng.randint(0, len(data))
            end = min(len(data), start + int(rng.expovariate(0.1)))
            piece = rng.choice((rng.choice(PIECES), b"", data[start:end] * 2, rng.randbytes(2)))
            data = data[:start] + piece + data[end:]
        yield data


def main() -> None:
    atheris: Any = importlib.import_module("atheris")  # not in the lock: it lacks wheels for some Pythons

    target = TARGETS[sys.argv.pop(1)]
    with atheris.instrument_imports(include=["grpo_utils"]):
        for module in (extractors, runs.recipe, tasks, evaluation.results):
            importlib.reload(module)
    with tempfile.TemporaryDirectory() as folder:
        globals()["FOLDER"] = Path(folder)
        atheris.Setup(sys.argv, target)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
