"""Statistics against enumeration and simulation; `benchmarks/intervals.py`, whose draws these use, repeats more."""

from itertools import combinations, product
from math import prod
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

from grpo_utils.evaluation import (
    across_seeds,
    best_of,
    bootstrap_mean,
    groups_differ,
    mcnemar,
    minimum_detectable_difference,
    pass_at_k,
    wilson,
)


@pytest.fixture(scope="module")
def benchmark(load_benchmark) -> ModuleType:
    return load_benchmark("intervals")


def chance_bounds(rate: float, repeats: int) -> tuple[float, float]:
    """What a simulation of an event with this rate shows in 998 of 1,000 cases, as rates."""
    low, high = stats.binom.ppf([0.001, 0.999], repeats, rate) / repeats
    return float(low), float(high)


@pytest.mark.parametrize(
    ("n", "c", "k"), [(n, c, k) for n in range(1, 6) for c in range(n + 1) for k in range(1, n + 1)]
)
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(n, c, k):
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(("n", "k", "p"), [(3, 2, 0.3), (5, 3, 0.1), (6, 6, 0.5)])
def test_pass_at_k_is_on_average_the_chance_that_one_of_k_passes(n, k, p):
    every = [(passed, prod(p if each else 1 - p for each in passed)) for passed in product([True, False], repeat=n)]
    expectation = sum(chance * pass_at_k(n, sum(passed), k) for passed, chance in every)
    assert expectation == pytest.approx(1 - (1 - p) ** k)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match=r"pass@k needs"):
        pass_at_k(n, c, k)


def test_a_bootstrap_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    intervals = [bootstrap_mean((rng.binomial(4, 0.4, size=120) / 4).tolist()) for _ in range(200)]
    covered = np.mean([interval.low <= 0.4 <= interval.high for interval in intervals])
    low, high = chance_bounds(0.95, 200)
    assert low <= covered <= high


def test_equal_values_have_an_interval_without_width():
    assert str(bootstrap_mean([0.5, 0.5])) == "0.500 [0.500, 0.500]"


def test_mcnemar_looks_only_at_tasks_that_changed():
    assert mcnemar([True, False], [True, False]) == 1.0
    assert mcnemar([False] * 5 + [True] * 100, [True] * 5 + [True] * 100) == pytest.approx(2 * 0.5**5)


def test_mcnemar_rejects_equal_policies_at_most_one_time_in_twenty():
    rng = np.random.default_rng(2)
    p_values = [mcnemar(*(rng.random((2, 100)) < 0.3).tolist()) for _ in range(400)]
    assert np.mean([p < 0.05 for p in p_values]) <= chance_bounds(0.05, 400)[1]


def test_wilson_agrees_with_the_published_eight_billion_run():
    interval = wilson(290, 500)
    assert (round(interval.low, 3), round(interval.high, 3)) == (0.536, 0.622)


def test_wilson_covers_93_to_97_percent_over_all_outcomes(benchmark):
    assert all(0.93 <= rate.rate <= 0.97 for rate in benchmark.one_proportion())


def test_the_detectable_difference_is_found_four_times_in_five(benchmark):
    by_t_test, by_mcnemar = (one.rate for one in benchmark.detectable(np.random.default_rng(3), 500, 500, 0.1))
    assert chance_bounds(0.8, 500)[0] <= by_t_test <= 0.87
    assert chance_bounds(0.8, 500)[0] - 0.1 <= by_mcnemar <= by_t_test


@pytest.mark.parametrize(("tasks", "power"), [(0, 0.8), (10, 0.0), (10, 1.0)])
def test_a_detectable_difference_needs_tasks_and_a_power(tasks, power):
    with pytest.raises(ValueError, match="tasks >= 1 and 0 < power < 1"):
        minimum_detectable_difference(tasks, 0.3, power)


def test_the_best_of_twelve_equal_checkpoints_is_found_better_too_often_unless_corrected(benchmark):
    naive, corrected = (one.rate for one in benchmark.best_of_twelve(np.random.default_rng(4), 300, 100, 0.0))
    assert naive > chance_bounds(0.05, 300)[1]
    assert corrected <= chance_bounds(0.05, 300)[1]


def test_a_true_difference_is_found_by_the_corrected_comparison():
    rng = np.random.default_rng(5)
    better = (rng.random((3, 200)) < 0.7) - (rng.random(200) < [[0.7], [0.7], [0.4]]).astype(float)
    best = best_of(better.tolist())
    assert best.index == 2
    assert best.p_value < 0.01
    assert best.difference.low > 0


def test_the_best_of_one_is_an_ordinary_comparison():
    differences = ([1.0] * 12 + [-1.0] * 8 + [0.0] * 80) * 2
    alone, plain = best_of([differences]), bootstrap_mean(differences)
    assert alone.index == 0
    assert alone.difference.low == pytest.approx(plain.low, abs=0.01)
    assert alone.difference.high == pytest.approx(plain.high, abs=0.01)


def test_checkpoints_that_change_nothing_have_a_p_value_of_one():
    best = best_of([[0.0] * 20] * 3)
    assert (str(best.difference), best.p_value) == ("0.000 [0.000, 0.000]", 1.0)


def test_an_interval_over_seeds_covers_where_one_over_tasks_does_not(benchmark):
    ours, naive = (one.rate for one in benchmark.several_seeds(np.random.default_rng(6), 200, 3, 0.1))
    low, high = chance_bounds(0.95, 200)
    assert low <= ours <= high
    assert naive < low


def test_equal_seeds_and_tasks_have_an_interval_without_width():
    assert str(across_seeds([[0.5, 0.5]] * 3)) == "0.500 [0.500, 0.500]"


@pytest.mark.parametrize(
    ("compare", "table"), [(best_of, []), (best_of, [[]]), (across_seeds, [[1, 0]] * 2), (across_seeds, [[1]] * 3)]
)
def test_tables_without_enough_rows_or_columns_are_refused(compare, table):
    with pytest.raises(ValueError, match="at least"):
        compare(table)


def test_groups_differ_by_chance_one_time_in_twenty_and_by_difficulty_only_unless_it_is_accounted_for(benchmark):
    by_chance, by_difficulty, within = (one.rate for one in benchmark.equal_groups(np.random.default_rng(7), 200, 60))
    assert max(by_chance, within) <= chance_bounds(0.05, 200)[1] < by_difficulty


def test_groups_that_differ_are_found_and_agree_with_the_exact_test():
    passed, group = [1] * 40 + [0] * 60 + [1] * 60 + [0] * 40, ["a"] * 100 + ["b"] * 100
    _, exact = stats.fisher_exact([[40, 60], [60, 40]])
    assert groups_differ(passed, group) == pytest.approx(exact, rel=0.3)


def test_equal_outcomes_do_not_differ():
    assert groups_differ([0, 0, 0, 0], "abab") == 1.0


@pytest.mark.parametrize(("outcomes", "groups", "within"), [([], "", ""), ([1], "ab", ""), ([1, 0], "ab", "c")])
def test_tasks_without_outcome_or_label_are_refused(outcomes, groups, within):
    with pytest.raises(ValueError, match="for each an outcome and its labels"):
        groups_differ(outcomes, groups, within)
