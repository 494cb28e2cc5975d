"""What of an assert travels to the candidate, and that the split means what Python means."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_utils.sandbox import Sandbox
from grpo_utils.sandbox.judge.planner import plan
from grpo_utils.sandbox.judge.session import Unsupported as UnsupportedTest

CODE = """
import math
calls = []
def f(x):
    calls.append(x)
    return x
def g(*args):
    return list(args)
def bad(x):
    raise ValueError("no")
def count():
    return len(calls)
"""

constants = st.sampled_from(
    ["0", "1", "-2", "2.5", "True", "None", "'ab'", "''", "[1, 2]", "(1, 2)", "{'a': 1}", "{1, 2}"]
)


def bigger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.sampled_from(["+", "-", "*", "==", "!=", "<", "in", "is", "and", "or"])
    one = st.sampled_from(
        ["f({})", "bad({})", "(not {})", "len({})", "abs({})", "sorted({})", "str({})",
         "{}[0]", "f({})[0]", "g({})[-1]", "f({}).upper()", "isinstance({}, int)", "[f(x) for x in {}]",
         "(lambda y: f(y))({})", "[f({}), [x for x in (1, 2)]]", "all(f(x) for x in {})", "math.fabs({})", "repr({})"]
    )  # fmt: skip
    return (
        st.builds(str.format, one, inner)
        | st.builds("({} {} {})".format, inner, binary, inner)
        | st.builds("g({}, {})".format, inner, inner)
        | st.builds("({} < {} < {})".format, inner, inner, inner)
        | st.builds("({} if {} else {})".format, inner, inner, inner)
        | st.just("count()")
    )


expressions = st.recursive(constants, bigger, max_leaves=6)


def outcome_in_python(tests: list[str]) -> list[str]:
    """What plain Python says: one namespace, each assert in turn."""
    space: dict[str, object] = {}
    exec(CODE, space)
    outcomes = []
    for test in tests:
        try:
            exec(test, space)
            outcomes.append("passed")
        except AssertionError:
            outcomes.append("failed")
        except Exception:  # a random assert may raise anything, and the sandbox calls all of it an error
            outcomes.append("error")
    return outcomes


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@given(st.lists(expressions, min_size=1, max_size=3))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_split_agrees_with_python(sandbox: Sandbox, expressions: list[str]) -> None:
    tests = [f"assert {expression}" for expression in expressions]
    verdict = sandbox.check(CODE, tests)
    assert list(verdict.outcomes) == outcome_in_python(tests)


@pytest.mark.parametrize(
    ("test", "names_in_calls"),
    [
        ("assert f(1) == g(2)", [{"f"}, {"g"}]),
        ("assert abs(f(1) - 2) < 1e-6", [{"f"}]),
        ("assert sorted(f([1])) == [1]", [{"f"}]),
        ("assert f(sorted([2, 1])) == [1]", [{"f", "sorted"}]),
        ("assert f(1).startswith('secret')", [{"f"}]),
        ("assert make(1)(2) == 3", [{"make"}]),
        ("assert __import__('math').isclose(f(1), 0.3)", [{"f"}]),
    ],
)
def test_only_calls_of_the_candidate_travel(test: str, names_in_calls: list[set[str]]) -> None:
    calls = [code for code, _ in plan((test,)).calls]
    assert [set(call.co_names) for call in calls] == names_in_calls
    expected = {"secret", 1e-6, 0.3}
    assert not [call for call in calls if expected & {item for item in call.co_consts if item in expected}]


@pytest.mark.parametrize(
    "test",
    ["assert [f(n) for n in (1, 2)] == [1, 2]", "assert f(1) or f(2)", "x = f(1)\nassert x", "assert f(1).pop()"],
)
def test_what_cannot_be_split_runs_as_a_body(test: str) -> None:
    planned = plan((test,))
    assert (planned.calls, planned.asserts, planned.used) == ((), (), {"f"})


@pytest.mark.parametrize("name", ["eval", "exec", "compile", "open", "input", "breakpoint"])
def test_dangerous_builtins_are_not_handed_to_the_tests(name: str) -> None:
    with pytest.raises(UnsupportedTest):
        plan((f"assert {name}(f(1)) == 1",))
    assert plan((f"assert {name}(1) == 1",), (name,)).calls  # unless the candidate has one of that name


@pytest.mark.parametrize("call", ["os.getenv(f(1))", "subprocess.run(f(1))", "pickle.loads(f(1))"])
def test_modules_that_act_are_not_handed_to_the_tests(call: str) -> None:
    with pytest.raises(UnsupportedTest):
        plan((f"assert {call}",))
