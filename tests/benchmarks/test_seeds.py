"""Seeds are kept as they are measured, and three of them have an interval."""

from grpo_utils.evaluation import across_seeds


def test_seeds_are_rows_and_three_have_an_interval_over_seeds_and_tasks(load_benchmark):
    script = load_benchmark("seeds")
    gained = {"0": [1.0, 0.0] * 20, "1": [1.0, 0.0, 0.0, 0.0] * 10, "2": [0.0, 1.0] * 20}
    kept = {
        seed: {"chosen": "checkpoint-8", "processor": "one", "gains": {"GRPO, greedy": gains}}
        for seed, gains in gained.items()
    }
    page = script.page("cpu-lists", kept)
    assert f"| all | | {across_seeds(list(gained.values())).in_points()} |" in page
    assert "--seeds 0 1 2`" in page
    kept.pop("1")
    assert "Open: an interval over seeds takes 3." in script.page("cpu-lists", kept)
