from __future__ import annotations

import time

import psutil
import pytest

from thunder_tune.errors import WorkerError
from thunder_tune.testing.pool_contract import (
    PATIENCE_S,
    SETTING,
    WorkerPoolContract,
    collect,
    contender,
    run,
    trial,
)
from thunder_tune.testing.scripted_session import DIES_ONCE, DIES_ONCE_SESSION, SCRIPTED_SESSION
from thunder_tune.values.job import CompareJob, DescribeJob, Limits, Setting
from thunder_tune.workers import InlinePool, trial_child
from thunder_tune.workers.child_process import ChildOptions


def the_child():
    return next(p for p in psutil.Process().children() if "trial_process" in str(p.cmdline()))


class TestInlinePool(WorkerPoolContract):
    @pytest.fixture(scope="class")
    def pool(self, tmp_path_factory):
        pool = InlinePool(
            log_folder=str(tmp_path_factory.mktemp("logs")), session=SCRIPTED_SESSION
        )
        yield pool
        pool.close()


def test_a_closed_pool_takes_no_jobs():
    pool = InlinePool(session=SCRIPTED_SESSION)
    pool.close()
    pool.close()
    with pytest.raises(WorkerError, match="the pool is closed"):
        pool.submit(trial())


def test_a_log_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    pool = InlinePool(log_folder=str(tmp_path / "file"), session=SCRIPTED_SESSION)
    failure = run(pool, trial()).failure
    pool.close()
    assert failure is not None
    assert f"the log folder {tmp_path / 'file'} cannot be written (File exists)" in failure.message


def test_close_during_a_job_leaves_no_process(tmp_path):
    pool = InlinePool(log_folder=str(tmp_path), session=SCRIPTED_SESSION)
    assert run(pool, trial()).state == "complete"
    child = the_child()
    pool.submit(trial("hang"))
    pool.close()
    assert not child.is_running()


def test_a_child_that_stands_still_is_not_overdue():
    pool = InlinePool(session=SCRIPTED_SESSION)
    brief = Setting(source=SETTING.source, limits=Limits(compile_s=1.0))
    assert run(pool, trial(setting=brief)).state == "complete"
    child = the_child()
    pool.submit(trial("stop", setting=brief))
    deadline = time.monotonic() + PATIENCE_S
    while child.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert pool.wait(2.0) == []
    child.resume()
    (result,) = collect(pool, 1).values()
    assert result.state == "complete"
    pool.close()


def test_the_first_process_stands_by_where_there_are_cores(monkeypatch):
    monkeypatch.setattr(trial_child, "_cores_per_worker", lambda slots: 4)
    worker = trial_child.TrialChild(ChildOptions(session=SCRIPTED_SESSION))
    try:
        _, standing_by = worker._standby
        assert worker.measure(trial()).process_id == standing_by.pid
    finally:
        worker.close()


@pytest.mark.parametrize("job", ["describe", "measure", "compare"])
def test_a_process_that_dies_before_it_has_the_job_costs_nothing(tmp_path, job):
    options = ChildOptions(
        session=DIES_ONCE_SESSION, environment={DIES_ONCE: str(tmp_path / "died")}
    )
    worker = trial_child.TrialChild(options)
    contenders = CompareJob(setting=SETTING, contenders=(contender("a"),), blocks=1)
    try:
        failure = {
            "describe": lambda: worker.describe(DescribeJob(setting=SETTING)).failure,
            "measure": lambda: worker.measure(trial()).failure,
            "compare": lambda: worker.compare(contenders, 60.0).failures.get("a"),
        }[job]()
        assert failure is None
        assert (tmp_path / "died").exists()
    finally:
        worker.close()
