"""Statistics against enumeration and simulation."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from grpo_utils.statistics import bootstrap_mean, mcnemar, pass_at_k, wilson


@pytest.mark.parametrize(
    ("n", "c", "k"), [(n, c, k) for n in range(1, 6) for c in range(n + 1) for k in range(1, n + 1)]
)
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(n, c, k):
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match=r"pass@k needs"):
        pass_at_k(n, c, k)


def test_a_bootstrap_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    intervals = [bootstrap_mean((rng.binomial(4, 0.4, size=120) / 4).tolist()) for _ in range(200)]
    covered = sum(interval.low <= 0.4 <= interval.high for interval in intervals)
    low, high = stats.binom.ppf([0.001, 0.999], 200, 0.95)
    assert low <= covered <= high


def test_equal_values_have_an_interval_without_width():
    assert str(bootstrap_mean([0.5, 0.5])) == "0.500 [0.500, 0.500]"


def test_mcnemar_looks_only_at_tasks_that_changed():
    assert mcnemar([True, False], [True, False]) == 1.0
    assert mcnemar([False] * 5 + [True] * 100, [True] * 5 + [True] * 100) == pytest.approx(2 * 0.5**5)


def test_mcnemar_rejects_equal_policies_at_most_one_time_in_twenty():
    rng = np.random.default_rng(2)
    p_values = [mcnemar(*(rng.random((2, 100)) < 0.3).tolist()) for _ in range(400)]
    assert sum(p < 0.05 for p in p_values) <= stats.binom.ppf(0.999, 400, 0.05)


def test_wilson_agrees_with_the_published_eight_billion_run():
    interval = wilson(290, 500)
    assert (round(interval.low, 3), round(interval.high, 3)) == (0.536, 0.622)
