from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest

from thunder_tune.executors.kernels import alone
from thunder_tune.executors.kernels.choices import FOLDER, fastest, first_as_good, kept_choice

PROBLEM = ("NVIDIA H200", 130100, "bfloat16", 128)
ALGORITHMS = [bytes([i]) * 64 for i in range(4)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "thunder-tune" / FOLDER


def never():
    raise AssertionError("a choice is known")


def test_the_first_choice_stands(folder):
    assert kept_choice(PROBLEM, ALGORITHMS, lambda: 2) == 2
    assert kept_choice(PROBLEM, ALGORITHMS, never) == 2
    assert len(list(folder.iterdir())) == 1


def test_it_is_known_by_its_configuration_not_by_its_place():
    kept_choice(PROBLEM, ALGORITHMS, lambda: 2)
    assert kept_choice(PROBLEM, ALGORITHMS[::-1], never) == 1


def test_it_is_made_with_the_device_to_itself(monkeypatch):
    events = []

    @contextmanager
    def hold():
        events.append("begin")
        yield
        events.append("end")

    monkeypatch.setattr(alone, "_hold", hold)
    assert kept_choice(PROBLEM, ALGORITHMS, lambda: events.append("timed") or 1) == 1
    assert kept_choice(PROBLEM, ALGORITHMS, never) == 1
    assert events == ["begin", "timed", "end"]


def test_who_waited_for_the_device_takes_what_was_chosen_meanwhile(monkeypatch):
    @contextmanager
    def hold():
        monkeypatch.setattr(alone, "_hold", nullcontext)
        assert kept_choice(PROBLEM, ALGORITHMS, lambda: 3) == 3
        yield

    monkeypatch.setattr(alone, "_hold", hold)
    assert kept_choice(PROBLEM, ALGORITHMS, never) == 3


@pytest.mark.parametrize("place", range(len(PROBLEM)))
def test_another_problem_has_a_choice_of_its_own(place):
    kept_choice(PROBLEM, ALGORITHMS, lambda: 2)
    other = (*PROBLEM[:place], "other", *PROBLEM[place + 1 :])
    assert kept_choice(other, ALGORITHMS, lambda: 0) == 0


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"algorithm": 3}', '{"algorithm": "x"}'])
def test_a_damaged_entry_is_a_miss_and_is_replaced(folder, damage):
    kept_choice(PROBLEM, ALGORITHMS, lambda: 2)
    (entry,) = folder.iterdir()
    entry.write_text(damage)
    assert kept_choice(PROBLEM, ALGORITHMS, lambda: 1) == 1
    assert kept_choice(PROBLEM, ALGORITHMS, never) == 1


def test_an_algorithm_that_is_not_offered_any_more_is_a_miss():
    kept_choice(PROBLEM, ALGORITHMS, lambda: 3)
    assert kept_choice(PROBLEM, ALGORITHMS[:3], lambda: 0) == 0
    assert kept_choice(PROBLEM, ALGORITHMS[:3], never) == 0


def test_where_nothing_can_be_written_each_chooses(tmp_path):
    (tmp_path / "thunder-tune").write_text("no folder")
    assert kept_choice(PROBLEM, ALGORITHMS, lambda: 2) == 2
    assert kept_choice(PROBLEM, ALGORITHMS, lambda: 3) == 3


def test_of_two_who_choose_at_once_one_prevails():
    def choose():
        assert kept_choice(PROBLEM, ALGORITHMS, lambda: 1) == 1  # someone is faster
        return 2

    assert kept_choice(PROBLEM, ALGORITHMS, choose) == 1


def _choose(index):
    return kept_choice(PROBLEM, ALGORITHMS, partial(int, index % 4))


def test_processes_agree():
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("fork")) as executor:
        assert len(set(executor.map(_choose, range(40)))) == 1


def test_what_needs_no_device_is_prepared_before_and_only_where_nothing_is_known(monkeypatch):
    events = []

    @contextmanager
    def hold():
        events.append("alone")
        yield

    monkeypatch.setattr(alone, "_hold", hold)
    prepare = partial(events.append, "prepared")
    assert kept_choice(PROBLEM, ALGORITHMS, lambda: 1, prepare=prepare) == 1
    assert kept_choice(PROBLEM, ALGORITHMS, never, prepare=never) == 1
    assert events == ["prepared", "alone"]


@pytest.mark.parametrize(
    ("times", "expected"),
    [([1.0], 0), ([1.0, 0.9], 1), ([1.0, 0.98], 0), ([3.0, 1.02, 1.0], 1), ([2.0, 1.0, 1.0], 1)],
)
def test_of_equals_the_most_promising_one_is_taken(times, expected):
    assert first_as_good(times) == expected


@pytest.mark.parametrize(("failing", "expected"), [({"one"}, "two"), ({"one", "two"}, "one")])
def test_those_that_fail_are_left_out(failing, expected):
    assert fastest(("one", "two"), lambda name: name not in failing) == expected
