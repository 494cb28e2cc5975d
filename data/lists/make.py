"""Makes the four files beside it, the same each time: `python data/lists/make.py`.

A question is about a list of things, and its worked solution numbers the things and stops where the answer stands. So
the answer is a rule to follow, not a table to know: no list stands in two questions, and there are more of them than
anybody could learn by heart.
"""

import json
import random
from pathlib import Path
from typing import Any

SIZES = {"prompt": 8, "train": 800, "validation": 60, "test": 150}
SEED = 20260106
SHORTEST, LONGEST = 5, 12
THINGS = """
apple bag ball banana bird book bottle box bread bus cake car cat chair clock coat coin cup dog door drum egg fish flag
flower fork glass hat horse key kite lamp leaf map milk moon nail orange pen phone plate ring rock rope shirt shoe soap
sock spoon star table tree
"""


def problem(rng: random.Random, grade: int) -> dict[str, Any]:
    """Returns a question in GSM8K's schema. Grade 1 numbers the whole list, 2 and 3 must know where to stop."""
    things = rng.sample(THINGS.split(), rng.randint(SHORTEST, LONGEST))
    place = rng.randrange(1, len(things))  # of the thing that is asked for, counted from 0
    listed = f"on this list: {', '.join(things)}?"
    if grade == 1:
        question, numbered, last = f"How many things are {listed}", things, []
    elif grade == 2:
        question, numbered, last = f"At which place is {things[place]} {listed}", things[: place + 1], []
    else:
        question, numbered = f"How many things come before {things[place]} {listed}", things[:place]
        last = [things[place]]  # which is not counted
    steps = [*(f"{number} {thing}" for number, thing in enumerate(numbered, start=1)), *last]
    return {"question": question, "answer": f"{', '.join(steps)}.\n#### {len(numbered)}", "grade": grade}


def files() -> dict[str, str]:
    """Returns the text of each split's file; the grades take turns."""
    rng, seen = random.Random(SEED), set()
    rows: list[dict[str, Any]] = []
    while len(rows) < sum(SIZES.values()):
        row = problem(rng, len(rows) % 3 + 1)
        listed = row["question"].partition(":")[2]
        if listed not in seen:
            seen.add(listed)
            rows.append({"task_id": len(rows), **row})
    lines = iter(rows)
    return {split: "".join(json.dumps(next(lines)) + "\n" for _ in range(size)) for split, size in SIZES.items()}


if __name__ == "__main__":
    for name, text in files().items():
        (Path(__file__).parent / f"{name}.jsonl").write_text(text, encoding="utf-8")
