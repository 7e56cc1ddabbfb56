from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace

import psutil
import pytest

from thunder_tune.errors import ConflictError, StorageError
from thunder_tune.study import lease as leases
from thunder_tune.study import run_study
from thunder_tune.study.lease import holding, life_of, this_process
from thunder_tune.testing.fake_pool import FakePool, synthetic_description

ELSEWHERE = {"host": "far", "machine": "another"}


@pytest.fixture
def quick(monkeypatch):
    """Beat and look a hundred times a second."""
    monkeypatch.setattr(leases, "BEAT_S", 0.01)


@pytest.fixture
def notices():
    return []


def process_that_ended():
    child = subprocess.Popen([sys.executable, "-c", ""])
    started = psutil.Process(child.pid).create_time()
    child.wait()
    return replace(this_process(), process_id=child.pid, process_started=started)


def test_a_study_is_free_before_and_after(database):
    with holding(database, "study"):
        found = database.lease("study")
        assert (found.owner.process_id, found.is_cancelled) == (os.getpid(), False)
    assert database.lease("study") is None


def test_a_second_run_is_refused_in_one_line_that_says_who_runs_it(database):
    with (
        holding(database, "study"),
        pytest.raises(
            ConflictError, match=f"run by process {os.getpid()} on .* UTC already: wait"
        ),
        holding(database, "study"),
    ):
        raise AssertionError("two runs at once")
    with holding(database, "study"), holding(database, "another"):
        pass


def test_a_refused_run_changes_nothing(study, spec, dimensions, costs, database):
    study(spec(trials=3), dimensions(), costs())
    with (
        holding(database, "study"),
        pytest.raises(ConflictError, match="is run by process"),
    ):
        study(spec(trials=8), dimensions(), costs())
    assert database.study("study").spec.trials == 3
    assert database.study("study").state == "done"


def test_a_process_of_this_machine_that_is_gone_is_replaced_at_once(
    database, notices, monkeypatch
):
    monkeypatch.setattr(leases, "BEAT_S", 3600.0)
    database.take_lease("study", process_that_ended())
    with holding(database, "study", notice=notices.append):
        assert database.lease("study").owner.process_id == os.getpid()
    assert len(notices) == 1
    assert "is dead: going on from what it left" in notices[0]


def test_a_run_that_could_not_give_its_lease_back_does_not_bar_its_own_process(
    database, monkeypatch
):
    def gone(study, token):
        raise StorageError("the server is gone")

    with monkeypatch.context() as patched:
        patched.setattr(database, "release_lease", gone)
        with holding(database, "study"):
            pass
    assert database.lease("study") is not None
    with holding(database, "study"):
        pass


def test_a_later_process_of_the_same_id_is_another_one(quick, database, notices):
    owner = this_process()
    owner = replace(owner, process_id=os.getppid(), process_started=owner.process_started - 9e6)
    assert life_of(owner) == "unknown"
    database.take_lease("study", owner)
    with holding(database, "study", notice=notices.append):
        pass
    assert [text.partition(" ")[0] for text in notices] == ["waiting", "process"]


def test_a_process_elsewhere_that_gives_no_sign_of_life_is_replaced(quick, database, notices):
    database.take_lease("study", replace(this_process(), **ELSEWHERE))
    with holding(database, "study", notice=notices.append) as lease:
        lease.check()
    assert "waiting for a sign of life of process" in notices[0]


def test_a_process_elsewhere_that_lives_is_left_alone_whatever_its_clock(quick, database):
    owner = replace(this_process(), process_started=9e12, **ELSEWHERE)
    database.take_lease("study", owner)
    is_over = threading.Event()

    def live():
        while not is_over.wait(0.005):
            database.beat("study", owner.token)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        with (
            pytest.raises(ConflictError, match=r"is run by process \d+ on far since"),
            holding(database, "study"),
        ):
            raise AssertionError("two runs at once")
    finally:
        is_over.set()
        thread.join()
    assert database.lease("study").owner == owner


def test_while_nobody_can_write_nobody_is_found_dead(quick, database, monkeypatch):
    """A database that is locked keeps the owner from beating, too."""
    owner = replace(this_process(), **ELSEWHERE)
    database.take_lease("study", owner)
    take, looks = database.take_lease, []

    def locked(study, new, **options):
        if len(looks) == leases.DEAD_AFTER:
            database.beat("study", owner.token)  # it was waiting for the lock as well
        looks.append(options)
        return take(study, new, **options)

    monkeypatch.setattr(database, "take_lease", locked)
    with pytest.raises(ConflictError, match="is run by"), holding(database, "study"):
        raise AssertionError("two runs at once")


def test_who_lost_the_lease_stores_nothing_and_ends(
    spec, dimensions, costs, database, observer, monkeypatch
):
    """As of a controller that was suspended for an hour while another took its study over."""
    pool = FakePool(synthetic_description(dimensions()), costs())
    wait = pool.wait

    def suspended(timeout_s):
        if len(database.trials("study")) == 6:
            taken = database.lease("study")
            heir = replace(this_process(), **ELSEWHERE)
            assert database.take_lease("study", heir, instead_of=taken)
        return wait(timeout_s)

    monkeypatch.setattr(pool, "wait", suspended)
    monkeypatch.setattr(leases, "BEAT_S", 3600.0)
    with pytest.raises(ConflictError, match=r"no sign of life .* is run by process \d+ on far"):
        run_study(
            spec(trials=8), pool=pool, database=database, observer=observer, clock=pool.clock
        )
    assert len(database.trials("study")) == 6
    assert database.study("study").state == "running"  # as the heir has it
    assert database.lease("study").owner.host == "far"


@pytest.mark.parametrize("stage", ["describe", "wait", "compare"])
def test_a_study_can_be_cancelled_in_each_of_its_stages(
    spec, dimensions, costs, database, observer, monkeypatch, stage
):
    pool = FakePool(synthetic_description(dimensions()), costs())
    call, kill, is_killed = getattr(pool, stage), pool.cancel, threading.Event()

    def cancelled(*arguments):
        if not is_killed.is_set():
            assert database.ask_to_end("study", lease.token)
            lease.renew()
            # What blocks the controller's thread elsewhere blocks a thread beside it.
            assert stage == "wait" or is_killed.wait(60.0)
        return call(*arguments)

    monkeypatch.setattr(pool, "cancel", lambda: (is_killed.set(), kill()))
    monkeypatch.setattr(pool, stage, cancelled)
    with holding(database, "study") as lease:
        outcome = run_study(
            spec(trials=2),
            pool=pool,
            database=database,
            observer=observer,
            clock=pool.clock,
            lease=lease,
        )
    assert (outcome.state, outcome.stopped) == ("interrupted", "interrupted")
    assert database.study("study").state == "interrupted"
    assert "cancelled by thunder-tune cancel" in observer.notices
    assert len(database.trials("study", "search")) == (2 if stage == "compare" else 0)
