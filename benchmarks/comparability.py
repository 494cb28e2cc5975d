"""Do our readings of lm-evaluation-harness's tasks agree with the harness? Five minutes, most of them its prompts.

    pip install --target /tmp/harness --no-deps lm-eval==0.4.13 evaluate sacrebleu \\
        portalocker tabulate colorama lxml zstandard
    PYTHONPATH=/tmp/harness python benchmarks/comparability.py

The project does not depend on the harness, hence the folder. MBPP and GSM8K must be on disk (see `grpo_utils.tasks`).
The harness builds its prompts, extracts and scores; only its scorer, which it would fetch from the hub, is replaced:
each program runs in a plain `python -I` process and passes if it runs to its end within three seconds. Completions run
unprotected there: give it none that you would not run yourself.

The 500 completions are not a model's: MBPP's references and seeded changes of them, in the formats that policies write.
`--completions FILE` takes a model's instead: JSON lines with `task_id`, `completion` and, if you like, `kind`.
"""

import argparse
import importlib
import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness

from grpo_utils import tasks
from grpo_utils.extractors import extract_any_code
from grpo_utils.sandbox import Sandbox, Verdict
from grpo_utils.tasks import CodeTask

ROOT = Path(__file__).resolve().parents[1]
REACHED_THE_END = 42  # a program that leaves early has another exit code
DRIVER = f"import sys\nexec(sys.stdin.read(), {{}})\nsys.exit({REACHED_THE_END})"
FORMATS = {
    "as asked": "\n{}\n```",
    "prose after": "\n{}\n```\n\nThe function does what the task says.",
    "a second fence": "\n{}\n```\n\nTo try it:\n```python\nprint('done')\n```",
    "no line break first": "{}\n```",
    "fence left open": "\n{}",
    "language named again": "python\n{}\n```",
    "prose first": "Here is the function:\n```python\n{}\n```",
    "tags": "<thought>I write it down.</thought>\n<answer>\n```python\n{}\n```\n</answer>",
}
ANY = "class Any:\n    def __eq__(self, other): return True\n    def __call__(self, *given): return self\n"
SWAPS = (("+", "-"), ("<", ">"), ("==", "!="), ("*", "+"), ("//", "/"), (" and ", " or "))


@dataclass(frozen=True)
class Stored:
    """One stored completion: its task, a word on where it comes from, and the text after the harness's prompt."""

    task: CodeTask
    kind: str
    text: str


# --------------------------------------------------------------------------------------------------- completions


def made(batch: list[CodeTask]) -> Iterator[Stored]:
    """One completion for each task: half of them references, the others wrong in some way, in any of the formats."""
    for task in batch:
        chance = random.Random(task.task_id)
        kind, code = "reference", task.code.replace("\r\n", "\n").strip()
        if chance.random() < 0.5:
            kind, code = chance.choice(list(_changes(task, code, chance)))
        form = chance.choice(list(FORMATS))
        yield Stored(task, f"{kind}, {form}", FORMATS[form].format(code))


def _changes(task: CodeTask, code: str, chance: random.Random) -> Iterator[tuple[str, str]]:
    numbers = list(re.finditer(r"\b\d+\b", code))
    if numbers:
        number = chance.choice(numbers)
        yield "a number changed", f"{code[: number.start()]}{int(number[0]) + 1}{code[number.end() :]}"
    for old, new in SWAPS:
        if old in code:
            yield "an operator changed", code.replace(old, new, 1)
    yield "misnamed", code.replace(task.function_name, "solution") if task.function_name else "pass"
    yield "no result", re.sub(r"\breturn\b.*", "return None", code)
    yield "cut off", code[: len(code) // 2]
    if chance.random() < 0.2:
        yield "endless", f"{code}\nwhile True: pass"
        yield "leaves early", f"{code}\nraise SystemExit(0)"
        yield "equal to everything", f"{ANY}\n{task.function_name} = Any()"


def stored(path: Path | None, batch: list[CodeTask]) -> list[Stored]:
    """The completions of a file, or those made here."""
    if path is None:
        return list(made(batch))
    owners = {task.task_id: task for task in batch}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Stored(owners[row["task_id"]], row.get("kind", "stored"), row["completion"]) for row in rows]


# --------------------------------------------------------------------------------------------------- the harness


class _Scorer:
    """Stands for Hugging Face's `code_eval`, which needs the hub."""

    def compute(self, references: list[str], predictions: list[list[str]], k: list[int]) -> tuple[dict, dict]:
        return {"pass@1": float(runs_to_its_end(f"{predictions[0][0]}\n{references[0]}"))}, {}


def runs_to_its_end(program: str) -> bool:
    command = [sys.executable, "-I", "-c", DRIVER]
    try:
        done = subprocess.run(command, input=program.encode(), capture_output=True, timeout=harness.SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == REACHED_THE_END


def harness_tasks(names: list[str]) -> dict[str, Any]:
    """The harness's own task objects, with local data and a local scorer in place of the hub's."""
    import datasets

    def local(path: str, *_: Any, **__: Any) -> Any:
        name = path.rpartition("/")[2]
        splits = tasks.SPLITS if name == "mbpp" else ("train", "test")
        rows = {split: [json.loads(line) for line in _lines(name, split)] for split in splits}
        return datasets.DatasetDict({split: datasets.Dataset.from_list(kept) for split, kept in rows.items()})

    try:
        evaluate: Any = importlib.import_module("evaluate")
        evaluate.load = lambda *_, **__: _Scorer()
        manager = importlib.import_module("lm_eval.tasks").TaskManager()
    except ImportError as error:
        raise SystemExit(f"The harness cannot be imported ({error}): {__doc__}") from error
    datasets.load_dataset = local
    return manager.load(names)["tasks"]


def _lines(name: str, split: str) -> list[str]:
    for folder in tasks.folders():
        if (folder / name / f"{split}.jsonl").is_file():
            return (folder / name / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    raise SystemExit(f"There is no {name}/{split}.jsonl: run `grpo tasks download {name}`.")


def harness_prompt(task: Any, document: dict[str, Any], shots: int, chat: bool) -> Any:
    """The prompt that the harness builds: a list of messages, or plain text."""
    given = {"apply_chat_template": chat, "fewshot_as_multiturn": chat, "gen_prefix": task.doc_to_prefix(document)}
    return task.fewshot_context(document, shots, chat_template=lambda messages, **_: messages, **given)


def harness_scores(task: Any, document: dict[str, Any], completion: str) -> dict[str, tuple[Any, float]]:
    """What each of the harness's filters finds in a completion, and the score of it."""
    instance_of = importlib.import_module("lm_eval.api.instance").Instance
    instance = instance_of(request_type="generate_until", doc=document, arguments=("", {}), idx=0)
    instance.resps = [completion]
    scores = {}
    for ensemble in task._filters:
        ensemble.apply([instance])
        found = instance.filtered_resps[ensemble.name]
        (score,) = task.process_results(document, [found]).values()
        scores[ensemble.name] = (found[0] if isinstance(found, list) else found, float(score))
    return scores


# ----------------------------------------------------------------------------------------------------- comparisons


def compare_prompts(loaded: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Yields what was compared, how many of them are the same to the letter, and of how many."""
    owners = {task.task_id: task for task in harness.mbpp("test")}
    for name, shots_wanted in (("mbpp_instruct", (0, 3)), ("gsm8k_cot_llama", (0, 8))):
        for shots in shots_wanted:
            documents = list(loaded[name].test_docs())
            same = 0
            for document in documents:
                if name == "mbpp_instruct":
                    chat = harness.mbpp_messages(owners[document["task_id"]], harness.mbpp_examples(shots))
                else:
                    chat = harness.gsm8k_messages(document["question"], harness.gsm8k_examples(shots))
                theirs = [harness_prompt(loaded[name], document, shots, chat=flag) for flag in (True, False)]
                same += theirs == [chat, harness.as_text(chat)]
            yield f"{name}, {shots}-shot prompts, as chat and as text", same, len(documents)


def compare_numbers(task: Any) -> Iterator[tuple[str, int, int]]:
    """The same for GSM8K's scoring, on gold answers and near misses in the ways that models write them."""
    ways = ("The final answer is {}", "The final answer is ${}.", "It is {}.00", "#### {}", "{} eggs, 5% more", "none")
    documents = list(task.test_docs())
    same = Counter()
    for number, document in enumerate(documents):
        chance = random.Random(number)
        gold = document["answer"].rpartition("####")[2].strip()
        text = chance.choice(ways).format(gold if chance.random() < 0.7 else f"{gold}1")
        theirs = harness_scores(task, document, text)
        for name, strict in (("strict-match", True), ("flexible-extract", False)):
            same[name] += harness.gsm8k_correct(text, document["answer"], strict) == bool(theirs[name][1])
    for name, count in same.items():
        yield f"gsm8k_cot_llama, scores by {name}", count, len(documents)


def explain(one: Stored, ours: Verdict, theirs: bool, code: str | None, their_code: str, sandbox: Sandbox) -> str:
    """Why our own rule and the harness's say different things of a completion."""
    if (code or "").strip() != their_code.strip():
        return f"another program is taken out of the text ({one.kind.rpartition(', ')[2]})"
    check = harness.mbpp_check(one.task, f"\n{code}\n```")
    if sandbox.check_many([check])[0].ok == theirs:
        return "setup code or challenge asserts, which the harness leaves out"
    return f"judged by value ({ours.status}: {ours.error_message or ours.error_type})"


def compare_scores(task: Any, rows: list[Stored], sandbox: Sandbox) -> tuple[list[str], list[str]]:
    """Scores every completion three ways; returns the rows of a table, and the disagreements one by one."""
    documents = {document["task_id"]: document for document in task.test_docs()}
    theirs = [harness_scores(task, documents[one.task.task_id], one.text)["extract_code"] for one in rows]
    rule = sandbox.check_many([harness.mbpp_check(one.task, one.text) for one in rows])
    codes = [extract_any_code(harness.PREFIX + one.text, "answer") for one in rows]
    own = sandbox.check_many([one.task.check(code or "") for one, code in zip(rows, codes, strict=True)])
    extracted = sum(harness.mbpp_code(one.text) == code for one, (code, _) in zip(rows, theirs, strict=True))
    passed = [bool(score) for _, score in theirs]
    listed, reasons = [], Counter()
    for i, one in enumerate(rows):
        if rule[i].ok != passed[i]:
            listed.append(
                f"- task {one.task.task_id} ({one.kind}): the harness {'passes' if passed[i] else 'fails'} it, "
                f"the sandbox says {rule[i].status}: {rule[i].error_message or rule[i].error_type or 'no error'}"
            )
        if own[i].ok != passed[i]:
            winner = "only ours passes" if own[i].ok else "only theirs passes"
            reasons[f"{winner}: {explain(one, own[i], passed[i], codes[i], theirs[i][0], sandbox)}"] += 1
    lines = [
        f"| mbpp_instruct, extracted programs | {extracted} of {len(rows)} |",
        f"| mbpp_instruct, verdicts: our sandbox against the harness | {len(rows) - len(listed)} of {len(rows)} |",
        f"| `evaluation`'s lenient rule against the harness's | {len(rows) - sum(reasons.values())} of {len(rows)} |",
    ]
    counts = [sum(passed), sum(one.ok for one in rule), sum(one.ok for one in own)]
    notes = ["The harness passes {}, our sandbox by its rule {}, `evaluation`'s own rule {}.".format(*counts)]
    notes += ["", "Where the two verdicts differ:", "", *(listed or ["- nowhere"])]
    notes += ["", "Where `evaluation`'s own rule differs:", ""]
    return lines, notes + [f"- {count}: {reason}" for reason, count in reasons.most_common()]


def main() -> None:
    """Compares prompts, extraction and scores, and writes `benchmarks/results/harness.md`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--completions", type=Path, help="JSON lines (default: 500 made from the references)")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "harness.md")
    arguments = parser.parse_args()
    loaded = harness_tasks(["mbpp_instruct", "gsm8k_cot_llama"])
    rows = stored(arguments.completions, harness.mbpp("test"))
    source = f"`{arguments.completions}`" if arguments.completions else "made from the references, not by a model"
    version = importlib.import_module("importlib.metadata").version("lm_eval")
    lines = [f"`python benchmarks/harness.py`, lm-eval {version}. {len(rows)} completions, {source}.", ""]
    lines += ["| compared | the same |", "|---|---|"]
    for what, same, count in (*compare_prompts(loaded), *compare_numbers(loaded["gsm8k_cot_llama"])):
        lines.append(f"| {what} | {same} of {count} |")
        print(lines[-1], flush=True)
    with Sandbox() as sandbox:
        table, notes = compare_scores(loaded["mbpp_instruct"], rows, sandbox)
    lines += [*table, "", *notes]
    arguments.output.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
