from __future__ import annotations

import pytest

from thunder_tune.errors import WorkerError
from thunder_tune.testing.pool_contract import WorkerPoolContract, run, trial
from thunder_tune.testing.scripted_session import SCRIPTED_SESSION
from thunder_tune.workers import InlinePool


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


def test_close_during_a_job_leaves_no_process(tmp_path):
    import psutil

    pool = InlinePool(log_folder=str(tmp_path), session=SCRIPTED_SESSION)
    assert run(pool, trial()).state == "complete"
    child = next(p for p in psutil.Process().children() if "trial_process" in str(p.cmdline()))
    pool.submit(trial("hang"))
    pool.close()
    assert not child.is_running()
