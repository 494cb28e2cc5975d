"""Where the numbering of a list goes wrong."""

import pytest

from grpo_utils import tasks


@pytest.mark.parametrize(
    ("numbered", "is_right", "kind"),
    [
        ("1 bus, 2 egg, 3 door.", True, "right"),
        ("1 bus, 2 egg.", False, "stops too early"),
        ("1 bus, 2 egg, 3 door, 4 key.", False, "goes on too long"),
        ("1 bus, 2 door, egg, 3 key.", False, "goes on too long"),
        ("1 bus, 3 egg, 3 door.", False, "numbers wrongly"),
        ("1 bus, 2 door.", False, "numbers wrongly"),
        ("1 bus, 2 egg, 3 door.", False, "right work, other answer"),
    ],
)
def test_a_completion_is_sorted_by_what_it_numbers(load_benchmark, numbered, is_right, kind):
    script = load_benchmark("list_errors")
    row = {"task_id": 1, "question": "At which place is door on this list: bus, egg, door, key?", "answer": "3"}
    text = f"<reasoning>\n{numbered}\n</reasoning>\n<answer>\n3\n</answer>"
    assert script.kind_of(tasks.MathsTask.from_row(row, "here"), text, is_right) == kind
    assert kind in script.KINDS
    assert script.kind_of(tasks.MathsTask.from_row(row, "here"), numbered, False) == "no work in its tags"
