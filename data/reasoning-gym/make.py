"""Makes the four files beside it from `reasoning-gym`'s generators: `python data/reasoning-gym/make.py`.

It needs `pip install reasoning-gym==0.1.25` (Stojanovski et al. 2025, arXiv 2505.24760; Apache-2.0), which nothing else
does: it brings packages that want a C compiler. Its `chain_sum` makes sums such as "4 - 17 + 2"; the worked solution,
one step a line, is added here. Each grade has more terms or more digits than the one below, so that a small policy
finds both what it can and what it cannot do.
"""

import json
import re
from pathlib import Path
from typing import Any

SIZES = {"prompt": 8, "train": 352, "validation": 80, "test": 180}
GRADES = ((2, 1), (2, 2), (3, 1), (4, 1))  # terms and digits
SEED = 20260101


def problems() -> list[dict[str, Any]]:
    """Returns all splits in a row, in GSM8K's schema; the grades take turns. No two have the same terms."""
    import reasoning_gym

    total = sum(SIZES.values())
    seen: set[tuple[str, ...]] = set()
    by_grade: list[list[dict[str, Any]]] = []
    for grade, (terms, digits) in enumerate(GRADES, start=1):
        sizes = {"min_terms": terms, "max_terms": terms, "min_digits": digits, "max_digits": digits}
        found = reasoning_gym.create_dataset("chain_sum", seed=SEED + grade, size=4 * total, **sizes)
        by_grade.append([])
        for problem in found:
            signed = re.findall(r"[+-]?\d+", problem["metadata"]["expression"].replace(" ", ""))
            key = tuple(sorted(term.lstrip("+") for term in signed))
            if key not in seen:
                seen.add(key)
                answer = "\n".join([*steps([int(term) for term in signed]), f"#### {problem['answer']}"])
                by_grade[-1].append({"question": problem["question"], "answer": answer, "grade": grade})
    together = [problem for turn in zip(*by_grade, strict=False) for problem in turn]
    return [{"task_id": i, **problem} for i, problem in enumerate(together[:total])]


def steps(terms: list[int]) -> list[str]:
    """Returns the sum worked out from left to right, one step a line."""
    lines, value = [], terms[0]
    for term in terms[1:]:
        lines.append(f"{value} {'-' if term < 0 else '+'} {abs(term)} = {value + term}")
        value += term
    return lines


def files() -> dict[str, str]:
    """Returns the text of each split's file."""
    rows, texts = iter(problems()), {}
    for split, size in SIZES.items():
        texts[split] = "".join(json.dumps(next(rows)) + "\n" for _ in range(size))
    return texts


if __name__ == "__main__":
    for name, text in files().items():
        (Path(__file__).parent / f"{name}.jsonl").write_text(text, encoding="utf-8")
