"""Statistics against enumeration and simulation; `benchmarks/intervals.py`, whose draws these use, repeats more."""

from itertools import combinations, product
from math import prod
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grpo_utils.evaluation import (
    Interval,
    across_seeds,
    best_of,
    difference,
    groups_differ,
    holm,
    minimum_detectable_difference,
    mixed_groups,
    mixed_share,
    pass_at_k,
    pass_curve,
    rate,
    verdict,
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


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.integers(1, 6))
def test_a_pass_curve_is_the_mean_over_subsets_and_ends_with_the_share_of_tasks_ever_solved(passes, most):
    curve = pass_curve([min(c, 6) for c in passes], samples=6, most=most)
    assert list(curve) == [k for k in (1, 2, 4) if k < most] + [most]
    for k, point in curve.items():
        subsets = [list(combinations([True] * c + [False] * (6 - c), k)) for c in passes]
        assert point.value == pytest.approx(np.mean([sum(map(any, each)) / len(each) for each in subsets]))
        assert 0 <= point.low <= point.value <= point.high <= 1
    assert pass_curve(passes, samples=6)[6].value == pytest.approx(np.mean([c > 0 for c in passes]))


@pytest.mark.parametrize(("passes", "samples", "most"), [([], 4, 4), ([1], 4, 5), ([1], 4, 0), ([5], 4, 4)])
def test_a_pass_curve_refuses_no_task_and_impossible_counts(passes, samples, most):
    with pytest.raises(ValueError, match=r"at least one task|pass@k needs"):
        pass_curve(passes, samples, most)


def test_the_band_of_a_pass_curve_covers_the_truth(benchmark):
    (found,) = benchmark.pass_at_eight(np.random.default_rng(1), 200)
    assert found.rate >= chance_bounds(0.93, 200)[0]


def test_mixed_groups_are_forecast_without_bias_for_tasks_that_were_chosen(benchmark):
    source = np.random.default_rng(2)
    ours, naive, covers = benchmark.forecasts(source, 60, "where", "0", "93 %", benchmark.spread_chances)
    assert abs(ours.off.value) <= 0.01 + 2 * (ours.off.high - ours.off.value)  # four standard errors
    assert naive.off.low > 0.03
    assert covers.rate >= chance_bounds(0.93, 60)[0]


@pytest.mark.parametrize(("passes", "chance"), [([0] * 50, 0.0), ([8] * 50, 0.0), ([4], 1.0), ([0], 0.0)])
def test_tasks_that_are_all_alike_have_a_forecast(passes, chance):
    forecast = mixed_groups(passes, samples=8, size=8)
    assert len(forecast) == len(passes)
    assert forecast == pytest.approx([chance] * len(passes), abs=0.02 if len(passes) > 1 else 0.6)
    assert all(0 <= each <= 1 for each in forecast)


def test_a_group_of_one_is_never_mixed_and_no_task_has_no_forecast():
    assert mixed_groups([0, 3, 8], samples=8, size=1) == pytest.approx([0, 0, 0])
    with pytest.raises(ValueError, match="at least one task"):
        mixed_groups([], samples=8, size=8)


@pytest.mark.parametrize(("passes", "samples", "size"), [([9], 8, 8), ([-1], 8, 8), ([1], 8, 0), ([0], 0, 8)])
def test_a_forecast_of_what_cannot_be_is_refused(passes, samples, size):
    for forecast in (mixed_groups, mixed_share):
        with pytest.raises(ValueError, match="needs samples >= 1, size >= 1 and from 0 to"):
            forecast(passes, samples, size)


def test_the_share_of_mixed_groups_is_the_mean_over_the_chosen_tasks_within_its_interval():
    passes = [0] * 60 + [1] * 20 + [4] * 20 + [8] * 5
    share = mixed_share(passes, 8, 8, low=0.01, high=0.99)
    assert share.value == pytest.approx(np.mean(mixed_groups(passes, 8, 8)[60:100]))
    assert share.low < share.value < share.high
    assert mixed_share([0, 8], 8, 8, low=0.01, high=0.99) == Interval(0.0, 0.0, 1.0)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_a_rate_lies_in_its_interval_and_fails_as_it_passes(shares):
    found, mirrored = rate(shares), rate([1 - share for share in shares])
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.low < found.high
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - found.high, 1 - found.low))


def test_a_rate_is_that_of_two_more_successes_and_two_more_failures():
    share = (290 + 2) / 504
    reach = stats.t.ppf(0.975, 503) * (share * (1 - share) / 503) ** 0.5
    found = rate([1.0] * 290 + [0.0] * 210)
    assert (found.value, found.low, found.high) == pytest.approx((0.58, share - reach, share + reach))
    wilson = stats.binomtest(290, 500).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((wilson.low, wilson.high), abs=0.001)


DIFFERENCES = st.lists(st.floats(-1, 1) | st.sampled_from([-1.0, 0.0, 0.0, 0.0, 1.0]), min_size=1, max_size=60)


@settings(deadline=None)
@given(DIFFERENCES, st.sampled_from([1.0, 0.25, 3.0]))
def test_an_interval_of_a_difference_leaves_zero_out_exactly_when_the_test_finds_it(values, largest):
    change = difference([largest * value for value in values], largest)
    assert -largest <= change.low <= change.high <= largest
    assert change.low - 1e-9 <= change.value <= change.high + 1e-9
    assert (change.low > 0 or change.high < 0) == (change.p_value < 0.05)
    assert change.verdict == ("up" if change.low > 0 else "down" if change.high < 0 else "undecided")


@settings(deadline=None)
@given(DIFFERENCES)
def test_a_difference_the_other_way_round_is_its_mirror(values):
    change, back = difference(values), difference([-value for value in values])
    assert (back.low, back.high, back.p_value) == pytest.approx((-change.high, -change.low, change.p_value))
    unit = difference([100 * value for value in values], 100)
    assert (unit.low, unit.high, unit.p_value) == pytest.approx((100 * change.low, 100 * change.high, change.p_value))


@pytest.mark.parametrize("estimate", [rate, difference])
@pytest.mark.parametrize("values", [[], [0.5, 1.1], [-1.1, 0.5], [0.5, float("nan")]])
def test_values_out_of_range_and_no_task_are_refused(estimate, values):
    with pytest.raises(ValueError, match=r"at least one task|A task's value must be from"):
        estimate(values)


def test_a_rate_below_zero_is_refused_and_a_difference_is_held_to_the_largest():
    with pytest.raises(ValueError, match=r"from 0 to 1; here is one of -0\.5\."):
        rate([0.0, -0.5])
    with pytest.raises(ValueError, match=r"from -0\.5 to 0\.5; here is one of 0\.75\."):
        difference([0.25, 0.75], largest=0.5)
    assert difference([1.5], largest=2.0).value == 1.5


def test_few_changed_tasks_are_undecided_and_many_are_not():
    assert difference([0.0] * 120).verdict == "undecided"
    assert difference([1.0] * 3 + [0.0] * 117).verdict == "undecided"
    assert difference([1.0] * 8 + [0.0] * 112).verdict == "up"
    assert difference([-1.0] * 8 + [0.0] * 112).verdict == "down"


def test_every_exact_row_is_covered_at_least_93_times_in_100_by_ours_alone(benchmark):
    paired, single = (
        {name: every[name] for name in every if name != "bootstrap"}  # it takes most of the time
        for every in (benchmark.PAIRED_METHODS, benchmark.SINGLE_METHODS)
    )
    differences = [*benchmark.paired_exactly(paired), *benchmark.worst("gained", paired)]
    shares = [*benchmark.rates_exactly(single), *benchmark.worst("rate", single)]
    for rows in (differences, shares):
        assert min(row.ours for row in rows) >= benchmark.PROMISE
        assert min(row.covered["t"] for row in rows) < 0.5
    assert min(row.covered["Wilson"] for row in shares) < benchmark.PROMISE


@pytest.mark.parametrize(("gained", "tasks"), [(0.02, 30), (0.3, 60)])
def test_sampled_completions_are_covered_as_often_within_chance(benchmark, gained, tasks):
    change = benchmark.Change(gained, base=(0.02, 0.98))
    outcomes = benchmark.drawn(change.truth, change.draw(np.random.default_rng(3), 8, (1000, tasks)))
    row = benchmark.coverage("what", 8, outcomes, benchmark.PAIRED_METHODS)
    assert row.ours >= chance_bounds(benchmark.PROMISE, 1000)[0]
    assert row.covered["t"] < row.ours


def test_the_mean_change_of_a_simulation_is_the_truth_it_names(benchmark):
    for change in benchmark.CHANGES.values():
        found = change.draw(np.random.default_rng(4), 8, (200, 100))
        assert abs(found.mean() - change.truth) < 4 * found.std() / found.size**0.5


def test_exact_outcomes_have_all_the_chance_and_the_truth_as_their_mean(benchmark):
    for outcomes in (benchmark.all_paired(60, 0.05, 0.02), benchmark.all_single(60, 0.05)):
        assert outcomes.chances.sum() == pytest.approx(1)
        assert outcomes.chances @ outcomes.table.mean(axis=1) == pytest.approx(outcomes.truth)


@pytest.mark.parametrize("test", ["by_difference", "by_mcnemar"])
def test_false_alarms_are_those_of_every_outcome(benchmark, test):
    p_value, tasks = getattr(benchmark, test), 14
    lost = benchmark.most_lost(tasks, p_value)
    for changed in range(tasks + 1):
        found = [p_value(changed - down, down, tasks) < 0.05 for down in range(changed + 1)]
        assert found == [min(down, changed - down) <= lost[changed] for down in range(changed + 1)]


def test_equal_policies_are_called_different_about_one_time_in_twenty_at_most(benchmark):
    for found in map(benchmark.false_alarms, (30, 120)):
        assert found.mcnemar <= 0.05
        assert found.difference <= 0.055
        assert found.apart < 0.03


def by_closure(p_values: list[float]) -> list[float]:
    """Holm's correction in another way: a question is held by its worst Bonferroni test of all sets that it is in."""
    sets = [each for size in range(1, len(p_values) + 1) for each in combinations(range(len(p_values)), size)]
    worst = {each: min(1.0, len(each) * min(p_values[i] for i in each)) for each in sets}
    return [max(p for each, p in worst.items() if i in each) for i in range(len(p_values))]


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_is_the_closure_of_bonferroni(p_values):
    corrected = holm(p_values)
    assert corrected == pytest.approx(by_closure(p_values))
    assert all(before <= after <= 1 for before, after in zip(p_values, corrected, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert sorted(corrected) == [corrected[i] for i in order]


def test_holm_corrects_by_hand():
    assert holm([]) == []
    assert holm([0.2]) == [0.2]
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("value", "p_value", "word"),
    [
        (0.1, 0.049, "up"),
        (-0.1, 0.049, "down"),
        (0.1, 0.05, "undecided"),
        (-0.1, 1.0, "undecided"),
        (0.1, float("nan"), "undecided"),
    ],
)
def test_a_verdict_is_up_or_down_only_by_a_small_p_value(value, p_value, word):
    assert verdict(value, p_value) == word


def test_the_detectable_difference_is_found_four_times_in_five(benchmark):
    by_t_test, by_ours = (one.rate for one in benchmark.detectable(np.random.default_rng(3), 300, 500, 0.1))
    assert chance_bounds(0.8, 300)[0] <= by_t_test <= 0.87
    assert chance_bounds(0.8, 300)[0] - 0.03 <= by_ours <= by_t_test


@pytest.mark.parametrize(("tasks", "power"), [(0, 0.8), (10, 0.0), (10, 1.0)])
def test_a_detectable_difference_needs_tasks_and_a_power(tasks, power):
    with pytest.raises(ValueError, match="tasks >= 1 and 0 < power < 1"):
        minimum_detectable_difference(tasks, 0.3, power)


def test_the_best_of_twelve_equal_checkpoints_is_found_better_too_often_unless_corrected(benchmark):
    naive, corrected = (one.rate for one in benchmark.best_of_twelve(np.random.default_rng(4), 200, 100, 0.0))
    assert naive > chance_bounds(0.05, 200)[1]
    assert corrected <= chance_bounds(0.05, 200)[1]


def test_a_true_difference_is_found_by_the_corrected_comparison():
    rng = np.random.default_rng(5)
    better = (rng.random((3, 200)) < 0.7) - (rng.random(200) < [[0.7], [0.7], [0.4]]).astype(float)
    best = best_of(better.tolist())
    assert best.index == 2
    assert best.p_value < 0.01
    assert best.difference.low > 0


def test_the_best_of_one_is_an_ordinary_comparison():
    differences = ([1.0] * 12 + [-1.0] * 8 + [0.0] * 80) * 2
    alone, plain = best_of([differences]), difference(differences)
    assert alone.index == 0
    assert alone.difference.low == pytest.approx(plain.low, abs=0.01)
    assert alone.difference.high == pytest.approx(plain.high, abs=0.01)


def test_checkpoints_that_change_nothing_have_a_p_value_of_one_and_an_interval_with_a_width():
    best = best_of([[0.0] * 20] * 3)
    assert (best.difference.value, best.p_value) == (0.0, 1.0)
    assert best.difference.low < -0.05
    assert best.difference.high > 0.05


def test_the_interval_of_the_best_leaves_zero_out_exactly_when_the_test_finds_it():
    rng = np.random.default_rng(8)
    tables = [(rng.random((3, 60)) < 0.2).astype(float) - (rng.random((3, 60)) < 0.08) for _ in range(200)]
    found = [best_of(table.tolist()) for table in tables]
    apart = [best.difference.low > 0 or best.difference.high < 0 for best in found]
    assert apart == [best.p_value < 0.05 for best in found]
    assert 0.1 < np.mean(apart) < 0.9


def test_rare_gains_of_the_best_are_covered(benchmark):
    _, ours = benchmark.best_interval(np.random.default_rng(9), 100, "where", benchmark.rarely_gained)
    assert ours.rate >= chance_bounds(benchmark.PROMISE, 100)[0]


def test_an_interval_over_seeds_covers_where_one_over_tasks_does_not(benchmark):
    ours, naive = (one.rate for one in benchmark.several_seeds(np.random.default_rng(6), 200, 3, 0.1))
    low, high = chance_bounds(0.95, 200)
    assert low <= ours <= high
    assert naive < low


def test_rare_gains_of_several_seeds_are_covered_where_a_t_interval_over_tasks_does_not(benchmark):
    ours, naive = (one.rate for one in benchmark.rare_gains(np.random.default_rng(10), 300, "", same=True, spread=0.0))
    assert ours >= chance_bounds(benchmark.PROMISE, 300)[0]
    assert naive < ours - 0.03


def test_equal_seeds_and_tasks_have_an_interval_with_a_width():
    found = across_seeds([[0.0] * 30] * 3)
    assert (found.value, found.low) == (0.0, -found.high)
    assert found.high == pytest.approx(difference([0.0] * 30).high)


@pytest.mark.parametrize(
    ("compare", "table"), [(best_of, []), (best_of, [[]]), (across_seeds, [[1, 0]] * 2), (across_seeds, [[1]] * 3)]
)
def test_tables_without_enough_rows_or_columns_are_refused(compare, table):
    with pytest.raises(ValueError, match="at least"):
        compare(table)


def test_groups_differ_by_chance_one_time_in_twenty_and_by_difficulty_only_unless_it_is_accounted_for(benchmark):
    by_chance, by_difficulty, within = (one.rate for one in benchmark.equal_groups(np.random.default_rng(7), 60, 60))
    assert max(by_chance, within) <= chance_bounds(0.05, 60)[1] < by_difficulty


def test_groups_that_differ_are_found_and_agree_with_the_exact_test():
    passed, group = [1] * 40 + [0] * 60 + [1] * 60 + [0] * 40, ["a"] * 100 + ["b"] * 100
    _, exact = stats.fisher_exact([[40, 60], [60, 40]])
    assert groups_differ(passed, group) == pytest.approx(exact, rel=0.3)


def test_equal_outcomes_do_not_differ():
    assert groups_differ([0, 0, 0, 0], "abab") == 1.0


@pytest.mark.parametrize(("outcomes", "groups", "within"), [([], "", ""), ([1], "ab", ""), ([1, 0], "ab", "c")])
def test_tasks_without_outcome_or_label_are_refused(outcomes, groups, within):
    with pytest.raises(ValueError, match="for each an outcome, a number, and its labels"):
        groups_differ(outcomes, groups, within)


def test_what_is_no_number_is_refused_and_named():
    nan = float("nan")
    with pytest.raises(ValueError, match="here is one of nan"):
        rate([0.5, nan])
    for function in (best_of, lambda rows: across_seeds(rows * 3)):
        for bad in (nan, 5.0):
            with pytest.raises(ValueError, match="must be from -1 to 1"):
                function([[bad, 0.0, 1.0]])
    with pytest.raises(ValueError, match="an outcome, a number"):
        groups_differ([nan, 1.0, 0.0], "aab")
