"""The teacher's reward: soft failures, ledger, budget, hostile text, and chapter 9 at smoke size."""

import asyncio
import functools
import hashlib
import json
import os
import resource
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trl.trainer.utils import get_callable_name, is_async_callable

from grpo_utils import runs, training
from grpo_utils.rewards.teacher import KEY_VARIABLE, LedgerError, ask, chat, read_grade, teacher
from grpo_utils.runs import ROOT, RecipeError, Teacher

NOTEBOOK = ROOT / "notebooks" / "09_teacher_reward.ipynb"
REPLIES = json.loads((Path(__file__).parents[1] / "data" / "teacher_replies.json").read_text())
TAGS = ("thought", "answer")


class Server(ThreadingHTTPServer):
    request_queue_size = 64  # connections that may wait; the default turns some away when many come at once


class Endpoint:
    """An endpoint on a free port that answers every request with what `reply` says, and remembers the requests."""

    def __init__(self) -> None:
        self.status, self.reply, self.pause = 200, b"", 0.0
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.most_at_once = self._now = 0
        endpoint, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                with lock:
                    endpoint._now += 1
                    endpoint.most_at_once = max(endpoint.most_at_once, endpoint._now)
                    endpoint.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                    endpoint.headers.append(dict(self.headers))
                time.sleep(endpoint.pause)
                with lock:
                    endpoint._now -= 1
                self.send_response(endpoint.status)
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.end_headers()
                self.wfile.write(endpoint.reply)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.answers("9")

    def answers(self, text: str) -> None:
        self.reply = json.dumps({"choices": [{"message": {"content": text}}]}).encode()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    threading.Thread(target=functools.partial(made.server.serve_forever, poll_interval=0.01), daemon=True).start()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def grade(endpoint: Endpoint, tmp_path: Path) -> Callable[..., tuple[list[float | None], dict[str, float]]]:
    """Pays for completions with some settings; returns the rewards and the counts that go to the log."""

    def pay(completions: list[Any], prompts: list[Any] | None = None, **changes: Any) -> Any:
        url = f"http://127.0.0.1:{endpoint.server.server_port}/v1"
        settings = Teacher(**{"url": url, "model": "big", "weight": 0.25, "calls": 100} | changes)
        counts: dict[str, float] = {}
        paid = teacher(
            completions, settings=settings, tags=TAGS, ledger=tmp_path / "ledger", log_metric=counts.__setitem__,
            prompts=prompts or completions,  # each is a group of its own
        )  # fmt: skip
        return asyncio.run(paid), counts

    return pay


def thinking(*thoughts: str) -> list[str]:
    return [f"<thought>{thought}</thought><answer>1</answer>" for thought in thoughts]


# ------------------------------------------------------------------------------------------ grades


@pytest.mark.parametrize("row", REPLIES, ids=lambda row: row["name"])
def test_an_answer_is_read_as_a_grade_or_not_at_all(row, endpoint, grade):
    endpoint.reply = json.dumps(row["reply"]).encode()
    (paid,), counts = grade(thinking("a"))
    assert paid == (None if row["grade"] is None else pytest.approx(row["grade"]))
    assert counts == {"teacher/unreadable" if row["grade"] is None else "teacher/scored": 1}


@given(st.lists(st.tuples(st.text(max_size=3) | st.sampled_from("0123456789"), st.floats()), max_size=20))
def test_a_grade_lies_between_0_and_1_whatever_the_log_probabilities(tops):
    found = [{"token": token, "logprob": value} for token, value in tops]
    try:
        read = read_grade({"logprobs": {"content": [{"top_logprobs": found}]}})
    except ValueError:
        return
    assert -1e-9 <= read <= 1 + 1e-9


def test_no_reasoning_earns_0_and_asks_nobody(endpoint, grade):
    paid, counts = grade(["", "<answer>1</answer>", "<thought> </thought>", "<thought>never closed"])
    assert (paid, counts, endpoint.requests) == ([0.0] * 4, {}, [])


def test_the_teacher_reads_the_question_and_the_reasoning_and_not_the_answer(endpoint, grade):
    prompt = [{"role": "system", "content": "SYSTEM"}, {"role": "user", "content": "QUESTION"}]
    paid, _ = grade([[{"role": "assistant", "content": "<thought>WHY</thought><answer>CODE</answer>"}]], [prompt])
    asked = json.dumps(endpoint.requests[0]["messages"])
    assert paid == [1.0]
    assert "QUESTION" in asked
    assert "WHY" in asked
    assert "CODE" not in asked
    assert "SYSTEM" not in asked
    assert endpoint.requests[0]["messages"] == chat("QUESTION", "WHY")
    assert chat("6 * 7?", "Six times seven.")[-1]["content"] == (
        "Task:\n6 * 7?\n\nReasoning:\n[9f04e8b4]\nSix times seven.\n[9f04e8b4]\n\nGrade, one digit from 0 to 9:"
    )


# ------------------------------------------------------------------------------------------ ledger and budget


def test_equal_reasoning_is_asked_once_and_never_again(endpoint, grade):
    assert grade(thinking("a", "a", "b"), ["task"] * 3) == ([1.0] * 3, {"teacher/scored": 2})
    endpoint.answers("0")
    assert grade(thinking("b", "a"), ["task"] * 2) == ([1.0] * 2, {"teacher/from ledger": 2})
    assert len(endpoint.requests) == 2


def test_another_model_is_asked_anew(endpoint, grade):
    grade(thinking("a"))
    endpoint.answers("0")
    assert grade(thinking("a"), model="bigger") == ([0.0], {"teacher/scored": 1})


def test_the_budget_holds_over_calls_and_counts_failures_and_calls_that_a_kill_cut_short(endpoint, grade, tmp_path):
    grade(thinking("a"), calls=4)
    endpoint.status = 500
    with pytest.warns(UserWarning, match=r"answered none of 1 calls.*HTTP 500"):
        grade(thinking("b"), calls=4)
    endpoint.status = 200
    with closing(sqlite3.connect(tmp_path / "ledger")) as calls, calls:
        calls.execute("INSERT INTO calls VALUES ('cut short', 'asked', NULL)")
    paid, counts = grade(thinking("c", "d", "a"), calls=4)
    assert paid == [1.0, None, 1.0]
    assert counts == {"teacher/scored": 1, "teacher/over budget": 1, "teacher/from ledger": 1}
    assert len(endpoint.requests) == 3
    assert grade(thinking("e"), calls=4) == ([None], {"teacher/over budget": 1})


def test_trainings_that_share_a_ledger_share_its_budget(endpoint, tmp_path):
    url = f"http://127.0.0.1:{endpoint.server.server_port}/v1"
    settings = Teacher(url=url, model="big", weight=0.25, calls=10)
    endpoint.pause = 0.01

    def work(worker: int) -> int:
        chats = [chat("task", f"{worker} {i}") for i in range(8)]
        grades, _ = asyncio.run(ask(chats, settings, tmp_path / "ledger"))
        return sum(one is not None for one in grades)

    found: list[int] = []
    threads = [threading.Thread(target=lambda i=i: found.append(work(i))) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(found) == len(endpoint.requests) == 10


def test_trainings_that_ask_for_the_same_at_once_pay_for_it_once(endpoint, tmp_path):
    settings = Teacher(url=f"http://127.0.0.1:{endpoint.server.server_port}/v1", model="big", weight=0.25, calls=10)
    endpoint.pause = 0.2
    chats = [chat("task", thought) for thought in "abc"]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: asyncio.run(ask(chats, settings, tmp_path / "ledger")), range(3)))
    assert [grades for grades, _ in found] == [[1.0] * 3] * 3
    assert len(endpoint.requests) == 3


@contextmanager
def full_disk(ledger: Path) -> Iterator[None]:
    """A disk that takes no more bytes, as far as this process can tell."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def locked(ledger: Path) -> Iterator[None]:
    with closing(sqlite3.connect(ledger)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


@contextmanager
def damaged(ledger: Path) -> Iterator[None]:
    ledger.write_bytes(b"half of a page" * 100)
    yield


@contextmanager
def of_another_program(ledger: Path) -> Iterator[None]:
    with closing(sqlite3.connect(ledger)) as other, other:
        other.execute("CREATE TABLE calls (name TEXT)")
    yield


@pytest.mark.parametrize("fault", [full_disk, locked, damaged, of_another_program], ids=lambda fault: fault.__name__)
def test_a_ledger_that_cannot_be_used_is_one_sentence_and_no_call(fault, endpoint, grade, tmp_path, monkeypatch):
    monkeypatch.setattr("grpo_utils.rewards.teacher.LOCKED_SECONDS", 0.0)
    with fault(tmp_path / "ledger"), pytest.raises(LedgerError, match=r"ledger, cannot be used \(.+\): make room"):
        grade(thinking("a"))
    assert endpoint.requests == []


def test_no_more_requests_are_under_way_than_the_recipe_allows(endpoint, grade):
    endpoint.pause = 0.03
    paid, _ = grade(thinking(*"abcdefgh"), parallel=3)
    assert paid == [1.0] * 8
    assert 1 < endpoint.most_at_once <= 3


# ------------------------------------------------------------------------------------------ failures


@pytest.mark.parametrize("status", [302, 400, 401, 429, 503])
def test_a_refusal_is_none_is_counted_by_its_status_and_is_asked_again(status, endpoint, grade):
    endpoint.status = status
    with pytest.warns(UserWarning, match="answered none"):
        assert grade(thinking("a")) == ([None], {f"teacher/HTTP {status}": 1})
    endpoint.status = 200
    assert grade(thinking("a")) == ([1.0], {"teacher/scored": 1})
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize(
    "reply",
    [b"<html>Log in</html>", b"\xff", b'{"error": {"message": "overloaded"}}', b'{"choices": []}', b"[1]", b"[" * 9999],
    ids=["a page", "no text", "an error", "no choices", "a list", "no end"],
)
def test_a_reply_that_holds_no_completion_is_none_and_is_asked_again(reply, endpoint, grade):
    endpoint.reply = reply
    with pytest.warns(UserWarning, match="answered none"):
        assert grade(thinking("a")) == ([None], {"teacher/no completion": 1})
    endpoint.answers("9")
    assert grade(thinking("a")) == ([1.0], {"teacher/scored": 1})


def test_a_teacher_that_does_not_answer_in_time_is_none(endpoint, grade):
    endpoint.pause = 0.3
    with pytest.warns(UserWarning, match="answered none"):
        assert grade(thinking("a"), timeout=0.1) == ([None], {"teacher/timeout": 1})


def test_a_teacher_that_is_not_there_is_none(grade):
    with pytest.warns(UserWarning, match="answered none"):
        assert grade(thinking("a", "b"), url="http://127.0.0.1:9/v1") == ([None] * 2, {"teacher/unreachable": 2})


def test_a_group_is_graded_whole_or_not_at_all(endpoint, grade):
    paid, _ = grade([*thinking("a", "b", "c"), "no reasoning"], ["one", "one", "other", "one"], calls=1)
    assert paid == [None] * 4
    paid, _ = grade([*thinking("a", "c"), "no reasoning"], ["one", "other", "one"], calls=1)
    assert paid == [1.0, None, 0.0]


# ------------------------------------------------------------------------------------------ hostile text, secrets


@given(st.text(max_size=60))
def test_reasoning_cannot_contain_the_mark_that_ends_it(thought):
    content = chat("task", thought)[-1]["content"]
    mark = f"[{hashlib.sha256(thought.encode(errors='replace')).hexdigest()[:8]}]"
    assert content.count(mark) == 2
    assert content == chat("task", "")[-1]["content"].replace("[e3b0c442]\n\n[e3b0c442]", f"{mark}\n{thought}\n{mark}")


def test_the_key_goes_to_the_endpoint_and_into_no_file(endpoint, grade, tmp_path, monkeypatch):
    grade(thinking("a"))
    monkeypatch.setenv(KEY_VARIABLE, "planted0123456789")
    grade(thinking("b"))
    assert [headers.get("Authorization") for headers in endpoint.headers] == [None, "Bearer planted0123456789"]
    assert b"planted0123456789" not in (tmp_path / "ledger").read_bytes()
    assert "planted0123456789" not in runs.load_recipe("llama3-8b-mbpp-teacher").to_yaml()


# ------------------------------------------------------------------------------------------ recipes and the trainer


def test_a_teacher_that_weighs_as_much_as_the_tests_is_refused():
    with pytest.raises(RecipeError, match=r"teacher\.weight must be below the largest weight in rewards"):
        runs.load_recipe("llama3-8b-mbpp-teacher", {"teacher.weight": 1.0})


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8001/v1", "ftp://host/v1", "http://", "http:///v1", "https://me:key@host/v1"]
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(RecipeError, match=r"'teacher\.url'"):
        runs.load_recipe("llama3-8b-mbpp-teacher", {"teacher.url": url})


def test_the_recipe_with_a_teacher_is_the_one_without_and_its_budget_covers_every_completion(tmp_path):
    recipe = runs.load_recipe("llama3-8b-mbpp-teacher", {"grpo.scale_rewards": "group"})
    plain = runs.load_recipe("llama3-8b-mbpp-a100")
    assert recipe.teacher is not None
    assert recipe.model_copy(update={"teacher": None, "name": plain.name}) == plain
    completions = training.grpo_config(recipe, tmp_path).generation_batch_size
    assert recipe.teacher.calls == recipe.grpo["max_steps"] * completions


def test_the_trainer_awaits_the_reward_of_a_teacher_under_its_name(tmp_path):
    (reward,) = training.teacher_reward(runs.load_recipe("llama3-8b-mbpp-teacher"), tmp_path)
    assert is_async_callable(reward)
    assert get_callable_name(reward) == "teacher"
    assert training.teacher_reward(runs.load_recipe("cpu-code"), tmp_path) == []


def test_the_chapter_runs_on_a_smoke_training_is_found_done_and_leaves_no_server_behind(tmp_path):
    environment = os.environ | {"GRPO_OUTPUTS_DIR": str(tmp_path)}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "grpo_utils", *arguments, "--recipe", "smoke-code"],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return (tmp_path / "smoke-code" / "notebooks" / NOTEBOOK.name).read_text() if "--only" in arguments else ""

    run("train")
    executed = run("reproduce", "--only", "09")
    assert "the local teacher is closed" in executed
    folder = tmp_path / "smoke-code"
    assert (folder / "figures" / "teacher.png").is_file()
    assert sorted(path.name for path in folder.glob("teacher/checkpoints/checkpoint-*")) == [
        "checkpoint-1",
        "checkpoint-2",
    ]
    log = [entry for entry in runs.read_log(folder / "teacher" / "training_log.jsonl") if "reward" in entry]
    assert all(0 <= entry["rewards/teacher/mean"] <= 1 for entry in log)
    with closing(sqlite3.connect(folder / "teacher" / "teacher.sqlite")) as calls:
        outcomes = dict(calls.execute("SELECT outcome, count(*) FROM calls GROUP BY outcome"))
    assert outcomes["scored"] > 10
    assert not {"asked", "timeout", "unreachable"} & set(outcomes)
    assert "with teacher - tests alone" in executed
