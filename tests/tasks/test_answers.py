"""Multiple choice and short texts: rows as data sets have them, answers as models write them, and the audit."""

import json
from typing import Any

import pytest

from grpo_utils import rewards, runs, tasks
from grpo_utils.rewards import audit
from grpo_utils.tasks import AnswerTask, DataError

CHOICE = {"question": "Which is a fruit?", "choices": ["a spoon", "an apple", "A"], "answer": 1}
TEXT = {"question": "Who wrote it?", "answers": ["Ada Lovelace", "Lovelace"]}


def task_of(row: dict) -> AnswerTask:
    return AnswerTask.from_row({"task_id": 0, **row}, "here")


@pytest.mark.parametrize("answer", [1, "B", "b", "an apple"])
def test_the_right_choice_is_named_by_place_letter_or_text(answer):
    assert task_of(CHOICE | {"answer": answer}).answers == ["B"]


@pytest.mark.parametrize(
    ("row", "said", "right"),
    [
        *(
            (CHOICE, said, True)
            for said in ("B", "b", "(B)", "B.", "**B**", "B. an apple", "B) Apple", "the apple", "Apple.")
        ),
        *(
            (CHOICE, said, False)
            for said in ("A", "C", "", "both", "A or B", "B. a spoon", "an", "spoon", "Bapple", "B C")
        ),
        (CHOICE | {"answer": 0}, "A spoon", True),
        (CHOICE | {"answer": 0}, "a", True),
        (CHOICE | {"answer": 1}, "a spoon", False),
        *((TEXT, said, True) for said in ("Ada Lovelace", "lovelace", "The Lovelace!", " Ada\nLovelace ")),
        *((TEXT, said, False) for said in ("Ada", "", "Ada Lovelace or Babbage", "!")),
    ],
)
def test_an_answer_counts_up_to_case_punctuation_and_articles(row, said, right):
    assert task_of(row).check(said).ok == right


@pytest.mark.parametrize(
    "row",
    [
        {"question": "?", "choices": ["x", "y"], "answer": 2},
        {"question": "?", "choices": ["x", "y"], "answer": "z"},
        {"question": "?", "choices": ["x", "y"]},
        {"question": "?", "choices": ["x"] * 27, "answer": 0},
        {"question": "?", "answers": []},
        {"question": "?", "answers": [" "]},
        {"question": "?", "answers": "Ada"},
    ],
)
def test_a_row_without_a_right_answer_is_refused_in_one_sentence(row):
    with pytest.raises(DataError, match=r"^here: [^\n]*\.$"):
        task_of(row)


def test_a_data_set_of_choices_is_read_asked_audited_and_paid(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path))
    (tmp_path / "quiz").mkdir()
    for split in ("train", "test"):
        rows = [CHOICE | {"task_id": number, "answer": number % 3} for number in range(30)]
        runs.write_file(tmp_path / "quiz" / f"{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    changes = {"dataset.name": "quiz", "rewards": {"correct": 1.0, "strict_format": 0.25}}
    recipe = runs.load_recipe("smoke-math", changes)
    batch = tasks.load_split(recipe, "train")
    assert batch[0].question(recipe.prompt).endswith("\nA. a spoon\nB. an apple\nC. A")
    report = audit.audit_recipe(recipe, {"train": batch})
    assert report.failures == []
    assert report.table.loc["wrong", "correct"] == 0.0
    columns: Any = tasks.columns(batch[:2])
    texts = [str(task.reference_answer(recipe.prompt)) for task in batch[:2]]
    assert rewards.correct(texts, tags=recipe.prompt.tags, **columns) == [1.0, 1.0]
    assert rewards.correct(texts[::-1], tags=recipe.prompt.tags, **columns) == [0.0, 0.0]
