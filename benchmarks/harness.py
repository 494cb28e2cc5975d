"""The prompts and scoring rules of lm-evaluation-harness, so that our numbers can stand beside published ones.

Its tasks `mbpp_instruct` (version 1.0) and `gsm8k_cot_llama` (version 4.0) as they are in lm-eval 0.4.13, written anew;
`benchmarks/comparability.py` compares them with the harness's own files. Both are greedy. Where they differ from
`evaluation`, and why `evaluation` does it otherwise:

`mbpp_instruct`
- The prompt shows all three asserts that score the completion, so nobody sees a program that is fitted to them. Ours
  shows as many as the recipe says and keeps the others hidden.
- The answer begins inside a Markdown fence that the prompt has opened: no room to reason first. Ours has tags for both.
- A fence that is not closed within 256 tokens is no code. Ours runs to the end, and counts truncation apart.
- The first word counts as the fence's language unless a line break stands before it. Where the chat template keeps the
  line break after the opening fence (ChatML: SmolLM2, Qwen), a model goes on with `def`, loses it and scores 0; Llama's
  template trims it (EleutherAI/lm-evaluation-harness #3447 and #3769). Such a 0 says nothing about the model.
- `test_setup_code` and `challenge_test_list` are not used: of MBPP's test split task 367 can hardly be solved, and 11
  tasks have fewer asserts than with us.
- The verdict is whether program and asserts run to their end in one process. Ours compares values outside of it, so
  that a program cannot forge them: a program that passes only there has cheated.

`gsm8k_cot_llama`
- Answers are compared as text without commas, dollar signs and a final full stop: 72.00 is not 72, 1/2 is not 0.5. Ours
  compares exact numbers.
- `strict` wants "The final answer is"; without it the last number anywhere counts, such as a unit's "5%".
- The task names no limit on new tokens, so the harness's own default, 256, cuts long answers off.

`mbpp_instruct` has no stop words but the end of the turn; those of `gsm8k_cot_llama` are `GSM8K_STOPS`.

A chat of `mbpp_messages` ends with the assistant's turn, and the policy goes on from there
(`continue_final_message=True` in transformers' chat templates); it does not open another one.

    python benchmarks/harness.py --recipe cpu-code --checkpoint base --task mbpp_instruct --shots 3

does what the harness does with `--apply_chat_template --fewshot_as_multiturn`, or without them for a model that has no
chat template. Batching differs, so that a rounding may.
"""

import argparse
import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from grpo_utils import rewards, runs, tasks
from grpo_utils.evaluation import rate
from grpo_utils.extractors import extract_hash_answer
from grpo_utils.runs import Recipe, commands
from grpo_utils.sandbox import Check, Sandbox
from grpo_utils.tasks import CodeTask, MathsTask, Message

MAX_NEW_TOKENS = 256
SECONDS = 3.0  # the limit of Hugging Face's `code_eval`, which scores the harness's programs
FENCE = "```"
PREFIX = f"\n{FENCE}python\n"
GSM8K_STOPS = ("<|eot_id|>", "<|start_header_id|>user<|end_header_id|>", "Q:", "</s>", "<|im_end|>")
NUMBER = r"-?[$0-9.,]{2,}|-?[0-9]+"
STRICT, FLEXIBLE = re.compile(f"The final answer is ({NUMBER})"), re.compile(f"({NUMBER})")


def mbpp_examples(shots: int) -> list[CodeTask]:
    """Returns the worked examples of `mbpp_instruct`: tasks 2, 3 and 4 of MBPP's prompt split.

    Raises:
        DataError: there are fewer than `shots`.
    """
    return _first([task for task in mbpp("prompt") if task.task_id in (2, 3, 4)], shots)


def _first(examples: list[Any], shots: int) -> list[Any]:
    if not 0 <= shots <= len(examples):
        raise tasks.DataError(f"There are {len(examples)} worked examples, so shots cannot be {shots}.")
    return examples[:shots]


def mbpp(split: str) -> list[CodeTask]:
    """Returns the tasks of one split of MBPP."""
    return [task for task in tasks.load_tasks("mbpp", split) if isinstance(task, CodeTask)]


def mbpp_messages(task: CodeTask, shown: Sequence[CodeTask]) -> list[Message]:
    """Returns the chat of `mbpp_instruct`. It ends with the opening of the answer, from which the policy goes on.

    Args:
        task: the task to ask for, with three asserts.
        shown: from `mbpp_examples`, in order.

    Example:
    ```python
    >>> task = CodeTask(task_id=1, text="Write a function to add.", code="", test_list=["assert add(1, 2) == 3"] * 3)
    >>> mbpp_messages(task, [])[-1]
    {'role': 'assistant', 'content': '\\n```python\\n'}

    ```
    """
    chat = []
    for example in shown:
        chat += _turn(_mbpp_question(example), f"{PREFIX}{example.code}\n{FENCE}")
    return chat + _turn(_mbpp_question(task), PREFIX)


def _turn(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _mbpp_question(task: CodeTask) -> str:
    opening = "You are an expert Python programmer, and here is your task:"
    return "\n".join([opening, task.text, "Your code should pass these tests:", *task.test_list[:3]])


def mbpp_code(completion: str) -> str:
    """Returns the program that `mbpp_instruct` finds in what a policy wrote after the prompt, or "" if there is none.

    Example: a policy that goes on without a line break loses its first word.
    ```python
    >>> mbpp_code("\\ndef inc(n): return n + 1\\n```\\nThis adds one."), mbpp_code("def inc(n): return n + 1\\n```")
    ('def inc(n): return n + 1', ' inc(n): return n + 1')

    ```
    """
    body, closed, _ = completion.partition(FENCE)
    return re.sub(r"\A\w+", "", body).removeprefix("\n").removesuffix("\n") if closed else ""


def mbpp_check(task: CodeTask, completion: str) -> Check:
    """Returns the check by which `mbpp_instruct` scores a completion: three asserts, no setup code, three seconds.

    Example:
    ```python
    >>> code = "def add(a, b): return a + b"
    >>> task = CodeTask(task_id=1, text="Add.", code=code, test_list=["assert add(1, 2) == 3"] * 3)
    >>> mbpp_check(task, "\\ndef add(a, b): return a - b\\n```").code
    'def add(a, b): return a - b'

    ```
    """
    return Check(mbpp_code(completion), tuple(task.test_list[:3]), tuple(task.function_names), timeout=SECONDS)


def gsm8k_examples(shots: int) -> list[dict[str, str]]:
    """Returns the worked examples of `gsm8k_cot_llama`, at most eight, each with its "question" and "target".

    They are Wei et al.'s (2022, arXiv 2201.11903) and not ours to copy, so they are read from the installed harness.

    Raises:
        DataError: lm-eval is not installed, or has fewer than `shots`.
    """
    package = importlib.util.find_spec("lm_eval")
    if package is None or not package.submodule_search_locations:
        raise tasks.DataError("The examples of gsm8k_cot_llama are lm-eval's: pip install --no-deps lm-eval==0.4.13.")
    path = Path(package.submodule_search_locations[0]) / "tasks" / "gsm8k" / "gsm8k-cot-llama.yaml"
    return _first(yaml.safe_load(path.read_text(encoding="utf-8"))["fewshot_config"]["samples"], shots)


def gsm8k_messages(question: str, shown: Sequence[Mapping[str, str]]) -> list[Message]:
    """Returns the chat of `gsm8k_cot_llama`: worked examples as earlier turns, then the question.

    Args:
        question: the word problem.
        shown: from `gsm8k_examples`, in order.

    Example:
    ```python
    >>> chat = gsm8k_messages("6 * 7?", [{"question": "1 + 1?", "target": "The final answer is 2"}])
    >>> [message["role"] for message in chat], chat[1]["content"]
    (['user', 'assistant', 'user'], 'The final answer is 2')

    ```
    """
    chat = []
    for example in shown:
        chat += _turn(_gsm8k_question(example["question"]), example["target"])
    return [*chat, {"role": "user", "content": _gsm8k_question(question)}]


def _gsm8k_question(question: str) -> str:
    return (
        "Given the following problem, reason and give a final answer to the problem.\n"
        f"Problem: {question}\n"
        'Your response should end with "The final answer is [answer]" where [answer] is the response to the problem.\n'
    )


def gsm8k_correct(completion: str, solution: str, strict: bool) -> bool:
    """Whether `gsm8k_cot_llama` scores a completion as right.

    Args:
        completion: what the policy wrote, up to a stop word.
        solution: GSM8K's worked solution, which ends with `####` and the gold number.
        strict: the harness's `strict-match` (the number after the last "The final answer is") instead of its
            `flexible-extract` (the last number).

    Example:
    ```python
    >>> [gsm8k_correct(text, "6 * 7\\n#### 42", strict=True) for text in ("The final answer is $42.", "It is 42")]
    [True, False]

    ```
    """
    found = (STRICT if strict else FLEXIBLE).findall(completion)
    number = found[-1].replace(",", "").replace("$", "").removesuffix(".") if found else None
    return number is not None and number == extract_hash_answer(solution)


def as_text(chat: Sequence[Message]) -> str:
    """Returns a chat as the prompt that the harness makes of it without a chat template, for base models.

    Example:
    ```python
    >>> chat = [{"role": "user", "content": "6 * 7? "}, {"role": "assistant", "content": "42"}]
    >>> as_text([*chat, {"role": "user", "content": "1 + 1?"}])
    '6 * 7? 42\\n\\n1 + 1?'

    ```
    """
    ends = ["\n\n" if message["role"] == "assistant" else "" for message in chat[:-1]]
    return "".join(message["content"] + end for message, end in zip(chat, [*ends, ""], strict=True))


def cut(completion: str, stops: Sequence[str]) -> str:
    """Returns the completion up to the first of the stop words.

    Example:
    ```python
    >>> cut("The final answer is 42 Q: What else?", GSM8K_STOPS)
    'The final answer is 42 '

    ```
    """
    for stop in stops:
        completion = completion.partition(stop)[0]
    return completion


def prompts(task: str, shots: int, limit: int | None = None) -> tuple[list[Any], list[list[Message]]]:
    """Returns what one of the harness's tasks asks: the documents of its test split, and a chat for each.

    Args:
        task: `"mbpp_instruct"` or `"gsm8k_cot_llama"`.
        shots: number of worked examples.
        limit: only the first so many documents; None for all of them.

    Returns:
        `tasks.CodeTask` for MBPP, `tasks.MathsTask` for GSM8K; and the chats.

    Raises:
        DataError: the data set is not there, so many worked examples are not, or `limit` is below 1.
    """
    if limit is not None and limit < 1:
        raise tasks.DataError(f"limit must be at least 1, not {limit}.")
    if task == "mbpp_instruct":
        documents, shown = mbpp("test")[:limit], mbpp_examples(shots)
        return documents, [mbpp_messages(document, shown) for document in documents]
    documents = [task for task in tasks.load_tasks("gsm8k", "test") if isinstance(task, MathsTask)][:limit]
    examples = gsm8k_examples(shots) if shots else []
    return documents, [gsm8k_messages(document.text, examples) for document in documents]


def scores(task: str, documents: Sequence[Any], completions: Sequence[str], sandbox: Sandbox) -> dict[str, list[bool]]:
    """Returns which completions the harness scores as right, by the name of its metric.

    Args:
        task: `"mbpp_instruct"` or `"gsm8k_cot_llama"`.
        documents: from `prompts`.
        completions: what the policy wrote for each.
        sandbox: where the programs run.

    Raises:
        SandboxFault: the sandbox itself failed.
    """
    pairs = list(zip(documents, completions, strict=True))
    if task == "mbpp_instruct":
        checks = [mbpp_check(document, completion) for document, completion in pairs]
        return {"pass_at_1": [verdict.ok for verdict in rewards.judge_checks(checks, sandbox)]}
    return {
        name: [gsm8k_correct(cut(text, GSM8K_STOPS), f"#### {document.answer}", is_strict) for document, text in pairs]
        for name, is_strict in (("strict-match", True), ("flexible-extract", False))
    }


@runs.writes_alone
def measure(
    recipe: Recipe, run: Path, checkpoint: str, task: str, shots: int, limit: int | None = None
) -> tuple[Path, dict[str, list[bool]]]:
    """Puts a task of the harness to a policy, greedily, and keeps the completions and their scores in the run's folder.

    Args:
        recipe: its `model` block, and `evaluation.batch_size`.
        run: folder of the run.
        checkpoint: `"base"` or the name of a folder in `run/checkpoints`.
        task: `"mbpp_instruct"` or `"gsm8k_cot_llama"`.
        shots: number of worked examples.
        limit: only the first so many documents; None for all of them.

    Returns:
        The path of the record, and the scores (see `scores`).

    Raises:
        UserError: something is missing, does not fit the model, or failed; the text says what.
    """
    from grpo_utils import policy  # torch, which the rules above do without

    documents, chats = prompts(task, shots, limit)
    adapter = None if checkpoint == "base" else runs.need_file(run / "checkpoints" / checkpoint, "04_grpo_training")
    base = policy.identify_base(recipe.model)
    settings = {"task": task, "shots": shots, "limit": limit, "checkpoint": checkpoint, **base}
    settings["adapter_sha256"] = policy.identify_adapter(adapter, base)
    with policy.with_adapter(policy.load_policy(recipe), adapter) as current, Sandbox() as sandbox:
        completions = policy.generate_completions(
            current,
            chats if base["chat_template_sha256"] else [as_text(chat) for chat in chats],
            [None] * len(chats),
            temperature=1.0,  # of no effect: all are greedy
            max_new_tokens=MAX_NEW_TOKENS,
            batch_size=recipe.evaluation.batch_size,
        )
        texts = [completion.text for completion in completions]
        found = scores(task, documents, texts, sandbox)
    part = f".first{limit}" if limit else ""
    path = run / "comparability" / f"{task}.{checkpoint}.{shots}shot{part}.json"
    record = {"settings": settings, "completions": texts, "scores": found}
    runs.write_file(path, json.dumps(record, indent=1, ensure_ascii=False))
    return path, found


def main() -> None:
    """Measures a policy by lm-evaluation-harness's prompt and rule, greedily, and prints and keeps the result."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    commands.add_recipe_options(parser)
    parser.add_argument("--checkpoint", default="base", help="base or checkpoint-N (default: base)")
    parser.add_argument("--task", default="mbpp_instruct", choices=["mbpp_instruct", "gsm8k_cot_llama"])
    parser.add_argument("--shots", type=int, default=0, help="worked examples in the prompt (default: 0)")
    parser.add_argument("--limit", type=int, help="only the first so many documents")
    arguments = parser.parse_args()
    recipe = runs.load_recipe(*commands.parameters_of(arguments.recipe, arguments.set, arguments.run))
    prompts(arguments.task, arguments.shots, arguments.limit)  # a wrong call makes no folder
    if arguments.checkpoint != "base":
        runs.need_file(runs.outputs_folder() / recipe.name / "checkpoints" / arguments.checkpoint, "04_grpo_training")
    run = runs.start_run(recipe)
    path, found = measure(recipe, run, arguments.checkpoint, arguments.task, arguments.shots, arguments.limit)
    for name, right in found.items():
        print(f"{arguments.task}, {arguments.shots}-shot, {name}: {rate(right)}, n = {len(right)}")
    print(path)


if __name__ == "__main__":
    commands.run_command(main)
